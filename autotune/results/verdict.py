"""Verdict: what a search found on one screen, for the console and the report; without markup.

It answers what came out, why, and what to do next, in few rows. All that is known beyond is in
``results.details``.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote

from autotune.errors import FileFormatError
from autotune.knobs.space.tuning_variables import unlisted
from autotune.measurement.claim import least_processes
from autotune.measurement.interval import Interval
from autotune.measurement.outcome import ENDED_BY_US
from autotune.program.config import Config, KnobValue
from autotune.program.lr import global_batch
from autotune.program.program import ProgramKind
from autotune.results import bestfile
from autotune.results.doubts import disturbance, doubts, left_to_edit
from autotune.results.figures import Figures
from autotune.results.finding import Finding
from autotune.results.output import BEST
from autotune.results.rehearsals import trained
from autotune.results.result import SearchResult
from autotune.results.shared_answer import MachineClaim
from autotune.results.wording import (
    UNKNOWN,
    as_typed,
    bounds,
    factor,
    format_duration,
    listing,
    percent,
    printed,
    times,
    typed_duration,
)

MOST_CHANGES = 4  # rows of changes; the last one says how many more there are
KEEPS_MEMORY = "keep_freed_memory"  # held in all configs that play, for fair turns
ROOM = 62  # columns beside the labels of a screen of 80
FIRST = "on an idle machine: "  # on a busy machine, more time alone helps little
KEPT = "nothing was changed"
DIFFER = "they differ, so each has its own: "


@dataclass(frozen=True)
class Row:
    """A line of the screen.

    Attributes:
        is_command: Whether it holds a line to type, which is never broken.
    """

    label: str
    text: str
    is_command: bool = False


@dataclass(frozen=True)
class Change:
    """A setting that the recommended config changes.

    Attributes:
        values: Both values: ``0 → 2``.
        gain: What it gives on top of the others, as the screen says it; empty if not known.
        measured: The same with its interval; None if not known.
        learning: What it changes in what is learned; empty where it changes nothing.
    """

    setting: str
    values: str
    gain: str
    measured: Interval | None
    learning: str


@dataclass(frozen=True)
class Verdict:
    """What a search found, in the order in which it is read.

    Attributes:
        facts: What was measured, and why it is so.
        changes: The settings of the recommended config, the largest gain first.
        groups: What machines of other kinds found in the same study.
        rest: What to type, what to doubt, and where more is told.
    """

    finding: Finding
    headline: str
    facts: tuple[Row, ...]
    changes: tuple[Change, ...]
    rest: tuple[Row, ...]
    groups: tuple[Row, ...] = ()

    @property
    def few_changes(self) -> tuple[tuple[Change, ...], int]:
        """The changes that the screen has room for, and how many more there are."""
        if len(self.changes) <= MOST_CHANGES:
            return self.changes, 0
        return self.changes[: MOST_CHANGES - 1], len(self.changes) - MOST_CHANGES + 1


def verdict(result: SearchResult, output: Path) -> Verdict:
    """Return what a search found, in words; *output* is where best.yaml was written."""
    finding, changes, rest = result.finding, tuple[Change, ...](), _next(result, output)
    match finding:
        case Finding.FASTER:
            headline, facts = _faster(result), _gained(result)
            changes, rest = tuple(changes_in(result)), _to_train(result, output)
        case Finding.NOTHING_FOUND:
            headline, facts = f"No faster settings found; {KEPT}", _nothing_found(result)
        case Finding.TOO_NOISY:
            headline, facts = _too_noisy(result), _unclear(result)
        case Finding.UNCONFIRMED if result.candidate_speedup is not None:
            headline, facts, rest = _looks(result), _unconfirmed(result), _to_confirm(result)
        case Finding.UNCONFIRMED:
            headline, facts = f"Ended before anything faster was found; {KEPT}", _ended(result)
        case Finding.AT_LIMIT:
            headline = "Already at this machine's limit; no setting can make it much faster"
            facts = _at_limit(result)
        case Finding.NOT_MEASURED:
            headline = f"Only the program as written could be measured; {KEPT}"
            facts = _ended(result)
    told = (*facts, *_machines(result))
    return Verdict(finding, headline, told, changes, tuple(rest), tuple(_groups(result)))


def changes_of(config: Config, baseline: Config) -> str:
    """Return the settings in which a config differs: ``workers=2 compile=off``."""
    return " ".join(f"{k}={v}" for k, v in config.changes_from(baseline).items())


# --- faster ---------------------------------------------------------------------------------------


def _faster(result: SearchResult) -> str:
    low, high = bounds(result.speedup)
    where = ", confirmed in fresh processes"
    if len(result.shared.pooled) > 1:
        where = " on another machine like these"
    gain = f"{factor(result.speedup)} {result.head.options.goal.better}"
    return f"{gain}{where} (95 % between {low} and {high})"


def _gained(result: SearchResult) -> Iterator[Row]:
    figures = result.figures
    before, after = result.memory
    if figures.quantity is not None:
        name = "GPU memory" if before.is_on_device else "memory"
        text = figures.change
        if before.peak_bytes and after.peak_bytes and figures.quantity.unit != "GiB":
            sizes = [f"{size / 2**30:.2f}" for size in (before.peak_bytes, after.peak_bytes)]
            text += f"   {name}  {sizes[0]} → {sizes[1]} GiB"
        yield Row(figures.quantity.name, text)
    if figures.training is not None:
        yield Row("your training", str(figures.training))
        yield Row("pays", _pays(figures))
    yield from _why(result)


def _pays(figures: Figures) -> str:
    assert figures.training is not None, "it is about its time"
    cost = f"the search took {format_duration(figures.search_s)}"
    match figures.pays_from:
        case None:
            return f"not in a training this short ({cost})"
        case 1:
            saved, whole = figures.training.saved_s, figures.training.before_s
            return f"saves {format_duration(saved)} of {format_duration(whole)}; {cost}"
        case number:
            return f"from the {_ordinal(number)} training on ({cost})"


def changes_in(result: SearchResult) -> Iterator[Change]:
    """Yield what a recommended config changes, the largest gain first.

    That it keeps freed memory is told only where it changes nothing else.
    """
    gains = {one.knob: one.gain for one in result.contributions}
    told = {k: v for k, v in result.changes.items() if k != KEEPS_MEMORY} or result.changes
    by_gain = sorted(told, key=lambda knob: -gains[knob].estimate if knob in gains else math.inf)
    learning = _learning_of(result, by_gain)
    for knob in by_gain:
        # One change has given the whole claim
        gain, measured = "", gains.get(knob)
        if measured is not None and len(told) > 1:
            gain = _gain(measured, result.speedup)
        values = f"{said(result.baseline[knob])} → {said(told[knob])}"
        yield Change(knob, values, gain, measured, learning.get(knob, ""))


def _gain(gain: Interval, claim: Interval) -> str:
    if gain.estimate > claim.high:  # measured in the search, in another mood of the machine
        return "most of it"
    decimals = 1 if abs(gain.estimate - 1) >= 0.1 else 2
    is_noise = gain.low <= 1.0 <= gain.high
    return f"~{gain.estimate:.{decimals}f}x{' or none' if is_noise else ''}"


def _learning_of(result: SearchResult, knobs: Sequence[str]) -> Mapping[str, str]:
    """Return what settings change in what is learned, by the comparison of the whole config."""
    record = trained(result.rehearsals, result.best)
    if record is None:
        return {}
    first, *others = [knob for knob in knobs if knob in record.by_design] or [""]
    learned = f"loss {record.gap}" if record.gap else "loss not compared"
    return {first: learned} | dict.fromkeys(others, "as above")


def said(value: KnobValue) -> str:
    """Return a setting's value as people say it."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _to_train(result: SearchResult, output: Path) -> Iterator[Row]:
    yield from _larger_batch(result, output)
    yield Row("train with it", _run(result, output), is_command=True)
    for doubt in itertools.islice(doubts(result), 1):
        yield Row("doubts", _clause(doubt))
    yield _more(result)


