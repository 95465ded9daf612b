"""Carry-over: what two configs that take turns in one process leave in it for each other.

After another batch, the C library may map memory anew in each step, or stop doing so. The time that
goes into page faults shows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean, median

from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement
from autotune.results.record import Round, Side, WindowRecord

MOST_FAULTS = 0.5  # share of the time that faults may take; several threads share more of them
# Standard deviation of that share that equal processes are taken to have at least, and by how many
# of them two processes differ before the other side is the reason
FAULTS_SPREAD, PROCESSES_APART = 0.02, 3.0


@dataclass(frozen=True)
class _Alone:
    """A side in processes that run nothing else.

    Attributes:
        faults: Share of the time that goes into page faults.
        rate: Samples per second.
    """

    faults: Interval
    rate: float


def without_carry_over(rounds: Sequence[Round]) -> Sequence[Round]:
    """Return the windows with the speeds that their sides have in processes that run them alone.

    In a process that was started as a side, the side's first window is untouched, and its later
    ones are compared with that. The other side's are compared with the first windows of the
    processes that were started as it, where they differ by more than processes do.

    Nothing is changed before there are processes of both kinds, nor where the faults of both sides
    become fewer: then the age of the process is the reason, such as a cache that is full by now.
    """
    first: dict[Side, list[Measurement]] = {side: [] for side in Side}
    for r in rounds:
        first[r[0].side].append(r[0].measurement)
    if not all(first.values()) or all(_faults_less(rounds, side) for side in Side):
        return rounds
    apart = _spread([[m.fault_share.estimate for m in its] for its in first.values()])
    elsewhere = {side: _elsewhere(its, apart) for side, its in first.items()}
    found = []
    for r in rounds:
        began = r[0].measurement
        own = _Alone(began.fault_share, began.throughput.estimate)
        alone = {**elsewhere, r[0].side: own}
        found.append([r[0], *(_times(w, _alone_factor(w, alone[w.side])) for w in r[1:])])
    return found


def _spread(sides: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of shares of page faults between equal processes."""
    degrees = sum(len(its) - 1 for its in sides)
    squares = sum((one - fmean(its)) ** 2 for its in sides for one in its)
    return max(FAULTS_SPREAD, math.sqrt(squares / degrees) if degrees else 0.0)


def _elsewhere(seen: Sequence[Measurement], spread_of_processes: float) -> _Alone:
    """Return what a side does alone in a process that nobody has seen, from some others."""
    mean = fmean(m.fault_share.estimate for m in seen)
    reach = PROCESSES_APART * spread_of_processes * math.sqrt(1 + 1 / len(seen))
    rate = geometric_mean(m.throughput.estimate for m in seen)
    return _Alone(Interval(mean, mean - reach, mean + reach), rate)


def _faults_less(rounds: Sequence[Round], side: Side) -> bool:
    """Return whether a side's page faults become fewer in the processes that were started as it."""
    fewer, scatter = list[float](), list[float]()
    for r in rounds:
        own = [w.measurement.fault_share for w in r if w.side is side]
        if r[0].side is side:
            fewer.append(own[0].estimate - own[-1].estimate)
            scatter += [share.high - share.estimate for share in (own[0], own[-1])]
    return sum(fewer) > math.hypot(*scatter)


def most_changed(rounds: Sequence[Round], alone: Sequence[Round]) -> float:
    """Return by what share the speeds of windows differ at most from those of sides alone."""
    factors = (
        other.measurement.throughput.estimate / one.measurement.throughput.estimate
        for r, others in zip(rounds, alone, strict=True)
        for one, other in zip(r, others, strict=True)
    )
    return max(max(factor, 1 / factor) for factor in factors) - 1


def _alone_factor(window: WindowRecord, alone: _Alone) -> float:
    """Return the factor on a window's speed that gives the speed of its side alone.

    It is as far from 1 as page faults explain, but no farther than the speeds themselves: faults of
    several threads cost less than their sum. 1.0 if the shares differ by no more than their
    scatter.
    """
    measured, own = window.measurement, alone.faults
    now = measured.fault_share
    scatter = math.hypot(now.high - now.estimate, own.high - own.estimate)
    if abs(now.estimate - own.estimate) <= scatter:
        return 1.0
    by_faults = (1 - min(own.estimate, MOST_FAULTS)) / (1 - min(now.estimate, MOST_FAULTS))
    by_speed = alone.rate / measured.throughput.estimate
    return median([1.0, by_faults, by_speed])


def _times(window: WindowRecord, factor: float) -> WindowRecord:
    """Return a window that made its samples at another speed."""
    measured = window.measurement
    faster = replace(measured, throughput=measured.throughput.times(factor))
    return replace(window, measurement=faster)


def doubted(alone: Interval, as_seen: Interval) -> Interval:
    """Return a speedup without what sides left for each other, with the doubt of that correction.

    The interval is wider by half of the correction. The correction never helps a claim: the lower
    bound is at most the one without it.

    Args:
        alone: The speedup with the correction.
        as_seen: The same without it.
    """
    doubt = math.exp(abs(math.log(alone.estimate / as_seen.estimate)) / 2)
    return Interval(alone.estimate, min(alone.low / doubt, as_seen.low), alone.high * doubt)
