"""Habits of programs with which a setting changes the training: the comparison finds them all.

Each fault is a habit of ``tests/programs/planted.py``, with a sound twin that no setting changes.
What is found here needs no code that recognises it.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from autotune.measurement.learning.training_trace import (
    Agreement,
    Sameness,
    TrainingTrace,
    same,
)
from tests.faults import FAULTS, KEPT, RANKS, WORKERS, Changes
from tests.rigging import open_rig
from tests.test_self_check import NONE, Runs, agreement

pytestmark = [pytest.mark.usefixtures("warm_starts"), pytest.mark.slow]

TRAINS_THE_SAME = {Sameness.BITS, Sameness.ROUNDING}
CALLED = {"other samples": "samples", "saved values": "values of checkpoints"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    with open_rig(folder, "planted.py", "training") as opened:
        return Runs(folder, opened, "planted.py", batches=6)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Several programs at a time: for most of the time that a run takes, nothing is computed."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


class Compared:
    """A comparison that has begun, of what is trained under a setting and as written."""

    def __init__(self, runs: Runs, pool: ThreadPoolExecutor, args: tuple[str, ...]) -> None:
        self._runs, self._pool, self._args = runs, pool, args
        self._written = pool.submit(runs.trace, *args)

    def begin(self, changes: Changes) -> Future[TrainingTrace]:
        return self._pool.submit(self._runs.trace, *self._args, changes=changes)

    def ended(self, own: TrainingTrace, changes: Changes) -> Agreement:
        written = self._written.result()
        if (equal := same(written, own)) is not None:
            return equal
        shaken = self._runs.trace(*self._args, shakes=1)
        return agreement((written, shaken), own, same_batches="batch_size" not in changes)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_its_sound_twin_is_not(
    runs: Runs, pool: ThreadPoolExecutor, name: str
) -> None:
    fault = FAULTS[name]
    habit = fault.habit or name
    planted, sound = (Compared(runs, pool, args) for args in ((habit,), (habit, "--sound")))
    own, theirs = planted.begin(fault.changes), sound.begin(fault.changes)
    if fault.found_by == "an error":
        with pytest.raises(AssertionError, match=fault.message):
            own.result()
    else:
        found = planted.ended(own.result(), fault.changes)
        assert found.sameness is Sameness.DIFFERS, found
        assert found.part == CALLED.get(fault.found_by, fault.found_by), found
    found = sound.ended(theirs.result(), fault.changes)
    assert found.sameness in TRAINS_THE_SAME, found


@pytest.mark.parametrize("habit", KEPT)
def test_what_autotune_keeps_the_same_is_not_called_different(
    runs: Runs, pool: ThreadPoolExecutor, habit: str
) -> None:
    kept = KEPT[habit]
    written = Compared(runs, pool, (habit,))
    own = written.begin(kept.changes).result()
    found = written.ended(own, kept.changes)
    assert found.sameness in TRAINS_THE_SAME, found


def test_batchnorm_of_ranks_is_that_of_shares_of_a_batch(runs: Runs) -> None:
    written = runs.trace("normalised", shares=2), runs.trace("normalised", shakes=1, shares=2)
    own = runs.trace("normalised", changes=RANKS)
    found = agreement(written, own, same_batches=False)
    assert found.sameness in TRAINS_THE_SAME, found
    whole = runs.trace("normalised"), runs.trace("normalised", shakes=1)
    assert agreement(whole, own, same_batches=False).sameness is Sameness.DIFFERS


def test_where_nothing_may_change_items_that_draw_in_workers_are_others(runs: Runs) -> None:
    """Items of the sound program draw from numpy's generator, which each worker seeds anew."""
    for is_evened, may_be in ((True, Sameness.BITS), (False, Sameness.DIFFERS)):
        first, again, workers = (
            runs.trace("global", "--sound", changes=changes, is_evened=is_evened)
            for changes in (NONE, NONE, WORKERS)
        )
        assert agreement((first, first), again).sameness is Sameness.BITS, "one seed, one training"
        assert agreement((first, again), workers).sameness is may_be, is_evened
