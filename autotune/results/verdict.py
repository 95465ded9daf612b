"""Verdict: what a search found as sentences, for the console, the report and other readers.

Three questions in order: what came out, why, and what to do next. The sentences hold no markup.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import assert_never

from autotune.knobs.space.tuning_variables import unlisted
from autotune.measurement.outcome import Outcome
from autotune.program.config import Config
from autotune.program.program import ProgramKind
from autotune.results.advice import switches_left_on
from autotune.results.blame import FAILURES
from autotune.results.finding import WORTH_FINDING, Finding
from autotune.results.rank_notes import parallel_notes
from autotune.results.rehearsals import blames, note
from autotune.results.result import SearchResult
from autotune.results.wording import (
    HOUR,
    as_typed,
    estimated_duration,
    format_duration,
    gib,
    rate,
    times,
)


class Tone(StrEnum):
    """How good the news is; the values are colours of a terminal."""

    GOOD = "green"
    PLAIN = "default"
    OPEN = "yellow"
    BAD = "red"


@dataclass(frozen=True)
class Command:
    """Something to type, or a line to put into a script."""

    text: str
    purpose: str


@dataclass(frozen=True)
class Row:
    """A figure before and after."""

    name: str
    before: str
    after: str

    def cells(self, count: int) -> tuple[str, ...]:
        """Return the figure in a number of columns, one or two."""
        return (self.before, self.after)[:count]


@dataclass(frozen=True)
class Change:
    """A knob that the recommended config changes.

    Attributes:
        values: Both values: ``0 → 2``.
        gain: What it gives on top of the others; empty if nothing is known about that.
    """

    knob: str
    values: str
    gain: str


@dataclass(frozen=True)
class Verdict:
    """What a search found.

    Attributes:
        basis: What it rests on, or what it means, as the rest of the headline's line.
        more: Further sentences about the finding.
        changes: The knobs of the recommended config, with what each of them gives.
        why: What limits the program, how long it trains, and what the changes mean for learning.
        notes: What else there is to know: doubts, failures, what was not tried.
    """

    tone: Tone
    headline: str
    basis: str
    more: tuple[str, ...]
    figures: tuple[Row, ...]
    changes: tuple[Change, ...]
    why: tuple[str, ...]
    next: tuple[Command, ...]
    notes: tuple[str, ...]
    cost: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings of the figures; with no change there is nothing to set side by side."""
        return ("before", "after") if self.changes else ("as written",)


def verdict(result: SearchResult, output: Path) -> Verdict:
    """Return what a search found, in words; *output* is where best.yaml was written."""
    tone, headline, basis = _headline(result)
    gains = {one.knob: one.gain for one in result.contributions}
    return Verdict(
        tone,
        headline,
        basis,
        tuple(_more(result)),
        tuple(_figures(result)),
        tuple(
            Change(
                knob,
                f"{result.baseline[knob]} → {value}",
                "" if (gain := gains.get(knob)) is None else times(gain),
            )
            for knob, value in result.changes.items()
        ),
        tuple(_why(result)),
        tuple(_next(result, output)),
        tuple(_notes(result)),
        _cost(result, output),
    )


def changes_of(config: Config, baseline: Config) -> str:
    """Return the knobs in which a config differs: ``workers=2 compile=off``."""
    return " ".join(f"{k}={v}" for k, v in config.changes_from(baseline).items())


def _headline(result: SearchResult) -> tuple[Tone, str, str]:
    kept = "your program's own config is kept"
    match result.finding:
        case Finding.FASTER:
            better = result.head.options.goal.better
            speedup = result.speedup
            seen = [m for one in result.claim for m in (one.baseline, one.winner) if m is not None]
            is_busy = 2 * sum(m.is_disturbed for m in seen) > len(seen)  # for most of its time
            busy = " on a busy machine" if is_busy else ""
            return (
                Tone.GOOD,
                f"{speedup.estimate:.2f}x {better}",
                f"{times(speedup).partition(' ')[2]}, confirmed in fresh processes{busy}",
            )
        case Finding.NOTHING_FOUND | Finding.TOO_NOISY | Finding.AT_LIMIT:
            return Tone.PLAIN, "No significant gain:", f"{kept}."
        case Finding.NOT_MEASURED:
            return Tone.BAD, "Nothing could be measured:", f"{result.reason}. {kept.capitalize()}."
        case Finding.UNCONFIRMED:
            return Tone.OPEN, "Not confirmed", f"({result.reason}): {kept}."
        case _:
            assert_never(result.finding)


def _more(result: SearchResult) -> Iterator[str]:
    if result.reason and result.finding not in {Finding.UNCONFIRMED, Finding.NOT_MEASURED}:
        yield f"What was measured counts; the search ended too early: {result.reason}."
    match result.finding:
        case Finding.FASTER:
            # The best of many noisy measurements overestimates its true value (the winner's curse)
            searched = [r.speedup for r in result.records if r.config == result.best and r.speedup]
            if searched and searched[0].estimate > result.speedup.estimate:
                yield (
                    f"The search measured {searched[0].estimate:.2f}x: the best of "
                    f"{len({r.config for r in result.records})} is partly luck, so only the "
                    "confirmation counts."
                )
        case Finding.NOTHING_FOUND | Finding.TOO_NOISY | Finding.AT_LIMIT:
            yield _why_no_gain(result)
        case Finding.UNCONFIRMED if result.candidate is not None:
            assert result.candidate_speedup is not None, "a candidate was measured"
            changes, few = changes_of(result.candidate, result.baseline), result.unclaimed
            yield (
                f"During the search, {changes} gave {times(result.candidate_speedup)}"
                f"{'' if few is None else f'; fresh processes gave {times(few)}'}."
            )
        case _:
            pass
    if result.finding is not Finding.NOT_MEASURED:
        yield from _larger_batch(result)