def _run(result: SearchResult, path: Path) -> str:
    """Return the line that trains with a file.

    Where it is long, it leaves out a program that ``autotune run`` finds in this folder's record.
    """
    variables = unlisted(k.removeprefix("$") for k in result.changes if k.startswith("$"))
    if result.head.program.kind is ProgramKind.PICKLED_FUNCTION:
        return apply_line(path, variables)
    option = f"--allow-env {','.join(variables)} " if variables else ""
    line = f"autotune run {option}{quote(str(path))}"
    whole = f"{line} {result.head.program}"
    return line if len(whole) > ROOM and result.head.is_plain else whole


def apply_line(path: Path, variables: Sequence[str] = ()) -> str:
    """Return the line of Python that applies a best.yaml."""
    allowed = f", allow_env={[*variables]}" if variables else ""
    return f'import autotune; autotune.apply("{path}"{allowed})'


def _larger_batch(result: SearchResult, output: Path) -> Iterator[Row]:
    larger = result.larger_batch
    if larger is None or larger.speedup.estimate <= result.speedup.estimate:
        return
    size = global_batch(larger.config)
    at = "" if size is None else f" at batch {size}"
    if larger.is_confirmed:
        line = f"autotune run --larger-batch {quote(str(output))}"
        yield Row("larger batch", f"{factor(larger.speedup)}{at}: {line}", is_command=True)
        return
    line = f"{result.head.to_resume(result.run_dir.name)} --may-change batch"
    yield Row("larger batch", f"~{factor(larger.speedup)}{at}? {line}", is_command=True)


