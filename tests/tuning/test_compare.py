"""Two configs compared: which is faster, and when that cannot be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.cli import fact_sheet
from autotune.errors import UsageError
from autotune.results import bestfile
from autotune.results.bestfile import BestFile
from autotune.tuning.compare import Difference, as_data, compare
from autotune.tuning.events import Events
from tests.made import HARDWARE, PROGRAM, make_loader
from tests.rigging import write_best
from tests.scripted import Script, ScriptedMachine


def workers(folder: Path, count: int) -> BestFile:
    path = folder / f"{count}.yaml"
    write_best(path, {"num_workers": 0}, make_loader(), num_workers=count)
    return bestfile.read(path)


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        (None, 1, Difference.FASTER),
        (1, None, Difference.SLOWER),
        (1, 2, Difference.SLOWER),
        (2, 2, Difference.NONE),
    ],
)
def test_the_second_config_is_faster_slower_or_alike(
    first: int | None,
    second: int | None,
    difference: Difference,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine = ScriptedMachine(Script({"num_workers": {1: 1.5, 2: 1.2}}, noise=0.02))
    sides = tuple(None if n is None else workers(tmp_path, n) for n in (first, second))
    found = compare(
        PROGRAM, HARDWARE, (sides[0], sides[1]), 300.0, Events(),
        surroundings=machine.surroundings,
    )  # fmt: skip
    assert found.difference is difference
    fact_sheet.show_comparison(found, ("a.yaml", "b.yaml"))
    said = capsys.readouterr().out
    if difference is Difference.NONE:
        assert f"at most {found.most_pct:.0f} %" in said
        assert found.speedup.low <= 1 <= found.speedup.high
    else:
        assert f"b.yaml is {difference} than a.yaml" in said
        assert f"num_workers: {first or 0} → {second or 0}" in said
    assert as_data(found)["difference"] == str(difference)


def test_a_knob_that_cannot_act_here_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gpu.yaml"
    write_best(path, {"cudnn_benchmark": False}, make_loader(), cudnn_benchmark=True)
    with pytest.raises(UsageError, match="cudnn_benchmark"):
        compare(
            PROGRAM, HARDWARE, (None, bestfile.read(path)), 300.0, Events(),
            surroundings=ScriptedMachine(Script()).surroundings,
        )  # fmt: skip


def test_a_comparison_that_was_cut_short_tells_no_difference(tmp_path: Path) -> None:
    machine = ScriptedMachine(Script({"num_workers": {1: 1.5}}, start_s=30.0))
    found = compare(
        PROGRAM, HARDWARE, (None, workers(tmp_path, 1)), 20.0, Events(),
        surroundings=machine.surroundings,
    )  # fmt: skip
    assert found.difference is Difference.NONE
    assert found.confirmation.lack
