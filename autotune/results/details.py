"""Details: all that is known of a result beyond its verdict, as sentences under headings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.measurement.outcome import Outcome
from autotune.results.blame import FAILURES
from autotune.results.doubts import doubts
from autotune.results.rank_notes import parallel_notes
from autotune.results.rehearsals import blames, note
from autotune.results.result import SearchResult
from autotune.results.shared_answer import UNCHANGED
from autotune.results.verdict import apply_line, changes_of, said
from autotune.results.wording import (
    as_typed,
    by_reason,
    factor,
    format_duration,
    gib,
    rate,
    times,
)


@dataclass(frozen=True)
class Section:
    """Sentences about one thing."""

    title: str
    sentences: tuple[str, ...]


def details(result: SearchResult) -> tuple[Section, ...]:
    """Return what is known beyond the verdict; parts about which nothing is known are left out."""
    parts = {
        "The proof": _proof(result),
        "Machines": _machines(result),
        "What each change gives on top of the others": _changes(result),
        "Why": _why(result),
        "Learning": _learning(result),
        "Larger batch": _larger_batch(result),
        "Memory": _memory(result),
        "After an epoch": _after_an_epoch(result),
        "Doubts": (f"{one[0].upper()}{one[1:].rstrip('.')}." for one in doubts(result)),
        "Failed": _failed(result),
        "Not tried": _untried(result),
        "In the script instead": _in_the_script(result),
        "The search": _cost(result),
    }
    found = (Section(title, tuple(sentences)) for title, sentences in parts.items())
    return tuple(section for section in found if section.sentences)


def _proof(result: SearchResult) -> Iterator[str]:
    for number, one in enumerate(result.claim, 1):
        where = "the search's own process" if one.is_of_search else f"process {number}"
        where = f"pair {number}" if one.is_pair else where
        first = "as written" if one.starts_as_written else "with the changes"
        turns = "" if one.is_pair else f", {one.rounds} rounds, began {first}"
        yield f"{where}: {times(one.ratio.interval)}{turns}"
    if result.claim and result.candidate_speedup is not None:
        others = " with the other machines" if len(result.shared.pooled) > 1 else ""
        yield f"together{others}: {times(result.unclaimed or result.candidate_speedup)}"
    before, after = result.throughput
    yield f"as written: {rate(before)} samples/s, median and range of the processes"
    if result.changes:
        yield (
            f"with the changes: {rate(after)} samples/s. Each process compares turns side by side, "
            "so these two do not divide to the speedup."
        )
    yield from choice(result)


def _machines(result: SearchResult) -> Iterator[str]:
    for one in result.shared.machines:
        here = " (this one)" if one.is_here else ""
        apart = "; machines differ, so the claim does not rest on it" if one.differs else ""
        yield f"{one.host}{here}: {times(one.speedup)} in {one.counted}{apart}"
    for refusal in result.shared.refusals:
        changes = changes_of(refusal.config, result.baseline)
        yield f"{refusal.host} refused what {refusal.announced_by} found, {changes}: {refusal.why}"
    for group in result.shared.groups:
        gave: str = group.finding
        if group.speedup is not None:
            gave = f"{times(group.speedup)} with {changes_of(group.config, UNCHANGED)}"
        hosts = f", on {', '.join(group.machines)}" if group.machines else ""
        yield f"another kind, {group.machine}: {gave}{hosts}"


def choice(result: SearchResult) -> Iterator[str]:
    """Yield why the recommended config is not the one that looked fastest in the search."""
    ahead = [r.speedup for r in result.records if r.config != result.best and r.speedup]
    own = next((r.speedup for r in result.records if r.config == result.best), None)
    if not result.changes or own is None:
        return
    yield f"In the search it looked {factor(own)}: the best of many measurements is partly luck."
    fastest = max(ahead, key=lambda one: one.estimate, default=own)
    if fastest.estimate > own.estimate:
        yield (
            f"Another config looked {factor(fastest)}: of those that the noise does not tell "
            "apart, the one with the fewest changes is recommended."
        )


def _changes(result: SearchResult) -> Iterator[str]:
    gains = {one.knob: one.gain for one in result.contributions}
    for knob, value in result.changes.items():
        gain = times(gains[knob]) if knob in gains else "not known"
        yield f"{knob}: {said(result.baseline[knob])} → {said(value)}: {gain}"


def _why(result: SearchResult) -> Iterator[str]:
    if result.bottleneck:
        is_one = result.bottleneck.endswith("-bound")
        limited = f"the program is {result.bottleneck}" if is_one else result.bottleneck
        yield f"As written, {limited}. {result.bottleneck_evidence}."
    compilation, steps = result.compilation, result.break_even_steps
    if compilation is not None and steps is not None:
        yield (
            f"A run without a compile cache starts slower ({compilation}); compiling pays off "
            f"after {steps:,} steps."
        )
    yield from (f"{sentence}." for sentence in parallel_notes(result.records, result.best))


def _learning(result: SearchResult) -> Iterator[str]:
    if result.changes:
        yield result.learning.note
        if result.training_note:
            yield result.training_note


def _larger_batch(result: SearchResult) -> Iterator[str]:
    if (larger := result.larger_batch) is None:
        return
    gave = f"{changes_of(larger.config, result.baseline)} gave {times(larger.speedup)}"
    if larger.is_confirmed:
        yield f"{gave} in fresh processes, and learned as well."
    else:
        needs = format_duration(larger.check_s)
        yield f"{gave}. Whether it learns as well is not known; checking that takes {needs}."


def _memory(result: SearchResult) -> Iterator[str]:
    for label, name in (
        ("host", "host_bytes"),
        ("GPU, reserved by torch", "device_reserved_bytes"),
        ("GPU, in use", "device_used_bytes"),
    ):
        before, after = (getattr(memory, name) for memory in result.memory)
        if before is not None:
            yield f"{label}: {gib(before)}" + (f" → {gib(after)}" if result.changes else "")


def _after_an_epoch(result: SearchResult) -> Iterator[str]:
    if result.changes and (passed := note(result.rehearsals, result.best)):
        yield passed
    yield from blames(result.rehearsals)


def _failed(result: SearchResult) -> Iterator[str]:
    for record in result.records[1:]:  # the outcome says whether a config is to blame
        if record.ending is not None and record.outcome in FAILURES:
            changes = changes_of(record.config, result.baseline)
            yield f"{changes} {record.outcome}: {record.ending.reason}"


def _untried(result: SearchResult) -> Iterator[str]:
    if result.untried:
        is_shared = result.head.options.sharing is not None
        why = "there was no time before the claim" if is_shared else "there was no time"
        yield f"{', '.join(result.untried)}: {why}"
    for reason, settings in by_reason(result.refused).items():
        yield f"{', '.join(settings)}: {reason}"


def _in_the_script(result: SearchResult) -> Iterator[str]:
    if result.changes and not result.has_ranks:
        yield f"{apply_line(result.own_file)}  # as its first line"


def _cost(result: SearchResult) -> Iterator[str]:
    ok = sum(record.outcome is Outcome.OK for record in result.records)
    noun = "process" if result.processes == 1 else "processes"
    yield (
        f"{ok} of {len(result.records)} trials measured in {result.processes} {noun}, "
        f"{format_duration(result.seconds)}"
    )
    page = as_typed(result.run_dir / "report.html")
    if page.exists():  # a full disk may have kept it from being written, as was said then
        yield f"as a page: {page}"
