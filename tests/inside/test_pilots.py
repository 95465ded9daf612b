"""Pilots are timed while nothing else of the program computes, on as many threads as cores."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

from autotune.inside import pilots as pilots_module
from autotune.inside.data.feed import Feed
from autotune.inside.pilots import PILOTS, VAIN, Pilots
from autotune.measurement.pilot import Pace, Pilot, pace_around, pace_of


@pytest.fixture
def make() -> Iterator[Callable[..., Pilots]]:
    """Make pilots whose threads end with the test."""
    made: list[Pilots] = []
    before = threading.active_count()

    def make(cores: int, **readers: Callable[[], float]) -> Pilots:
        made.append(Pilots(cores, **readers))
        return made[-1]

    yield make
    for pilots in made:
        pilots.give_up()
    while threading.active_count() > before:  # ended by the test's time limit if they stay
        time.sleep(0.01)


def test_each_reading_times_both_pieces_of_work_by_wall_and_by_cpu_time(
    make: Callable[..., Pilots],
) -> None:
    before = threading.active_count()
    pilots = make(2)
    for _ in range(2):
        found = pilots.read()
        assert len(found) == PILOTS
        for pilot in found:
            assert 0 < pilot.one_core_cpu_s <= pilot.one_core_s + 0.001
            assert 0 < pilot.all_cores_cpu_s <= pilot.all_cores_s + 0.001
    assert threading.active_count() == before + 2, "one thread for each core, once"


def test_workers_that_stay_busy_leave_no_pilots_and_those_that_end_are_waited_for(
    make: Callable[..., Pilots],
) -> None:
    asked = iter([False, False, True])
    pilots = make(1)
    assert len(pilots.read(lambda: next(asked))) == PILOTS
    assert pilots.read(lambda: False) == ()


def test_pilots_wait_for_a_moment_without_cpu_use_and_soon_for_a_gap_only(
    make: Callable[..., Pilots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever computes: a thread of the program, a pool of processes, another loader's workers."""
    now = 0.0  # time goes by in gaps alone, however busy the machine

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(pilots_module, "sleep", pause)
    monkeypatch.setattr(pilots_module, "perf_counter", lambda: now)
    for who in ("own_s", "others_s"):
        used = itertools.count(step=0.02)  # one core, all the time
        left = 0

        def cpu_s(used: Iterator[float] = used) -> float:
            nonlocal left
            left -= 1
            return 0.0 if left < 0 else next(used)

        pilots = make(1, **{who: cpu_s})
        left = 3
        assert len(pilots.read(config="soon at rest")) == PILOTS, "it ends its work in time"
        asked = []
        for _ in range(VAIN + 2):
            left = 1000
            assert pilots.read(config="never at rest") == ()
            asked.append(1000 - left)
        assert min(asked[:VAIN]) > 10, who
        assert asked[VAIN:] == [2, 2], "one gap"
        left = 3
        assert len(pilots.read(config="soon at rest")) == PILOTS, "another config is waited for"


def test_a_process_that_computes_while_the_pilots_run_spoils_them(
    make: Callable[..., Pilots],
) -> None:
    readings = iter([0.0, 0.01, 0.01, 0.02, 0.02, 0.02])
    assert len(make(1, others_s=lambda: next(readings)).read()) == PILOTS
    assert not list(readings), "the third time nobody else computed"


def test_a_thread_of_the_program_that_computes_is_noticed(
    make: Callable[..., Pilots],
) -> None:
    """Ended by the test's time limit if it never is; on a busy machine it may not run at once."""
    is_over = threading.Event()

    def compute() -> None:
        values = np.ones(100_000)
        while not is_over.is_set():
            np.sin(values, out=values)

    pilots = make(1)
    threads = [threading.Thread(target=compute) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        while pilots.read():
            pass
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    while not pilots.read():
        pass


class WhenAllowed(Dataset[int]):
    """Items that take as long as the test wants."""

    def __init__(self) -> None:
        self.allowed = multiprocessing.Event()

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        self.allowed.wait()
        return index


def test_workers_are_at_rest_once_none_of_them_loads() -> None:
    """By torch's own iterator, whose private counts are read."""
    dataset = WhenAllowed()
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    feed = Feed.__new__(Feed)
    vars(feed).update(_inner=iter(loader), _active=loader)
    assert not feed.is_at_rest
    dataset.allowed.set()
    while not feed.is_at_rest:  # ended by the test's time limit if they never are
        time.sleep(0.01)
    assert feed.has_idle_workers
    vars(feed).update(_inner=None, _active=DataLoader(dataset))
    assert feed.is_at_rest, "without workers"
    vars(feed).update(_inner=object(), _active=loader)
    assert not feed.is_at_rest, "an iterator that cannot be read may be at work"


def test_a_forked_process_times_by_threads_that_it_has(make: Callable[..., Pilots]) -> None:
    pilots = make(1)
    pilots.read()
    child = os.fork()
    if not child:
        os._exit(0 if len(pilots.read()) == PILOTS else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("cause", ["a thread that fails", "no more threads", "no more memory"])
def test_pilots_that_fail_are_given_up_and_the_program_goes_on(
    make: Callable[..., Pilots], monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("can't start new thread") if "threads" in cause else MemoryError

    before = threading.active_count()
    pilots = make(1)
    if cause == "a thread that fails":
        pilots.read()
        monkeypatch.setattr(np, "sin", fail)
    elif cause == "no more threads":
        monkeypatch.setattr(threading.Thread, "start", fail)
    else:
        monkeypatch.setattr(np, "linspace", fail)
    assert pilots.read() == ()
    monkeypatch.undo()
    assert pilots.read() == (), "a process in which they failed once takes none again"
    while threading.active_count() > before:
        time.sleep(0.01)


def test_a_signal_handler_that_raises_gets_through_and_ends_the_pilots(
    make: Callable[..., Pilots],
) -> None:
    def expire(*_: object) -> NoReturn:
        raise TimeoutError

    pilots = make(1)
    assert len(pilots.read()) == PILOTS
    handled = signal.signal(signal.SIGALRM, expire)
    try:
        with pytest.raises(TimeoutError):
            _read_until_interrupted(pilots)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handled)
    assert pilots.read() == () or len(pilots.read()) == PILOTS


def _read_until_interrupted(pilots: Pilots) -> NoReturn:
    signal.setitimer(signal.ITIMER_REAL, 0.03)
    while True:
        pilots.read()


def test_the_pace_is_that_of_the_median_pilot_around_a_visit() -> None:
    slow, fast, cut = (Pilot(s, s, s, s) for s in (0.002, 0.001, 0.9))
    assert pace_of([fast, cut, fast]) == pace_of([fast])
    assert pace_of([]) is None
    one, other = pace_of([fast]), pace_of([slow])
    assert one is not None
    assert other is not None
    assert (one - other).one_core > 0.69, "half the time is twice the pace: ln 2"
    both = pace_around([fast], [slow])
    assert both == Pace((one.one_core + other.one_core) / 2, (one.all_cores + other.all_cores) / 2)
    assert pace_around([], [fast]) == one
    assert pace_around([], []) is None
