"""Figures: the bars, intervals and rows that a report shows; the page's CSS draws them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from autotune.measurement.interval import Interval
from autotune.measurement.outcome import ENDED_BY_US
from autotune.results.blame import FAILURES
from autotune.results.result import SearchResult
from autotune.results.verdict import changes_of
from autotune.results.wording import gib, times

MS = 1000.0
AS_WRITTEN = "as written"
EXCERPT = 1500  # characters of a traceback; its end says most


@dataclass(frozen=True)
class Bar:
    """Milliseconds of a step by part; of a bound, its one part is the whole."""

    name: str
    parts: dict[str, float]

    @property
    def total_ms(self) -> float:
        """Its length."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Ranges:
    """Speedups with their 95 % intervals, side by side on a scale of equal ratios.

    Attributes:
        rows: The speedups by what they are of; the last one sums up the others.
    """

    title: str
    caption: str
    rows: tuple[tuple[str, Interval], ...]

    def place(self, ratio: float) -> float:
        """Return where a ratio stands, in percent of the width; 1 is always on the scale."""
        bounds = [1.0, *(bound for _, one in self.rows for bound in (one.low, one.high))]
        low, high = 0.97 * min(bounds), 1.03 * max(bounds)
        return 100 * math.log(ratio / low) / math.log(high / low)


def step_bars(result: SearchResult) -> tuple[Bar, ...]:
    """Return where the time of a step goes: as written, under the best config, and at its bounds.

    All are about the samples of a step as written. Empty if nothing was measured.
    """
    first = result.records[0].measurement if result.records else None
    if first is None:
        return ()
    before, after = (MS * first.samples_per_step / r.estimate for r in result.throughput)
    breakdown = None if result.facts is None else result.facts.breakdown
    split = None if breakdown is None else breakdown.split
    # The parts were timed apart from the step, so they are scaled to its measured duration
    bars = [
        _waiting(result, AS_WRITTEN, before)
        if split is None
        else Bar(
            AS_WRITTEN,
            {part: before * s / split.step_s for part, s in split.parts.items() if s > 0},
        )
    ]
    if result.changes:
        bars.append(_waiting(result, "best config", after))
    if breakdown is not None:
        for name, rate in (
            ("data always ready", breakdown.synthetic_data_throughput),
            ("loader alone", breakdown.loader_throughput),
        ):
            if rate is not None:
                bars.append(Bar(name, {"bound": MS * first.samples_per_step / rate.estimate}))
    return tuple(bars)


def _waiting(result: SearchResult, name: str, total_ms: float) -> Bar:
    """Return a bar of which no more is known than how long the program waits for data."""
    sides = [one.baseline if name == AS_WRITTEN else one.winner for one in result.claim]
    first = result.records[0].measurement
    known = [m for m in sides if m is not None] or ([] if first is None else [first])
    wait_ms = total_ms * fmean(m.wait_share for m in known)
    return Bar(name, {"data wait": wait_ms, "everything else": total_ms - wait_ms})


def ranges(result: SearchResult) -> Iterator[Ranges]:
    """Yield the speedup by processes of the claim, and by changes of the config."""
    speedup = result.candidate_speedup
    if speedup is not None and result.claim:
        is_pair = any(one.is_pair for one in result.claim)
        each = (
            "two fresh processes, one of each config"
            if is_pair
            else "a process in which both configs took turns"
        )
        processes = (
            (f"no. {n}{' (of the search)' if one.is_of_search else ''}", one.ratio.interval)
            for n, one in enumerate(result.claim, 1)
        )
        yield Ranges(
            "The proof",
            f"Each row is {each}, with its own error; the last one is the claim.",
            (*processes, ("together", speedup)),
        )
    if speedup is not None and result.contributions:
        changes = sorted(result.contributions, key=lambda one: -one.gain.estimate)
        rows = ((f"{one.knob} {one.before} → {one.after}", one.gain) for one in changes)
        yield Ranges(
            "What each change gives",
            "The config against itself without one change, by the turns of the search.",
            (*rows, ("together", speedup)),
        )


@dataclass(frozen=True)
class Row:
    """A trial in the report's table, as text."""

    number: int
    changes: str
    outcome: str
    speedup: str
    expected: str
    samples_per_s: str
    memory: str
    cost: str
    why: str
    reason: str


def rows(result: SearchResult) -> tuple[Row, ...]:
    """Return all trials in order."""
    return tuple(
        Row(
            number,
            changes_of(record.config, result.baseline) or AS_WRITTEN,
            str(record.outcome),
            times(record.speedup) if record.speedup is not None and number else "",
            times(record.expected) if record.expected is not None else "",
            f"{measured.throughput.estimate:,.0f}" if measured is not None else "",
            gib(measured.memory.peak_bytes) if measured is not None else "",
            f"{record.cost_s:.1f} s",
            record.why,
            record.ending.reason if record.ending is not None else "",
        )
        for number, record in enumerate(result.records)
        for measured in (record.measurement,)
    )


@dataclass(frozen=True)
class Failure:
    """A way in which trials failed, with what the program printed the first time."""

    reason: str
    configs: tuple[str, ...]
    excerpt: str


def failures(result: SearchResult) -> tuple[Failure, ...]:
    """Return the distinct ways in which trials failed, but those that the user or budget ended."""
    found: dict[str, Failure] = {}
    for record in result.records:
        if (ending := record.ending) is None or record.outcome in ENDED_BY_US:
            continue
        excerpt = ending.program_traceback[-EXCERPT:] if record.outcome in FAILURES else ""
        before = found.get(ending.reason, Failure(ending.reason, (), excerpt))
        changes = changes_of(record.config, result.baseline) or AS_WRITTEN
        found[ending.reason] = Failure(before.reason, (*before.configs, changes), before.excerpt)
    return tuple(found.values())