def _clause(sentence: str) -> str:
    """Return what fits on one line of a sentence: its first clause, if it is longer."""
    short = sentence if len(sentence) <= ROOM else re.split(r"[:;.] ", sentence)[0]
    text = textwrap.shorten(short.rstrip("."), ROOM, placeholder=" …")
    return f"{text[0].lower()}{text[1:]}"


# --- several machines -----------------------------------------------------------------------------


def _machines(result: SearchResult) -> Iterator[Row]:
    """Yield which machines a claim rests on, in a search that several share."""
    shared = result.shared
    own, others = shared.pooled, [one for one in shared.machines if one.differs]
    if others:
        each = listing([_machine(one) for one in shared.machines], ROOM - len(DIFFER))
        yield Row("machines", f"{DIFFER}{each}")
    elif len(own) > 1:
        counts = f"{len(own)} machines, {sum(one.processes for one in own)} processes: "
        yield Row("machines", counts + listing([*map(_machine, own)], ROOM - len(counts)))
    elif own:
        is_refused = result.candidate in {one.config for one in shared.refusals}
        why = "another one has refused it" if is_refused else "no second one has confirmed it"
        yield Row("machines", f"measured on this machine only: {why}")
    for refusal in itertools.islice(reversed(shared.refusals), 1):
        changes, host = changes_of(refusal.config, result.baseline), refusal.host.partition(".")[0]
        text = f"on {host}: {changes}: {refusal.why}"
        yield Row("refused", textwrap.shorten(text, ROOM, placeholder=" …"))


def _machine(one: MachineClaim) -> str:
    return f"{one.host.partition('.')[0]} {factor(one.speedup)}"


def _groups(result: SearchResult) -> Iterator[Row]:
    for number, one in enumerate(result.shared.groups):
        found = one.finding if one.speedup is None else f"{factor(one.speedup)}"
        text = textwrap.shorten(f"{found} on {one.machine}", ROOM, placeholder=" …")
        yield Row("" if number else "other kinds", text)


# --- not faster -----------------------------------------------------------------------------------


