"""One rank takes longer than the others, which wait for it in each step."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from autotune.results.advice.base import Advice, Gain, Readings, ms

MIN_SHARE = 0.10  # of a step that the others wait


def stragglers(readings: Readings) -> Iterator[Advice]:
    """Name the slowest rank, and whether its loading or its computing is slow."""
    ranks = readings.measurement.ranks
    own_s = {load.rank: load.own_s for load in ranks if load.own_s is not None}
    if len(ranks) < 2 or len(own_s) < len(ranks):
        return
    slowest = max(ranks, key=lambda load: own_s[load.rank])
    others = [load for load in ranks if load is not slowest]
    usual_s = median(own_s[load.rank] for load in others)
    lost_s = own_s[slowest.rank] - usual_s
    if lost_s < MIN_SHARE * slowest.step_s:
        return
    waits_longer = slowest.wait_s - median(load.wait_s for load in others)
    what = "loading its data" if waits_longer > lost_s / 2 else "computing"
    yield Advice(
        "straggler",
        f"Rank {slowest.rank} is slower than the others, and all of them wait for it.",
        "Without communication, and without waiting for a core, its step takes "
        f"{ms(own_s[slowest.rank])}, that of the others {ms(usual_s)}; it spends the difference on "
        f"{what}.",
        "Give all ranks the same work: samples of equal length, the same files, no logging or "
        "evaluation on one rank alone; look for another process on its device or cores.",
        gain=Gain(slowest.step_s / (slowest.step_s - lost_s), "if it were as fast as the others"),
    )
