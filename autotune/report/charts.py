"""Charts: what a report draws and lists, as plain data; ``page`` and its templates write it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from autotune.knobs import registry
from autotune.measurement.interval import Interval
from autotune.measurement.limit import Limit
from autotune.measurement.outcome import ENDED_BY_US
from autotune.program.may_change import MayChange
from autotune.results.blame import FAILURES
from autotune.results.record import ClaimProcess
from autotune.results.result import SearchResult
from autotune.results.shared_answer import MachineClaim
from autotune.results.verdict import Change, changes_in, changes_of
from autotune.results.wording import gib, times

MS = 1000.0
AS_WRITTEN = "as written"
EXCERPT = 1500  # characters of a traceback; its end says most
MOST_ROWS = 200  # of trials in a page, which stays below 200 KB
CELLS = 48  # of a scale in text
STEPS, MOST_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0), 9
BELOW = (0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
APART = 12  # percent of the width that the labels of two ticks need on a phone
LEVELS: Mapping[MayChange, str] = {
    MayChange.NOTHING: "nothing",
    MayChange.ROUNDING: "rounding",
    MayChange.BATCH: "the samples of a step",
    MayChange.ANY: "what is learned: yours to judge",
}


@dataclass(frozen=True)
class Scale:
    """Ratios side by side, equal ones at equal distances; 1 is always on it."""

    low: float
    high: float

    @classmethod
    def over(cls, ratios: Sequence[float]) -> Scale:
        """Return a scale that holds these ratios, with room beside them."""
        low, high = min([1.0, *ratios]), max([1.0, *ratios])
        room = (high / low) ** 0.05 * 1.01
        return cls(low / room, high * room)

    def place(self, ratio: float) -> float:
        """Return where a ratio stands, in percent of the width; beyond it, at the edge."""
        share = math.log(ratio / self.low) / math.log(self.high / self.low)
        return 100 * min(1.0, max(0.0, share))

    @property
    def ticks(self) -> tuple[float, ...]:
        """Round ratios, 1 among them, whose labels do not touch each other or the edges."""
        step = next((s for s in STEPS if (self.high - self.low) / s <= MOST_TICKS), STEPS[-1])
        found = [1.0]
        for ratio in (*(1 + n * step for n in range(1, MOST_TICKS + 1)), *BELOW):
            others = (0.0, 100.0, *map(self.place, found))
            if all(abs(self.place(ratio) - one) > APART for one in others):
                found.append(ratio)
        return tuple(sorted(found))


@dataclass(frozen=True)
class ProofRow:
    """One process of the claim, or all processes of another machine.

    Attributes:
        starts_as_written: Whether it began as the program is written.
        began: How it began, in words.
        turns: Speedups in rounds of it; empty where each config had a process.
        speedup: All of its rounds together.
        rounds: How many it had; *turns* may be some of them.
    """

    name: str
    starts_as_written: bool
    began: str
    turns: tuple[float, ...]
    speedup: Interval
    rounds: int


@dataclass(frozen=True)
class Proof:
    """The claim's processes, and what they say together."""

    title: str
    rows: tuple[ProofRow, ...]
    claim: Interval
    scale: Scale

    def text(self) -> str:
        """Return the rows as lines of text: ``.`` for a turn, ``o`` and more for several."""
        wide = max(len(row.name) for row in self.rows)
        return "\n".join(f"{row.name:{wide}}  {self._line(row)}" for row in self.rows)

    def _line(self, row: ProofRow) -> str:
        cells = [" "] * CELLS
        cells[self._cell(1.0)] = "|"
        at = [self._cell(one) for one in row.turns or (row.speedup.estimate,)]
        for place in at:
            cells[place] = ".o0@"[min(3, at.count(place) - 1)]
        return "".join(cells).rstrip()

    def _cell(self, ratio: float) -> int:
        return int(self.scale.place(ratio) / 100 * (CELLS - 1))


def proofs(result: SearchResult) -> tuple[Proof, ...]:
    """Return what was compared in fresh processes: the candidate, and a larger batch if one was.

    The claim is what processes say together, also where they are too few to claim it.
    """
    larger = result.larger_batch
    claim = result.unclaimed or result.candidate_speedup
    title = "The proof" if result.changes else "What was compared"
    found = [] if claim is None else [_proof(title, result.claim, claim, result.shared.machines)]
    if larger is not None:
        changed = changes_of(larger.config, result.best)
        found.append(_proof(f"The larger batch: {changed}", larger.claim, larger.speedup))
    return tuple(one for one in found if one.rows)


