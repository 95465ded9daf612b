"""The console: what a person reads while a search runs."""

import io
from dataclasses import replace

import pytest

from autotune.cli.console import Console, results_console
from autotune.cli.messages import Verbosity
from autotune.tuning.choosing.diagnosis import Bottleneck, Diagnosis
from tests.made import make_hardware, make_profile, make_space


def test_a_reason_for_several_knobs_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    space = make_space(["workers"]).resolve(make_hardware(), make_profile())
    refused = {"pinning": "on the CPU", "batch_size": "sums", "cudnn": "on the CPU"}
    Console(Verbosity.VERBOSE).on_diagnosis(
        Diagnosis(Bottleneck.INPUT_BOUND, "it waits", ()), replace(space, refused=refused)
    )
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2:] == [
        "  not searched: pinning, cudnn (on the CPU)",
        "  not searched: batch_size (sums)",
    ]


def test_piped_results_are_flushed_and_follow_the_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(piped, encoding="ascii"))
    out = results_console()
    assert out.encoding == "ascii"
    out.print("done")
    assert piped.getvalue() == b"done\n"
