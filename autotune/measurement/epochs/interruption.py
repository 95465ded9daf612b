"""Interruptions: what a program does every N steps in the middle of an epoch, besides training.

A short run of whole epochs may end before the first of them. A search makes many more steps, so it
sees several, such as an evaluation every 500 steps, or samples that are drawn every 200.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from autotune.measurement.interval import Interval

APART = 0.16  # relative half-width of the same work in any two processes, see breakdown.py


@dataclass(frozen=True)
class Interruptions:
    """The interruptions of training that one process has seen, summed up.

    Attributes:
        later: Their number, without the first.
        batches: Batches that were trained on from the first to the last of them.
        seconds: How much longer than others the steps took in which they came; without the first.
    """

    later: int
    batches: int
    seconds: float


def interruptions_s(processes: Iterable[Interruptions]) -> Interval | None:
    """Return the seconds of interruptions per batch of the training pass; None if they are unknown.

    Those of several kinds, at several distances, count together. A stretch that ends with one of
    them may hold up to one more or less than others of its length, which the interval allows for.

    Args:
        processes: What each process has seen.
    """
    seen = [one for one in processes if one.batches]
    if not seen:
        return None
    rate = sum(one.seconds for one in seen) / sum(one.batches for one in seen)
    half = min(1.0, math.hypot(APART, 1 / sum(one.later for one in seen)))
    return Interval(rate, rate * (1 - half), rate * (1 + half))