def _nothing_found(result: SearchResult) -> Iterator[Row]:
    yield from _as_written(result)
    yield from _attempt(result)
    speedup = result.attempt_speedup
    if speedup is not None:
        percent = 100 * (printed(speedup).high - 1)
        ruled_out = f"a gain of more than {percent:.0f} % is ruled out for it"
        yield Row("that means", ruled_out if percent >= 1 else "it is not faster than as written")
    elif any(record.is_blamed for record in result.rehearsals):
        yield Row("refused", "what was faster trains otherwise, or fails: autotune show -v")
    elif len(result.records) < 2 and not result.untried:
        yield Row("tried", "nothing: no other setting can act on this program here")
    yield from _why(result)
    for sentence in itertools.islice(left_to_edit(result), 1):
        yield Row("besides", _clause(sentence.partition(". ")[0]))


def _at_limit(result: SearchResult) -> Iterator[Row]:
    yield from _as_written(result)
    if (limit := result.limit) is not None:
        shares = sorted(limit.shares.items(), key=lambda part: -part[1])
        yield Row("a step", " · ".join(f"{name} {percent(share)}" for name, share in shares))
        if limit.peak_share is not None:
            yield Row("arithmetic", f"{percent(limit.peak_share)} of the GPU's published peak")
        gains = " · ".join(f"{name} {gain:.2f}x" for name, gain in limit.bounds.items())
        yield Row("at no cost", f"{gains}: not more to gain")
    yield from _attempt(result)
    yield Row("what is left", "the model: fewer operations, other kernels, more devices")
    yield Row("time", f"the search took {format_duration(result.seconds)}")


def _too_noisy(result: SearchResult) -> str:
    speedup = result.attempt_speedup
    assert speedup is not None, "its interval leaves a gain"
    # What a config must gain for its interval to leave out 1
    least = math.sqrt(speedup.high / speedup.low)
    below = f" for gains below {least:.1f}x" if speedup.high <= UNKNOWN * speedup.low else ""
    return f"Cannot tell: this machine is too noisy{below}"


def _unclear(result: SearchResult) -> Iterator[Row]:
    yield from _as_written(result)
    yield from _attempt(result)
    each = ", ".join(factor(one.ratio.interval) for one in result.claim)
    if busy := disturbance(result):
        yield Row("why", busy)
    elif each:
        yield Row("why", f"equal processes differ: they gave {each}")


def _looks(result: SearchResult) -> str:
    speedup, better = result.candidate_speedup, result.head.options.goal.better
    assert speedup is not None, "it was measured"
    if speedup.low <= 1.0:
        return f"Cannot tell yet: what looked best may be no {better}; {KEPT}"
    # A figure of which half may be noise is not one to remember
    by = "" if speedup.estimate > 2 * speedup.low else f"{factor(speedup)} "
    return f"Looks {by}{better}, but that is not confirmed; {KEPT}"


def _unconfirmed(result: SearchResult) -> Iterator[Row]:
    assert result.candidate is not None, "it was measured"
    if (found := result.candidate_speedup) is not None:
        tried = len({record.config for record in result.records[1:]})
        luck = f"; best of {tried}, so partly luck" if tried > 1 else ""
        yield Row("in the search", f"{times(found)}{luck}")
    yield Row("settings", listed(result.candidate, result.baseline, -ROOM))  # on two lines
    fresh = [one for one in result.claim if not one.is_of_search]
    least = least_processes(apart=any(one.is_pair for one in result.claim))
    if len(fresh) < least:
        of_all = f" of {least}" if fresh else ""
        missing = f"{least - len(fresh)}{of_all} fresh processes"
        if fresh:
            gave = ", ".join(factor(one.ratio.interval) for one in fresh)
            missing += f"; {'the other' if len(fresh) == 1 else 'the others'} gave {gave}"
        elif result.facts is not None:
            missing += f" (the program starts in {format_duration(result.facts.startup_s)})"
        yield Row("missing", missing)
    if result.reason:
        yield Row("because", result.reason)
    if busy := disturbance(result):
        yield Row("doubts", busy)


def _to_confirm(result: SearchResult) -> Iterator[Row]:
    yield from _resume(result, "confirm it", FIRST if disturbance(result) else "")
    speedup = result.candidate_speedup
    if result.own_file.exists() and speedup is not None and speedup.low > 1.0:
        yield Row("or just try it", _run(result, result.own_file), is_command=True)
    yield _more(result)


