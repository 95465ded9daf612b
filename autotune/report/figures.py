"""Figures: the rows and points that the report's charts and tables show."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from autotune.measurement.interval import Interval
from autotune.measurement.outcome import ENDED_BY_US, Outcome
from autotune.program.config import Config
from autotune.results.blame import FAILURES
from autotune.results.record import TrialRecord, latest
from autotune.results.result import SearchResult
from autotune.results.verdict import changes_of
from autotune.results.wording import gib, times

MS = 1000.0


@dataclass(frozen=True)
class Bar:
    """A stacked bar: milliseconds by part."""

    name: str
    parts: dict[str, float]

    @property
    def total_ms(self) -> float:
        """Its length."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Steps:
    """The duration of a step, and what would bound it.

    Attributes:
        samples: How many samples the bars are about: those of a step as written.
        bars: As written, and under the recommended config if there is one.
        ceilings: Milliseconds that the same samples would take with one part taken out.
    """

    samples: float
    bars: tuple[Bar, ...]
    ceilings: dict[str, float]


@dataclass(frozen=True)
class Process:
    """A process of the claim.

    Attributes:
        number: From 1.
        speedup: Of the config over the baseline in this process.
        is_of_search: Whether it is the process in which the config was found.
    """

    number: int
    speedup: Interval
    is_of_search: bool


@dataclass(frozen=True)
class Point:
    """A config by its speed and its memory.

    Attributes:
        gib: Peak memory.
        speedup: Over the program as written.
        kind: ``baseline``, ``best``, ``front`` (no other config beats it in both) or ``other``.
        changes: What it changes.
    """

    gib: float
    speedup: float
    kind: str
    changes: str


@dataclass(frozen=True)
class Moment:
    """A trial among the others.

    Attributes:
        best: The best speedup of the trials until then, by lower bounds; 1 before there is one.
        outcome: How the trial ended.
    """

    best: float
    outcome: Outcome


@dataclass(frozen=True)
class Row:
    """A trial in the report's table."""

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


@dataclass(frozen=True)
class Failure:
    """A way in which trials failed, with what the program printed the first time."""

    reason: str
    configs: tuple[str, ...]
    excerpt: str


def steps(result: SearchResult) -> Steps | None:
    """Return where the time of a step goes; None if nothing was measured."""
    first = result.records[0].measurement if result.records else None
    if first is None:
        return None
    samples = first.samples_per_step
    before, after = (MS * samples / rate.estimate for rate in result.throughput)
    bars = [Bar("as written", _parts(result, before))]
    if result.changes:
        wait = _wait_share(result, is_best=True)
        bars.append(Bar("best config", _two_parts(after, wait)))
    ceilings: dict[str, float] = {}
    if result.facts is not None:
        found = result.facts.breakdown
        for name, rate in (
            ("data always ready", found.synthetic_data_throughput),
            ("loader alone", found.loader_throughput),
        ):
            if rate is not None:
                ceilings[name] = MS * samples / rate.estimate
    return Steps(samples, tuple(bars), ceilings)


def _parts(result: SearchResult, total_ms: float) -> dict[str, float]:
    """Return the parts of a step as written, which add up to its measured duration."""
    split = None if result.facts is None else result.facts.breakdown.split
    if split is None:
        return _two_parts(total_ms, _wait_share(result, is_best=False))
    return {name: total_ms * s / split.step_s for name, s in split.parts.items() if s > 0}


def _two_parts(total_ms: float, wait: float) -> dict[str, float]:
    return {"data wait": total_ms * wait, "everything else": total_ms * (1 - wait)}


def _wait_share(result: SearchResult, *, is_best: bool) -> float:
    sides = [one.winner if is_best else one.baseline for one in result.claim]
    first = result.records[0].measurement
    known = [m for m in sides if m is not None] or ([] if first is None else [first])
    return fmean(m.wait_share for m in known) if known else 0.0


def processes(result: SearchResult) -> tuple[Process, ...]:
    """Return the speedup that each process of the claim has shown."""
    return tuple(
        Process(number, one.ratio.interval, is_of_search=one.is_of_search)
        for number, one in enumerate(result.claim, 1)
    )


def each_is(result: SearchResult) -> str:
    """Return what each ratio of the claim was measured in."""
    if any(one.is_pair for one in result.claim):
        return "two fresh processes, one of each config"
    return "a process in which both configs took turns"


def points(result: SearchResult) -> tuple[Point, ...]:
    """Return the configs whose speed and memory are known."""
    front = {config for config, _, _ in result.pareto}
    return tuple(_points(result.records, result, front))


def _points(
    records: Sequence[TrialRecord], result: SearchResult, front: Collection[Config]
) -> Iterator[Point]:
    for record in latest(records):
        measured = record.measurement
        peak = None if measured is None else measured.memory.peak_bytes
        if peak is None or record.speedup is None:
            continue
        kind = "front" if record.config in front else "other"
        if record.config == result.baseline:
            kind = "baseline"
        elif record.config == result.best:
            kind = "best"
        changes = changes_of(record.config, result.baseline) or "as written"
        yield Point(peak / 2**30, record.speedup.estimate, kind, changes)


def memory_limit_gib(result: SearchResult) -> float:
    """Return the memory that a config could use at most."""
    on_device = any(memory.is_on_device for memory in result.memory)
    capacity = result.hardware.capacity_bytes(on_device=on_device)
    return result.head.options.goal.limit_bytes(capacity) / 2**30


def moments(result: SearchResult) -> tuple[Moment, ...]:
    """Return how the best speedup grew over the trials."""
    # The program as written is a config as well: nothing is better until something surely is
    found, best = list[Moment](), Interval(1.0, 1.0, 1.0)
    for number, record in enumerate(result.records):
        own = record.speedup if number else None
        if own is not None and own.low > best.low:
            best = own
        found.append(Moment(best.estimate, record.outcome))
    return tuple(found)


def rows(result: SearchResult) -> tuple[Row, ...]:
    """Return all trials in order."""
    return tuple(_row(number, record, result) for number, record in enumerate(result.records))


def _row(number: int, record: TrialRecord, result: SearchResult) -> Row:
    measured, ending = record.measurement, record.ending
    return Row(
        number,
        changes_of(record.config, result.baseline) or "as written",
        str(record.outcome),
        times(record.speedup) if record.speedup is not None and number else "",
        times(record.expected) if record.expected is not None else "",
        f"{measured.throughput.estimate:,.0f}" if measured is not None else "",
        gib(measured.memory.peak_bytes) if measured is not None else "",
        f"{record.cost_s:.1f} s",
        record.why,
        ending.reason if ending is not None else "",
    )


def failures(result: SearchResult) -> tuple[Failure, ...]:
    """Return the distinct ways in which trials failed, but those that the user or budget ended."""
    by_reason: dict[str, list[TrialRecord]] = {}
    for record in result.records:
        if record.ending is not None and record.outcome not in ENDED_BY_US:
            by_reason.setdefault(record.ending.reason, []).append(record)
    return tuple(
        Failure(
            reason,
            tuple(changes_of(r.config, result.baseline) or "as written" for r in its),
            _excerpt(its[0]) if its[0].outcome in FAILURES else "",
        )
        for reason, its in by_reason.items()
    )


def _excerpt(record: TrialRecord) -> str:
    return "" if record.ending is None else record.ending.program_traceback[-EXCERPT:]


EXCERPT = 1500  # characters of a traceback; its end says most
