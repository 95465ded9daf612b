"""A rank that fails ends the trial with the right outcome, and leaves nothing behind."""

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.turn import PlannedTurn, Taken
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.rig.wire import Ready
from tests.made import make_applied, make_loader
from tests.rigging import never, rig_on

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_starts")]

BASELINE = Config({"devices": "single", "threads": 1, "batch_size": 32})


def applied_of(strategy: str) -> AppliedConfig:
    loader = make_loader(dataset_len=4096, batch_size=32)
    config = BASELINE.replace(devices=f"{strategy}-2")
    return make_applied(config, baseline=BASELINE, loader=loader)


def trial(
    directory: Path, way: str, strategy: str = "ddp", silence_s: float = 60.0
) -> Taken | Ending:
    """Run the program on two ranks until turns are taken or it has failed; then nothing is left."""
    applied = applied_of(strategy)
    with rig_on(directory, "rank_fails.py", way, str(directory)) as rig:
        opened = rig.open(applied, never, 120.0)
        assert isinstance(opened, Ready), opened
        schedule = [PlannedTurn(0, 100 if way else 3)] * 2
        found = rig.take_turns([applied], schedule, never, silence_s)
        assert isinstance(found, Ending) or _standing_in(directory), "it is seen while it runs"
    assert not _standing_in(directory), "ranks were left behind, and with them their ports"
    return found


def _standing_in(directory: Path) -> list[psutil.Process]:
    """Return the processes that stand in a program's working directory, whoever started them."""
    return [p for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(directory)]


@pytest.mark.parametrize(
    ("way", "strategy", "outcome", "reason"),
    [
        ("dies", "ddp", Outcome.HOST_OUT_OF_MEMORY, "rank 1 was killed (SIGKILL)"),
        ("exits", "zero1", Outcome.CRASHED, "rank 1 exited with code 3"),
        ("raises", "fsdp", Outcome.CRASHED, "RuntimeError: rank 1 has had enough"),
        ("fills memory", "zero1", Outcome.HOST_OUT_OF_MEMORY, "the host ran out of memory"),
        ("ends", "fsdp", Outcome.RAN_OUT, "the program ended after 29 steps"),
    ],
)
def test_the_rank_that_ended_the_others_is_told(
    tmp_path: Path, way: str, strategy: str, outcome: Outcome, reason: str
) -> None:
    ending = trial(tmp_path, way, strategy)
    assert isinstance(ending, Ending)
    assert ending.outcome is outcome
    assert ending.reason.startswith(reason)


def test_a_rank_asleep_in_a_collective_hangs_one_trial_and_not_the_next(tmp_path: Path) -> None:
    ending = trial(tmp_path, "hangs", silence_s=3.0)
    assert isinstance(ending, Ending)
    assert ending.outcome is Outcome.HUNG
    assert isinstance(trial(tmp_path, "", "fsdp"), Taken)


def test_a_late_rank_is_waited_for_and_all_ranks_take_turns_in_step(tmp_path: Path) -> None:
    applied = applied_of("zero1")
    smaller = replace(applied, config=applied.config.replace(batch_size=8))
    order = [0, 1, 1, 0, 1]
    schedule = [PlannedTurn(config, 3) for config in order]
    with rig_on(tmp_path, "rank_fails.py", "starts late", str(tmp_path)) as rig:
        assert isinstance(rig.open(applied, never, 120.0), Ready)
        found = rig.take_turns([applied, smaller], schedule, never, 60.0, with_loads=True)
        again = rig.take_turns([smaller], schedule[:1], never, 60.0)
    assert isinstance(found, Taken), found
    assert isinstance(again, Taken), again
    assert [turn.config for turn in found.turns] == order
    for turn in found.turns:  # samples of both ranks count, and none has another config's
        assert turn.samples == ((64,) * 3, (16,) * 3)[turn.config]
        assert min(turn.seconds) > 0
        assert turn.is_finite
    assert [turn.samples for turn in again.turns] == [(16,) * 3]
    assert not again.ranks, "their loads were not asked for"
    assert [load.rank for load in found.ranks] == [0, 1]
    measured = Measurement.of([t for t in found.turns if t.config == 1], found)
    assert measured.communication_share is not None
    assert 0.0 < measured.communication_share <= 1.0
    assert measured.slowest_rank in {0, 1}
