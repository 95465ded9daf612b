"""Ranks that the program starts itself, and processes that train in place of the first one."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.turn import PlannedTurn, Taken
from autotune.rig.open_rig import Reports
from autotune.rig.wire import Ready
from tests.knobs.strategies.test_faults import _standing_in
from tests.made import make_loader
from tests.rigging import PROGRAMS, base_setting, free_port, never, rig_on, run_command, write_best

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_starts")]

THREE_STEPS = [PlannedTurn(0, 3)]
# Script, its arguments, what starts its ranks, and how the second one fails
CASES = {
    "spawn": (
        ("spawns.py", "spawn", "dies"),
        "torch.multiprocessing.spawn",
        (Outcome.HOST_OUT_OF_MEMORY, "rank 1 was killed (SIGKILL)"),
    ),
    "fork": (
        ("spawns.py", "fork", "raises"),
        "torch.multiprocessing.start_processes",
        (Outcome.CRASHED, "RuntimeError: rank 1 has had enough"),
    ),
    "script": (
        ("spawns.py", "script", "exits"),
        "a launcher that runs the script again with LOCAL_RANK",
        (Outcome.CRASHED, "SystemExit: 3"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ranks_that_a_program_starts_are_measured_as_one_training_and_the_one_that_fails_is_told(
    name: str, tmp_path: Path
) -> None:
    (script, *arguments), started_by, (outcome, reason) = CASES[name]
    with rig_on(tmp_path, script, *arguments, str(free_port())) as rig:
        opened = rig.open(None, never, 120.0)
        assert isinstance(opened, Ready), opened
        base = base_setting(opened.profile, space="full")
        taken = rig.take_turns([base], THREE_STEPS, never, 60.0, with_loads=True)
        larger = replace(base, config=base.config.replace(batch_size=64))
        ending = rig.take_turns([larger], THREE_STEPS, never, 60.0)
    assert not _standing_in(tmp_path), "nothing is left running"
    profile = opened.profile
    assert profile.ranks.started_by == started_by
    assert profile.ranks.distributed_by == "DistributedDataParallel"
    assert profile.ranks.world_size == 2
    assert isinstance(taken, Taken), taken
    found = Measurement.of(taken.turns, taken)
    assert [turn.samples for turn in taken.turns] == [(64,) * 3], "samples of both ranks count"
    assert [load.rank for load in found.ranks] == [0, 1]
    assert (found.communication_share or 0) > 0, "the ranks train together"
    space = load("full").resolve(hardware.detect(), profile)
    assert "by " + started_by in space.refused["devices"]
    assert {"batch_size", "workers", "ddp_options"} <= space.domains.keys()
    assert isinstance(ending, Ending), ending
    assert (ending.outcome, ending.reason[: len(reason)]) == (outcome, reason)


def test_the_first_of_processes_that_train_in_turn_is_tuned_and_told(tmp_path: Path) -> None:
    said: list[str] = []
    reports = Reports(warning=said.append)
    with rig_on(tmp_path, "spawns.py", "fork", "alone", "0", reports=reports) as rig:
        opened = rig.open(None, never, 120.0)
        assert isinstance(opened, Ready), opened
        base = base_setting(opened.profile)
        larger = replace(base, config=base.config.replace(batch_size=64))
        taken = rig.take_turns([larger], THREE_STEPS, never, 60.0)
    assert isinstance(taken, Taken), taken
    assert [turn.samples for turn in taken.turns] == [(64,) * 3]
    assert any("this first one is tuned" in sentence for sentence in said)
    assert opened.profile.ranks.started_by == "multiprocessing.Process"


def test_a_config_reaches_the_ranks_that_a_program_starts(tmp_path: Path) -> None:
    best = tmp_path / "best.yaml"
    loader = make_loader(dataset_len=4096, batch_size=32, sampler="DistributedSampler")
    write_best(best, {"batch_size": 32}, loader, batch_size=64)
    command = ["run", str(best), str(PROGRAMS / "spawns.py")]
    for method in ("spawn", "script"):
        ran = run_command(*command, method, "", str(free_port()), cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        said = sorted(re.findall(r"rank \d of 2: .*", ran.stdout))
        assert said == [f"rank {rank} of 2: 96 steps of 64" for rank in (0, 1)]
