"""Pilots: how fast the machine does a small, fixed piece of work at one moment.

What makes measurements noisy is less the program than the pace of the machine: other guests of the
same host, shared cores, clocks. It changes from second to second. A pilot measures that pace apart
from the program, so that it can be told from the speed of a config.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pilot:
    """One timing of the two pieces of work, which are the same for every config and process.

    Attributes:
        one_core_s: Wall time of a loop of the interpreter.
        all_cores_s: Wall time of the same numpy operations on every core at once: that of the
            thread that took longest.
        one_core_cpu_s: CPU time of the thread that ran the loop. Wall time beyond it was spent
            waiting for a core.
        all_cores_cpu_s: CPU time of the slowest of the threads.
    """

    one_core_s: float
    all_cores_s: float
    one_core_cpu_s: float
    all_cores_cpu_s: float


@dataclass(frozen=True)
class Pace:
    """The machine's pace around a visit: logarithms, higher is faster.

    Only differences between two paces mean anything.

    Attributes:
        one_core: Of the interpreter on one core.
        all_cores: Of numpy operations on every core.
    """

    one_core: float
    all_cores: float

    def __sub__(self, other: Pace) -> Pace:
        return Pace(self.one_core - other.one_core, self.all_cores - other.all_cores)


def pace_of(pilots: Sequence[Pilot]) -> Pace | None:
    """Return the pace that some pilots show, or None without any.

    The median counts: one pilot that was interrupted says nothing about the others' time.
    """
    if not pilots:
        return None
    return Pace(
        -math.log(statistics.median(p.one_core_s for p in pilots)),
        -math.log(statistics.median(p.all_cores_s for p in pilots)),
    )


def mean_pace(paces: Sequence[Pace]) -> Pace | None:
    """Return the mean of some paces; None of none."""
    if not paces:
        return None
    return Pace(
        statistics.fmean(pace.one_core for pace in paces),
        statistics.fmean(pace.all_cores for pace in paces),
    )


def pace_around(before: Sequence[Pilot], after: Sequence[Pilot]) -> Pace | None:
    """Return the mean of the paces before and after a visit; None if there is neither."""
    paces = [pace_of(pilots) for pilots in (before, after)]
    return mean_pace([pace for pace in paces if pace is not None])