def _why_no_gain(result: SearchResult) -> str:
    if (found := result.candidate_speedup) is not None:
        doubt = (
            "; a quieter machine or a longer --budget tells more"
            if found.high > WORTH_FINDING
            else ""
        )
        assert result.candidate is not None, "its speedup is known"
        changes = changes_of(result.candidate, result.baseline)
        return (
            f"The best candidate, {changes}, came out at {times(found)} in fresh processes{doubt}."
        )
    if any(record.is_blamed for record in result.rehearsals):
        return "The configs that were faster are not recommended; the reasons are below."
    if any(record.measurement is not None for record in result.records[1:]):
        return "No config that was measured looked fast enough to be worth a confirmation."
    if result.untried:
        return "There was no time for the configs that could be tried here."
    return "There was no other config that could be tried here."


def _figures(result: SearchResult) -> Iterator[Row]:
    yield Row("samples/s", *map(rate, result.throughput))
    for label, name in (
        ("host memory", "host_bytes"),
        ("GPU memory reserved", "device_reserved_bytes"),
        ("GPU memory in use", "device_used_bytes"),
    ):
        sizes = [getattr(memory, name) for memory in result.memory]
        if sizes[0] is not None:
            yield Row(label, *map(gib, sizes))


def _why(result: SearchResult) -> Iterator[str]:
    if result.bottleneck:
        is_one = result.bottleneck.endswith("-bound")
        limited = f"the program is {result.bottleneck}" if is_one else result.bottleneck
        yield f"As written, {limited}: {result.bottleneck_evidence}."
    if result.training_steps is not None:
        yield from result.training_steps.sentences
    yield from _saved(result)
    if result.changes:
        yield f"Learning: {result.learning.note}"
        if result.training_note:
            yield result.training_note
        compilation, steps = result.compilation, result.break_even_steps
        if compilation is not None and steps is not None:
            yield (
                f"A run without a compile cache starts slower ({compilation}); compiling pays off "
                f"after {steps:,} steps."
            )


def _saved(result: SearchResult) -> Iterator[str]:
    hours = result.head.options.goal.hours
    if hours is None or not result.changes:
        return
    gain = result.speedup
    after, *saved = (
        estimated_duration(hours * HOUR * share)
        for share in (
            1 / gain.estimate,
            *(max(0.0, 1 - 1 / ratio) for ratio in (gain.estimate, gain.low, gain.high)),
        )
    )
    yield (
        f"A training of {hours:g} h takes {after}, so it saves {saved[0]} ({saved[1]} to "
        f"{saved[2]}), by the speedup of the training loop."
    )


def _larger_batch(result: SearchResult) -> Iterator[str]:
    if (larger := result.larger_batch) is None:
        return
    resume = f"{result.head.to_resume(result.run_dir.name)} --may-change batch"
    yield (
        f"Larger steps are faster: {changes_of(larger.config, result.baseline)} gave "
        f"{times(larger.speedup)} in the search. What they learn was not checked; that needs "
        f"{math.ceil(larger.check_s / 60)} min more: "
        f"{resume if result.worth_s else 'a new search with --may-change batch'}"
    )


def _notes(result: SearchResult) -> Iterator[str]:
    yield from result.warnings
    if result.facts is not None:
        for _, problem, mend in switches_left_on(result.facts.profile):
            yield f"{problem} It slows each step, and was not searched. {mend}"
    if result.steps_note:
        yield result.steps_note
    # What the best config passed after its training loop, then which others failed there
    if result.changes and (passed := note(result.rehearsals, result.best)):
        yield passed
    yield from blames(result.rehearsals)
    for sentence in parallel_notes(result.records, result.best):
        yield f"{sentence}."
    for record in result.records[1:]:  # the outcome says whether a config is to blame
        if record.ending is not None and record.outcome in FAILURES:
            changes = changes_of(record.config, result.baseline)
            yield f"{changes} {record.outcome}: {record.ending.reason}"
    if result.untried:
        yield f"Not measured: {', '.join(result.untried)} (a longer --budget leaves time)."


def _next(result: SearchResult, output: Path) -> Iterator[Command]:
    if result.changes:
        variables = unlisted(k.removeprefix("$") for k in result.changes if k.startswith("$"))
        allowed = f", allow_env={variables}" if variables else ""
        apply = f'import autotune; autotune.apply("{output}"{allowed})'
        if result.head.program.kind is ProgramKind.PICKLED_FUNCTION:
            yield Command(apply, "before calling the function")
        else:
            option = f"--allow-env {','.join(variables)} " if variables else ""
            line = f"autotune run {option}{quote(str(output))} {result.head.program}"
            yield Command(line, "train with it")
            if not result.has_ranks:
                yield Command(apply, "or this, as first line of the script")
    if result.finding is Finding.UNCONFIRMED and result.worth_s is not None:
        yield Command(
            f"{result.head.to_resume(result.run_dir.name)} --budget {math.ceil(result.worth_s)}s",
            f"go on (in all, the {format_duration(result.seconds)} so far included)",
        )


def _cost(result: SearchResult, output: Path) -> str:
    ok = sum(record.outcome is Outcome.OK for record in result.records)
    noun = "process" if result.processes == 1 else "processes"
    # A full disk may have kept them from being written, as was said then
    places = {"config": output, "page": as_typed(result.run_dir / "report.html")}
    files = ", ".join(f"{what}: {one}" for what, one in places.items() if one.exists())
    said = (
        f"{ok} of {len(result.records)} trials measured in {result.processes} {noun}, "
        f"{format_duration(result.seconds)}"
    )
    return f"{said}; {files}" if files else said
