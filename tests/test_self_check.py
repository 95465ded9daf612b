"""What a config trains, compared with the program as written, in rigs on real programs."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch

from autotune.knobs import registry
from autotune.knobs.space.space import ResolvedSpace
from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.learning.training_trace import (
    Agreement,
    Sameness,
    TrainingTrace,
    compare,
    same,
)
from autotune.program.config import Config, KnobValue
from autotune.program.may_change import MayChange
from autotune.program.program import parse_program
from autotune.program.rehearsal import RehearsalPlan, TracePlan
from autotune.rig.rig import Rig
from autotune.tuning.checking.canary import exact_settings
from tests.rigging import PROGRAMS, OpenRig, applied_with, fence, never, open_rig

pytestmark = [pytest.mark.usefixtures("warm_starts"), pytest.mark.slow]

PLAN = RehearsalPlan(
    batches=12, epochs=3, enough_s=0.0, least_steps=12, traces=TracePlan(), most_s=100.0
)
NONE: Mapping[str, KnobValue] = {}
UNEQUAL = {Sameness.DIFFERS, Sameness.UNKNOWN}
GUARDED = {"worker_start_method": "the program has no 'if __name__ == \"__main__\"'"}
# Settings that must be among those compared
ACT = {
    MayChange.NOTHING: {"workers", "prefetch_factor", "activation_checkpointing"},
    MayChange.ROUNDING: {"memory_format", "optimizer", "threads", "flush_denormal"},
}


class Runs:
    """Runs of a program in rigs, each under the traits of the program as written."""

    def __init__(
        self, folder: Path, opened: OpenRig, program: str = "checked.py", batches: int = 12
    ) -> None:
        self.folder, self.base, self.profile = folder, opened.base, opened.profile
        self.program, self.batches, self._numbers = program, batches, count()

    def space(self, level: MayChange) -> ResolvedSpace:
        """Return what may be searched of the program at a level."""
        return load("full").resolve(hardware.detect(), self.profile, level)

    def trace(
        self,
        *args: str,
        shakes: int = 0,
        shares: int = 1,
        changes: Mapping[str, KnobValue] = NONE,
        is_evened: bool = True,
    ) -> TrainingTrace:
        batches = self.batches * int(changes.get("accumulation_steps", 1))
        traced = TracePlan(
            shakes=shakes, shares=shares, drops_out=not is_evened, evens_items=is_evened
        )
        plan = replace(PLAN, batches=batches, traces=traced)
        subject = parse_program(str(PROGRAMS / self.program), args, self.folder)
        compiled = Path(os.environ["AUTOTUNE_TESTS_COMPILED"])
        place = self.folder / f"rig{next(self._numbers)}"  # threads may run programs at a time
        with Rig(subject, place, compiled, fence()) as rig:
            ran = rig.rehearse(applied_with(self.base, **changes), plan, never)
        assert ran.ending is None, ran.ending
        assert ran.seen is not None
        assert ran.seen.trace is not None
        return ran.seen.trace


@pytest.fixture(scope="module")
def planted() -> Iterator[None]:
    """Install a knob of a third party, here and in the processes that rigs start."""
    folder = str(Path(__file__).parent / "planted")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
        registry.cache_clear()
        assert "planted" in registry()
        yield
    registry.cache_clear()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, planted: None) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    with open_rig(folder, "checked.py") as opened:
        own = Config({**opened.base.baseline, "planted": "none"})
        opened.base = replace(opened.base, baseline=own, config=own)
        return Runs(folder, opened)


@pytest.fixture(scope="module")
def written(runs: Runs) -> tuple[TrainingTrace, TrainingTrace]:
    return runs.trace(), runs.trace(shakes=1)


def agreement(
    written: tuple[TrainingTrace, TrainingTrace], own: TrainingTrace, *, same_batches: bool = True
) -> Agreement:
    return same(written[0], own) or compare(
        written[0], [written[1]], own, same_batches=same_batches
    )


def test_settings_train_what_their_level_says(
    runs: Runs, written: tuple[TrainingTrace, TrainingTrace]
) -> None:
    """All of a level that act on this program at once, each at the value farthest from its own.

    The program's blocks hold BatchNorm, which checkpointing computes twice. Number formats are
    compared by their losses (``tests/tuning/test_self_check.py``), as are other batches.
    benchmarks/self_check.py has more programs.
    """
    equal = {MayChange.NOTHING: {Sameness.BITS}, MayChange.ROUNDING: {*Sameness} - UNEQUAL}
    for level, may_be in equal.items():
        space = runs.space(level).without(GUARDED)
        changes = exact_settings(space).changes_from(space.baseline)
        assert changes.keys() >= ACT[level]
        found = agreement(written, runs.trace(changes=changes))
        assert found.sameness in may_be, (changes, found)
        assert found.steps >= 5, "rounding grows fast in a net that normalises five times"
    assert agreement(written, runs.trace()).sameness is Sameness.BITS, "one seed, one training"


# Of a knob of a third party (tests/planted), which says nothing of what it does
DEFECTS = {
    "late lost state": (("weights", "losses"), 28),  # which shows it first depends on the CPU
    "other keys": (("checkpoints",), 0),
    "no loading": (("checkpoints",), 0),
    "old dataset": (("samples",), 13),
}


def test_a_defect_is_noticed_at_the_step_where_it_begins(
    runs: Runs, written: tuple[TrainingTrace, TrainingTrace]
) -> None:
    for defect, (parts, step) in DEFECTS.items():
        found = agreement(written, runs.trace(changes={"planted": defect}))
        assert (defect, found.sameness) == (defect, Sameness.DIFFERS)
        assert found.part in parts, defect
        assert found.at == pytest.approx(step, abs=2), defect
        assert found.begins_epoch is (parts == ("samples",)), defect


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_data_parallel_one_device_and_ranks_train_and_save_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """The CPU counts as two devices, see ``tests/gpu_fakes.py``; on GPUs this has never run."""
    if device == "cpu":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    elif torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with open_rig(tmp_path, "replicated.py", space="devices") as opened:
        assert opened.base.baseline["devices"] == "data_parallel"
        runs = Runs(tmp_path, opened, "replicated.py")
    batch = int(opened.base.baseline["batch_size"])
    written = runs.trace(), runs.trace(shakes=1)
    for devices, ranks in (("single", 1), ("ddp-2", 2)):
        theirs = runs.trace(changes={"devices": devices, "batch_size": batch // ranks})
        assert theirs.saved == written[0].saved != (), "the keys and sizes of what is saved"
        found = agreement(written, theirs, same_batches=ranks == 1)
        assert found.sameness in {Sameness.BITS, Sameness.ROUNDING}, (devices, found)
