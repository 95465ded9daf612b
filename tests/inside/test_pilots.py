"""Pilots are timed while nothing else of the program computes, on as many threads as cores."""

from __future__ import annotations

import os
import threading

from autotune.inside.pilots import MOST_S, PILOTS, Pilots
from autotune.measurement.pilot import Pace, Pilot, pace_around, pace_of


def test_each_reading_times_both_pieces_of_work_by_wall_and_by_cpu_time() -> None:
    before = threading.active_count()
    pilots = Pilots(2)
    for _ in range(2):
        found = pilots.read()
        assert len(found) == PILOTS
        for pilot in found:
            assert 0 < pilot.one_core_cpu_s <= pilot.one_core_s + 0.001
            assert 0 < pilot.all_cores_cpu_s <= pilot.all_cores_s + 0.001
    assert threading.active_count() == before + 2, "one thread for each core, once"
    pilots.close()
    assert threading.active_count() == before


def test_workers_that_stay_busy_leave_no_pilots_and_those_that_end_are_waited_for() -> None:
    asked = iter([False, False, True])
    pilots = Pilots(1)
    assert len(pilots.read(lambda: next(asked))) == PILOTS
    assert pilots.read(lambda: False) == ()
    assert MOST_S < 1.0, "a program stands still meanwhile"
    pilots.close()


def test_a_forked_process_times_by_threads_that_it_has() -> None:
    pilots = Pilots(1)
    pilots.read()
    child = os.fork()
    if not child:
        os._exit(0 if len(pilots.read()) == PILOTS else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pilots.close()


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