def _proof(
    title: str,
    processes: Sequence[ClaimProcess],
    claim: Interval,
    machines: Sequence[MachineClaim] = (),
) -> Proof:
    fresh = [one for one in processes if not one.is_of_search]
    rows = [_row(f"process {number}", one) for number, one in enumerate(fresh, 1)]
    rows += [_row("the search's own", one) for one in processes if one.is_of_search]
    rows += [_machine_row(one) for one in machines if not one.is_here]
    # A turn that something else slowed down must not push all others together
    shown = [
        min(max(ratio, claim.low / 2), 2 * claim.high)
        for row in rows
        for ratio in (*row.turns, row.speedup.low, row.speedup.high)
    ]
    return Proof(title, tuple(rows), claim, Scale.over([*shown, claim.low, claim.high]))


def _row(name: str, one: ClaimProcess) -> ProofRow:
    began = f"began {AS_WRITTEN}" if one.starts_as_written else "began changed"
    if one.is_pair:
        name, began = name.replace("process", "pair"), "a process of each"
    elif one.is_of_search:
        began = "after the choice"
    return ProofRow(name, one.starts_as_written, began, one.turns, one.ratio.interval, one.rounds)


def _machine_row(one: MachineClaim) -> ProofRow:
    began = f"{one.counted} of another machine{', not in the claim' if one.differs else ''}"
    return ProofRow(one.host, False, began, one.turns, one.speedup, len(one.turns))  # noqa: FBT003


def changed(result: SearchResult, changes: Sequence[Change]) -> tuple[Change, ...]:
    """Return the changes that a verdict lists, in its order; without any, those of the candidate.

    Of those that are recommended, it is said of each what was seen to change in what is learned.
    """
    if changes or result.candidate is None:
        return tuple(replace(one, learning=one.learning or _seen(result, one)) for one in changes)
    return tuple(changes_in(replace(result, best=result.candidate)))


def _seen(result: SearchResult, change: Change) -> str:
    return "not compared" if change.setting in result.uncompared else "nothing"


def level(setting: str) -> str:
    """Return what of the training a setting may change."""
    knob = registry().get(setting)
    return LEVELS[MayChange.ANY if knob is None else knob.changes]


def gain_scale(rows: Sequence[Change]) -> Scale:
    """Return the scale on which all gains stand."""
    known = [row.measured for row in rows if row.measured is not None]
    return Scale.over([bound for one in known for bound in (one.low, one.high)])


@dataclass(frozen=True)
class Bar:
    """Milliseconds of a step by part; of a bound, its one part is the whole."""

    name: str
    parts: Mapping[str, float]

    @property
    def total_ms(self) -> float:
        """Its length."""
        return sum(self.parts.values())


def step_bars(result: SearchResult) -> tuple[Bar, ...]:
    """Return where the time of a step goes: as written, with the changes, and at its bounds.

    All are about the samples of a step as written. That with the changes takes the time as written
    divided by the claim. Empty if nothing was measured.
    """
    first = result.records[0].measurement if result.records else None
    if first is None:
        return ()
    before = MS * first.samples_per_step / result.throughput[0].estimate
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
        bars.append(_waiting(result, "with the changes", before / result.figures.claim.estimate))
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
    known = [m for m in sides if m is not None]
    if not known and name != AS_WRITTEN:  # it was never alone in a process
        return Bar(name, {"everything": total_ms})
    known += [first] if first is not None and not known else []
    wait_ms = total_ms * fmean(m.wait_share for m in known)
    return Bar(name, {"data wait": wait_ms, "everything else": total_ms - wait_ms})


def bounds_of(limit: Limit | None) -> str:
    """Return what is left to gain, as a sentence; empty if it is not known."""
    if limit is None:
        return ""
    parts = ", ".join(f"{name} {bound:.2f}x" for name, bound in limit.bounds.items())
    peak = limit.peak_share
    told = "" if peak is None else f" Its arithmetic is {peak:.0%} of the GPU's published peak."
    return f"At most, if one part of a step cost nothing: {parts}.{told}"


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
    """Return the first trials in order, as many as a page holds."""
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
        for number, record in enumerate(result.records[:MOST_ROWS])
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
