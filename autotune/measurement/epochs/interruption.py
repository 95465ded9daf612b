"""Interruptions: what a program does every N steps in the middle of an epoch, besides training.

A short run of whole epochs may end before the first of them. A search makes many more steps, so it
sees several, such as an evaluation every 500 steps, or samples that are drawn every 200.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from autotune.measurement.interval import Interval

# Relative half-width of the same work in any two processes (breakdown.py), and under the configs
# that a search tries: they may evaluate faster or slower than the program as written.
APART = 0.3


@dataclass(frozen=True)
class Interruptions:
    """The interruptions of training that one process has seen, summed up.

    Attributes:
        later: Their number, without the first.
        batches: Batches that were trained on from the first to the last of them.
        seconds: How much longer than others the steps took in which they came; without the first.
        largest_s: The most that one of them took.
        longest: The most batches from one to the next.
    """

    later: int
    batches: int
    seconds: float
    largest_s: float
    longest: int


def interruptions_s(processes: Iterable[Interruptions]) -> Interval | None:
    """Return the seconds of interruptions per batch of the training pass; None if they are unknown.

    Those of several kinds, at several distances, count together. Another stretch of the same length
    may hold one more or less, also of the longest kind, which the interval allows for. Distances
    that differ may all become the longest: a program that evaluates by the clock does so more often
    per batch during a search, where it stands still between two configs.

    Args:
        processes: What each process has seen.
    """
    seen = [one for one in processes if one.batches and one.seconds > 0]
    if not seen:
        return None
    all_s = sum(one.seconds for one in seen)
    rate = all_s / sum(one.batches for one in seen)
    half = math.hypot(APART, max(one.largest_s for one in seen) / all_s)
    stretched = sum(one.later * one.longest for one in seen) / sum(one.batches for one in seen)
    return Interval(rate, rate * max(0.0, 1 - half) / stretched, rate * (1 + half))