def _ended(result: SearchResult) -> Iterator[Row]:
    yield from _as_written(result)
    yield from _attempt(result)
    if result.reason:
        yield Row("because", result.reason)


def _as_written(result: SearchResult) -> Iterator[Row]:
    if (quantity := result.figures.quantity) is not None:
        yield Row(quantity.name, f"{quantity} as written")


def _attempt(result: SearchResult) -> Iterator[Row]:
    speedup = result.attempt_speedup
    if speedup is None or result.attempt is None:
        return
    gave = times(speedup)
    yield Row("best attempt", f"{listed(result.attempt, result.baseline, len(gave) + 2)}: {gave}")


def _why(result: SearchResult) -> Iterator[Row]:
    first, *more = result.bottleneck_evidence.split(". ")
    if first:
        both = f"{first}; {more[0][0].lower()}{more[0][1:]}" if more else first
        yield Row("why", _clause(both if len(both) <= ROOM else first))


def _next(result: SearchResult, output: Path) -> Iterator[Row]:
    """Yield what to do where nothing is recommended; more time only where that can help."""
    untried = ", ".join(result.untried)
    if untried and result.finding is not Finding.AT_LIMIT:
        yield Row("not tried", untried)
    has_failed = any(
        record.ending is not None and record.outcome not in ENDED_BY_US
        for record in result.records[1:]
    )
    is_busy = result.finding is Finding.TOO_NOISY and disturbance(result)
    if {
        Finding.NOTHING_FOUND: bool(untried),
        Finding.NOT_MEASURED: not has_failed,
        Finding.TOO_NOISY: True,
        Finding.UNCONFIRMED: True,
    }.get(result.finding, False):
        yield from _resume(result, "to go on", FIRST if is_busy else "")
    yield from _larger_batch(result, output)
    ended = result.finding in {Finding.NOTHING_FOUND, Finding.TOO_NOISY}
    if ended and result.own_file.name != BEST.name:  # which may hold a larger batch alone
        yield Row("best.yaml", _kept(BEST))
    yield _more(result)


def _kept(path: Path) -> str:
    """Return what becomes of the best.yaml that people have."""
    try:
        before = bestfile.read(path)
        date = datetime.fromtimestamp(path.stat().st_mtime, UTC).astimezone()
    except (FileFormatError, OSError):
        return "not written; the file that is there is kept" if path.exists() else "not written"
    return f"not written; the one of {date:%d %b} ({factor(before.speedup)}) is kept"


def _resume(result: SearchResult, label: str, before: str = "") -> Iterator[Row]:
    if result.worth_s is not None:
        line = result.head.to_resume(result.run_dir.name)
        line += f" --budget {typed_duration(result.worth_s)}"
        first = before if len(before + line) <= ROOM else ""
        yield Row(label, f"{first}{line}", is_command=True)


def _more(result: SearchResult) -> Row:
    shown = [f"autotune show {quote(result.run_dir.name)} -v"]
    if result.finding in {Finding.NOTHING_FOUND, Finding.AT_LIMIT} and (
        result.head.program.kind is not ProgramKind.PICKLED_FUNCTION
    ):
        shown.append(f"autotune doctor {result.head.program}")
    elif (page := as_typed(result.run_dir / "report.html")).exists():
        shown.append(quote(str(page)))
    both = "  ·  ".join(shown)
    return Row("more", both if len(both) <= ROOM else shown[0], is_command=True)


def listed(config: Config, baseline: Config, taken: int = 0) -> str:
    """Return the settings that a config changes: ``workers 0 → 1, precision fp32 → bf16``.

    Args:
        taken: Columns of the line that something else takes; what does not fit is counted.
    """
    changes = config.changes_from(baseline)
    told = [k for k in changes if k != KEEPS_MEMORY] or [*changes]
    items = [f"{knob} {said(baseline[knob])} → {said(changes[knob])}" for knob in told]
    return listing(items, ROOM - taken)


def _ordinal(number: int) -> str:
    last = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{last}"
