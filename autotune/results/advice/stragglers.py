"""One rank takes longer than the others, which wait for it in each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from autotune.measurement.rank_load import RankLoad
from autotune.results.advice.base import Advice, Gain, Readings, ms

MIN_SHARE = 0.10  # of a step that the others wait


@dataclass(frozen=True)
class _Slow:
    """The slowest of several ranks in one measurement; own_s and usual_s are seconds of a step."""

    load: RankLoad
    others: Sequence[RankLoad]
    own_s: float
    usual_s: float

    @property
    def lost_s(self) -> float:
        return self.own_s - self.usual_s


def stragglers(readings: Readings) -> Iterator[Advice]:
    """Name the slowest rank, and whether its loading or its computing is slow.

    It has to be the slowest each time: other programs slow now this rank and now that.
    """
    found = [_slowest(m.ranks) for m in (readings.measurement, *readings.again)]
    slow = [one for one in found if one is not None]
    if len(slow) < len(found) or len({one.load.rank for one in slow}) > 1:
        return
    yield _advice(sorted(slow, key=lambda one: one.lost_s / one.load.step_s)[len(slow) // 2])


def _slowest(ranks: Sequence[RankLoad]) -> _Slow | None:
    """Return the slowest rank, if the others wait for it; None if that is not known."""
    own_s = {load.rank: load.own_s for load in ranks if load.own_s is not None}
    if len(ranks) < 2 or len(own_s) < len(ranks):
        return None
    slowest = max(ranks, key=lambda load: own_s[load.rank])
    others = [load for load in ranks if load is not slowest]
    found = _Slow(slowest, others, own_s[slowest.rank], median(own_s[load.rank] for load in others))
    return found if found.lost_s >= MIN_SHARE * slowest.step_s else None


def _advice(slow: _Slow) -> Advice:
    slowest, others, lost_s = slow.load, slow.others, slow.lost_s
    waits_longer = slowest.wait_s - median(load.wait_s for load in others)
    what = "loading its data" if waits_longer > lost_s / 2 else "computing"
    return Advice(
        "straggler",
        f"Rank {slowest.rank} is slower than the others, and all of them wait for it.",
        "Without communication, and without waiting for a core, its step takes "
        f"{ms(slow.own_s)}, that of the others {ms(slow.usual_s)}; it spends the difference on "
        f"{what}.",
        "Give all ranks the same work: samples of equal length, the same files, no logging or "
        "evaluation on one rank alone; look for another process on its device or cores.",
        gain=Gain(slowest.step_s / (slowest.step_s - lost_s), "if it were as fast as the others"),
    )
