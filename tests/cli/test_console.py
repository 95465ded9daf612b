"""The console: what a person reads while a search runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.cli.console import Console
from autotune.cli.messages import Verbosity
from autotune.program.profile import OptimizerFacts
from autotune.tuning.choosing.bounds import Share
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


def test_what_can_give_next_to_nothing_is_named_with_the_most_that_it_can_give(
    capsys: pytest.CaptureFixture[str],
) -> None:
    adam = OptimizerFacts(
        "AdamW", ("AdamW",), (0.001,), "for-loop", ("for-loop", "foreach", "fused")
    )
    profile = make_profile(optimizers=(adam,))
    space = make_space(["optimizer"]).resolve(make_hardware(), profile)
    shares = {
        "optimizer": Share(0.01, "the optimizer"),
        "workers": Share(0.0, "loading data"),  # not searched anyway
    }
    diagnosis = Diagnosis(Bottleneck.COMPUTE_BOUND, "it waits for nothing", shares=shares)
    Console(Verbosity.VERBOSE).on_diagnosis(diagnosis, space)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "  not tried at first: optimizer (can give at most 1.02x here: the "
        "optimizer takes 1% of the time)"
    )
