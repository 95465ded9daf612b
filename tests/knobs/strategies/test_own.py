"""Programs that distribute themselves: started by torchrun, and otherwise left to themselves."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.turn import PlannedTurn, Taken
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.rig.failures import program_error
from autotune.rig.wire import Ready
from tests.made import PROGRAM, changed, make_applied
from tests.rigging import applied_with, never, rig_on

pytestmark = pytest.mark.usefixtures("warm_starts")

# Script, by what it distributes itself, samples in a batch of each rank
CASES = {
    "torchrun": ("own_ddp.py", "DistributedDataParallel", 32),
    "accelerate": ("accelerated.py", "Accelerate", 32),
    "fabric": ("fabric.py", "Lightning's Fabric", 32),
    "lightning": ("lightning_trainer.py", "Lightning's Trainer", 16),
    "transformers": ("hf_trainer.py", "Hugging Face's Trainer", 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_program_that_distributes_itself_is_tuned_in_ranks(name: str, tmp_path: Path) -> None:
    script, means, batch = CASES[name]
    out = (str(tmp_path / "out"),) if name == "transformers" else ()
    baseline = Config({"devices": "own-1", "threads": 1, "ddp_options": "default"})
    other = baseline.replace(devices="own-2", ddp_options="small-buckets")
    applied = changed(_plain(), config=other, baseline=baseline, distributes_itself=means)
    with rig_on(tmp_path, script, *out) as rig:
        opened = rig.open(applied, never, 120.0)
        assert isinstance(opened, Ready), opened
        taken = rig.take_turns([applied], [PlannedTurn(0, 4)], never, 60.0, with_loads=True)
        said = rig.log_tail()
    assert isinstance(taken, Taken), taken
    found = Measurement.of(taken.turns, taken)
    assert found.largest_step == 2 * batch
    assert (found.communication_share or 0) > 0, "the ranks train together"
    if name == "torchrun":
        assert "buckets of 5 MiB" in said
    assert opened.profile.ranks.distributed_by == means
    assert opened.profile.ranks.world_size == 2
    space = load("full").resolve(hardware.detect(), opened.profile)
    assert space.baseline["devices"] == "own-2"
    assert {str(v)[:4] for v in space.domains["devices"].values} == {"own-"}, "its way is its own"
    assert "ddp_options" in space.domains


def test_ranks_that_train_each_for_itself_are_no_gain(tmp_path: Path) -> None:
    """A program that does not take its ranks from torchrun would look twice as fast."""
    own = changed(_plain(), distributes_itself="torch.distributed")
    baseline = own.baseline.replace(devices="own-1")
    applied = replace(own, baseline=baseline, config=baseline.replace(devices="own-2"))
    with rig_on(tmp_path, "plain.py", str(tmp_path / "losses")) as rig:
        ending = rig.open(applied, never, 120.0)
    assert isinstance(ending, Ending)
    assert "the program trains in groups of 1 where 2 ranks were started" in ending.reason


@pytest.mark.parametrize(
    ("source", "is_refused"), [("torch", False), ("own", True), ("whole", True)]
)
def test_ranks_without_a_loader_draw_numbers_of_their_own_or_are_refused(
    tmp_path: Path, source: str, is_refused: bool
) -> None:
    applied = applied_with(_plain(), devices="ddp-2")
    with rig_on(tmp_path, "draws.py", source) as rig:
        opened = rig.open(applied, never, 120.0)
    if is_refused:
        assert isinstance(opened, Ending)
        assert "all ranks train on the same batches" in opened.reason
    else:
        assert isinstance(opened, Ready), opened


def _plain() -> AppliedConfig:
    """The baseline of a plain program, without the first steps that would tell it."""
    baseline = Config({"devices": "single", "threads": 1})
    return make_applied(baseline, baseline=baseline, loader=None)


def test_a_program_that_wants_a_launcher_is_told_how_to_get_one(tmp_path: Path) -> None:
    with rig_on(tmp_path, "own_ddp.py") as rig:
        ending = rig.open(None, never, 120.0)
    assert isinstance(ending, Ending)
    assert ending.outcome is Outcome.CRASHED
    said = str(program_error(PROGRAM, ending))
    assert "wants to be started by a launcher" in said
    assert "--nproc-per-node 2" in said
