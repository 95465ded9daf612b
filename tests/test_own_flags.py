"""A program's own flags, keywords and variables, through a search and into training."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import autotune
from autotune.knobs.space.space import ResolvedSpace, SearchSpace
from autotune.machine import hardware
from autotune.program.config import KnobValue
from autotune.results.finding import Finding
from autotune.results.record import TrialRecord
from autotune.tuning.events import Events
from tests.made import changed
from tests.rigging import PROGRAMS, open_rig, run_command

pytestmark = pytest.mark.usefixtures("warm_starts")

FLAGGED = str(PROGRAMS / "flagged.py")
ARGS = ("--hidden", "4")


class StopsAfter(Events):
    """Ends a search as two Ctrl-C do, once so many trials are recorded: nothing is confirmed then.

    Args:
        trials: The baseline counts.
    """

    def __init__(self, trials: int) -> None:
        self._trials = trials

    def on_trial_end(self, number: int, record: TrialRecord, space: ResolvedSpace) -> None:
        if number + 1 == self._trials:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)


def restarted(
    directory: Path,
    target: str,
    args: tuple[str, ...],
    space: SearchSpace,
    changes: dict[str, KnobValue],
) -> list[str]:
    """Observe the program, start it again with changes; return what it printed."""
    with open_rig(directory, target, *args) as opened:
        resolved = space.resolve(hardware.detect(), opened.profile)
        config, baseline = resolved.baseline.replace(**changes), resolved.baseline
        applied = changed(opened.base, config=config, baseline=baseline, flags=resolved.flags)
    again = directory / "again"
    again.mkdir()
    with open_rig(again, target, *args, applied=applied) as opened:
        assert not isinstance(opened.measure(), BaseException)
        return opened.rig.log.read_text().splitlines()


def test_flags_and_variables_reach_a_process_and_keywords_a_function(tmp_path: Path) -> None:
    variables: dict[str, KnobValue] = {"--hidden": "32", "$FLAVOUR": "sweet"}
    keyword: dict[str, KnobValue] = {"keyword.hidden": 32}
    for target, args, changes, expected in (
        ("flagged.py", ARGS, variables, [16, 32, "sweet"]),
        ("flagged.py:train", (), keyword, [16, 32, None]),
    ):
        space = SearchSpace("own", {}).with_values({k: [v] for k, v in changes.items()})
        folder = tmp_path / target
        folder.mkdir()
        assert json.loads(restarted(folder, target, args, space, changes)[0]) == expected


def test_a_flag_that_means_the_batch_also_changes_the_learning_rate(tmp_path: Path) -> None:
    space = SearchSpace("auto", {"batch_size": None}, uses_flags=True)
    seen = restarted(tmp_path, "flagged.py", ARGS, space, {"batch_size": 32})
    assert json.loads(seen[0])[0] == 32
    assert [float(line) for line in seen[1:3]] == [0.02, 0.02]


def test_a_rate_that_the_program_scales_itself_is_not_scaled_twice(tmp_path: Path) -> None:
    """Four times the batch doubles the rate, once: the fourth step is at 3/50 of twice the rate."""
    space = SearchSpace("auto", {"batch_size": None}, uses_flags=True)
    seen = restarted(tmp_path, "scales_itself.py", (), space, {"batch_size": 64})
    assert f"{2 * 3 / 50:.4f}" in seen


@pytest.mark.slow
def test_a_python_call_over_own_flags_ends_in_a_file_that_trains_with_them(workplace: Path) -> None:
    result = autotune.search(
        FLAGGED,
        args=["--hidden", "8"],
        budget="5m",
        tune=["batch_size"],
        set={"batch_size": [16, 128]},
        may_change="batch",
        use_flags=True,
        events=StopsAfter(trials=2),
    )
    assert result.head.space.uses_flags
    trials = dict.fromkeys((t["batch_size"], t["rig"], t["outcome"]) for t in result.trials)
    assert [*trials] == [(16, 1, "ok"), (128, 2, "ok")], "a flag is read at a start"
    assert result.best == result.baseline
    assert result.speedup.low == result.speedup.estimate == result.speedup.high == 1.0
    assert not result.run_dir.joinpath("best.yaml").exists()
    assert not (workplace / "best.yaml").exists(), "a call writes where it is told to"
    mine = workplace / "mine.yaml"
    larger = replace(result, candidate=result.best.replace(batch_size=128))
    mine.write_text(replace(larger, finding=Finding.UNCONFIRMED).best_file().text(mine.name))
    ran = run_command("run", mine.name, FLAGGED, "--steps", "8")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[0])[0] == 128
