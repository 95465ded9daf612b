"""The report at the end of a search, on stdout: the result, its cost, and how to use it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import assert_never

from rich.console import Console, RenderableType
from rich.table import Table

from autotune.cli.console import bounds, plain
from autotune.measurement.interval import Interval
from autotune.measurement.learning.gradient_noise import MOST
from autotune.measurement.memory import Memory
from autotune.measurement.outcome import Outcome
from autotune.program.dangerous_variables import dangerous
from autotune.program.lr import global_batch
from autotune.program.program import ProgramKind
from autotune.results.blame import FAILURES
from autotune.results.result import Finding, SearchResult
from autotune.tuning.budget import format_duration

MUCH_NARROWER = 0.5  # factor on the interval from which a correction is worth a line


def show(result: SearchResult, output: Path) -> None:
    """Print the report.

    Args:
        result: What the search found.
        output: Where best.yaml was written, for the commands to type.
    """
    out = Console(highlight=False, soft_wrap=True)
    out.print()
    for part in (
        *_headline(result),
        _before_after(result),
        *_whole_run(result),
        *_changes(result),
        *_footnotes(result, output),
        *_commands(result, output),
    ):
        out.print(part)


def _headline(result: SearchResult) -> Iterator[str]:
    match result.finding:
        case Finding.FASTER:
            speedup = result.speedup
            yield (
                f"[bold green]{speedup.estimate:.2f}x {_better(result)}[/] {bounds(speedup)}, "
                "confirmed in fresh processes"
            )
            yield from _winners_curse(result)
        case Finding.NO_GAIN:
            yield "[bold]No significant gain:[/] your program's own config is kept."
            yield from _faster_evaluation(result)
            yield from _why_no_gain(result)
            yield from _larger_batch(result)
        case Finding.NOTHING:
            yield (
                f"[bold red]Nothing could be measured:[/] {plain(result.reason)}. Your program's "
                "own config is kept."
            )
        case Finding.UNCONFIRMED if result.candidate is None:
            yield (
                f"[bold yellow]Only the baseline was measured[/] ({plain(result.reason)}): your "
                "program's own config is kept."
            )
            yield _go_on(result)
        case Finding.UNCONFIRMED:
            yield (
                f"[bold yellow]Not confirmed[/] ({plain(result.reason)}): your program's own "
                "config is kept."
            )
            if result.candidate is not None:
                yield f"{_live(result)}{_unclaimed(result)}."
                yield from _own_batch(result)
            yield from _larger_batch(result)
            yield _go_on(result)
        case _:
            assert_never(result.finding)


def _faster_evaluation(result: SearchResult) -> Iterator[str]:
    """Tell what makes epochs faster although the training loop stays as it is."""
    whole = result.whole_run
    if result.applied.evaluation and whole is not None and whole.speedup is not None:
        yield (
            f"[bold green]Its epochs are {whole.speedup.estimate:.2f}x faster[/] "
            f"{bounds(whole.speedup)}, by a faster evaluation alone."
        )


def _why_no_gain(result: SearchResult) -> Iterator[str]:
    if result.candidate_speedup is not None:
        speedup = result.candidate_speedup
        yield (
            f"  The best candidate came out at {speedup.estimate:.2f}x {bounds(speedup)} "
            "in fresh processes."
        )
    elif any(record.is_blamed for record in result.rehearsals):
        yield "  The configs that were faster are not recommended; the reasons are below."
    elif any(record.measurement is not None for record in result.records[1:]):
        yield "  No config that was measured looked fast enough to be worth a confirmation."
    else:
        yield "  There was no other config that could be tried here."


def _better(result: SearchResult) -> str:
    return result.head.options.goal.objective.better


def _live(result: SearchResult) -> str:
    """Say what the search measured of the candidate, as the beginning of a sentence."""
    assert result.candidate is not None, "the finding is about one"
    assert result.candidate_speedup is not None, "a candidate was measured"
    changes = result.candidate.changes_from(result.baseline)
    listed = " ".join(f"{knob}={value}" for knob, value in changes.items())
    speedup = result.candidate_speedup
    gave = f"{speedup.estimate:.2f}x {bounds(speedup)}"
    return f"  During the search, {plain(listed)} gave {gave}"


def _unclaimed(result: SearchResult) -> str:
    few = result.unclaimed
    return "" if few is None else f"; fresh processes gave {few.estimate:.2f}x {bounds(few)}"


def _go_on(result: SearchResult) -> str:
    return (
        f"  Go on with: autotune resume {quote(result.run_dir.name)} --budget "
        f"{math.ceil(result.worth_s)}s (in all, the {format_duration(result.seconds)} so far "
        "included)"
    )


def _winners_curse(result: SearchResult) -> Iterator[str]:
    """Explain why the confirmed speedup is lower than the one the search measured, if it is.

    The best of many noisy measurements overestimates its true value (the winner's curse).
    """
    searched = [r.speedup for r in result.records if r.config == result.best and r.speedup]
    if searched and searched[0].estimate > result.speedup.estimate:
        yield (
            f"  [dim]The search measured {searched[0].estimate:.2f}x: the best of "
            f"{len({r.config for r in result.records})} is partly luck, so only the confirmation "
            "counts.[/]"
        )


def _before_after(result: SearchResult) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 2))
    for column in ("", "before", "after"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("samples/s", *map(_rate, result.throughput))
    for label, name in (
        ("host memory", "host_bytes"),
        ("GPU memory reserved", "device_reserved_bytes"),
        ("GPU memory in use", "device_used_bytes"),
    ):
        if getattr(result.memory[0], name) is not None:
            table.add_row(label, *(_size(memory, name) for memory in result.memory))
    return table


def _whole_run(result: SearchResult) -> Iterator[str]:
    told = result.whole_run or result.training_steps
    if told is not None:
        yield from map(plain, told.sentences)


def _changes(result: SearchResult) -> Iterator[str]:
    if not result.changes:
        return
    yield "Changed:"
    for knob, value in result.changes.items():
        yield f"  {plain(knob)}: {plain(result.baseline[knob])} → {plain(value)}"
    yield f"Learning: {plain(result.learning_note)}"
    yield from _own_batch(result)
    yield from _larger_batch(result)
    compilation, steps = result.compilation, result.break_even_steps
    if compilation is not None and steps is not None:
        yield (
            f"A run without a compile cache starts slower ({compilation}); compiling pays off "
            f"after {steps:,} steps."
        )


def _larger_batch(result: SearchResult) -> Iterator[str]:
    """Tell what larger steps would gain, and what it takes to know what they learn."""
    if (larger := result.larger_batch) is None:
        return
    changes = larger.config.changes_from(result.baseline)
    listed = " ".join(f"{knob}={value}" for knob, value in changes.items())
    yield (
        f"Larger steps are faster: {plain(listed)} gave {larger.speedup.estimate:.2f}x "
        f"{bounds(larger.speedup)} in the search. What they learn was not checked; that needs "
        f"{math.ceil(larger.check_s / 60)} min more: autotune resume {quote(result.run_dir.name)} "
        "--check-learning"
    )


def _own_batch(result: SearchResult) -> Iterator[str]:
    """Where the batch grew, tell what was best without that."""
    shown = result.best if result.changes else result.candidate
    own = global_batch(result.baseline)
    if shown is None or own is None or global_batch(shown) == own:
        return
    if result.own_batch is None:
        yield f"With the program's own {own} samples in a step, no faster config was found."
        return
    config, speedup = result.own_batch
    changes = config.changes_from(result.baseline)
    listed = " ".join(f"{knob}={value}" for knob, value in changes.items())
    yield (
        f"With the program's own {own} samples in a step, the fastest was {plain(listed)}: "
        f"{speedup.estimate:.2f}x {bounds(speedup)} in the search, not confirmed. "
        "--keep-global-batch searches for it."
    )


def _footnotes(result: SearchResult, output: Path) -> Iterator[str]:
    yield from _correction(result)
    yield from _noise(result)
    for warning in result.warnings:
        yield f"[yellow]{plain(warning)}[/]"
    if result.steps_note:
        yield plain(result.steps_note)
    for note in result.rehearsal_notes:
        yield plain(note)
    for note in result.parallel_notes:
        yield f"{plain(note)}."
    yield from _failures(result)
    for sentence in result.bounded:
        yield f"[dim]Not tried: {plain(sentence)}.[/]"
    if result.untried:
        values = plain(", ".join(result.untried))
        yield f"[dim]Not measured: {values} (a longer --budget leaves time).[/]"
    ok = sum(record.outcome is Outcome.OK for record in result.records)
    noun = "process" if result.processes == 1 else "processes"
    yield (
        f"[dim]{ok} of {len(result.records)} trials measured in {result.processes} {noun}, "
        f"{format_duration(result.seconds)}; config: {plain(output)}, record: "
        f"{plain(result.run_dir)}[/]"
    )


def _noise(result: SearchResult) -> Iterator[str]:
    """Say up to which size of a step its samples are useful."""
    if (noise := result.noise) is None:
        return
    high = f"{noise.high:,.0f}" if noise.high < MOST else "any number"
    yield (
        f"Largest useful step: about {noise.estimate:,.0f} samples ({noise.low:,.0f} to {high}), "
        "by the noise of the gradients early in the training; later, larger steps pay."
    )


def _correction(result: SearchResult) -> Iterator[str]:
    """Say how much narrower the interval is because the machine's pace was measured."""
    raw, speedup, factors = result.raw_speedup, result.candidate_speedup, result.corrections
    if raw is None or speedup is None or factors is None:
        return
    if speedup.half_width_pct < MUCH_NARROWER * raw.half_width_pct:
        yield (
            f"[dim]The machine ran at {factors[0]:.2f} to {factors[1]:.2f} of its usual pace. That "
            "was measured apart from the program and taken out; without that, the speedup is "
            f"{raw.estimate:.2f}x {bounds(raw)}.[/]"
        )


def _failures(result: SearchResult) -> Iterator[str]:
    """Name the configs that ended in an exception; the outcome says whether they are to blame."""
    for record in result.records[1:]:
        if record.ending is not None and record.outcome in FAILURES:
            changes = record.config.changes_from(result.baseline)
            listed = " ".join(f"{knob}={value}" for knob, value in changes.items())
            yield f"[dim]{plain(listed)} {record.outcome}: {plain(record.ending.reason)}[/]"


def _commands(result: SearchResult, output: Path) -> Iterator[str]:
    if not result.changes and not result.applied.evaluation:
        return
    yield "Use it:"
    variables = dangerous([k.removeprefix("$") for k in result.changes if k.startswith("$")])
    if result.head.program.kind is ProgramKind.PICKLED_FUNCTION:
        yield f"  import autotune; {_apply(output, variables)}  # before calling the function"
        return
    allowed = f"--allow-env {','.join(variables)} " if variables else ""
    yield f"  autotune run {allowed}{plain(output)} {plain(result.head.program)}"
    if result.has_ranks:
        return
    yield f"  or as first line of the script: import autotune; {_apply(output, variables)}"


def _apply(output: Path, variables: list[str]) -> str:
    allowed = f", allow_env={plain(variables)}" if variables else ""
    return f'autotune.apply("{plain(output)}"{allowed})'


def _rate(interval: Interval) -> str:
    digits = 1 if interval.estimate < 100 else 0
    return f"{interval.estimate:,.{digits}f} {bounds(interval)}"


def _size(memory: Memory, name: str) -> str:
    size = getattr(memory, name)
    return "unknown" if size is None else f"{size / 2**30:.2f} GiB"
