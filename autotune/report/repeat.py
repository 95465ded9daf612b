"""Repeat: what somebody needs to make the same search again, and to compare what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from autotune.measurement.goal import Objective
from autotune.program.flags import as_text
from autotune.program.may_change import MayChange
from autotune.program.revision import commit_of
from autotune.results.record import SearchInfo
from autotune.results.result import SearchResult
from autotune.results.verdict import Row
from autotune.results.wording import format_duration, machine

SPACE = "default"  # that a search takes if none is named


def repeat(result: SearchResult) -> Iterator[Row]:
    """Yield the command and the facts that a search depends on."""
    head = result.head
    yield Row("command", command(head), is_command=True)
    spent = format_duration(result.seconds)
    yield Row("budget", f"{format_duration(head.options.budget_s)}, of which {spent} were used")
    yield Row("seed", str(head.options.seed))
    commit = commit_of(head.program)
    yield Row("commit", commit or "none that holds the script as it was searched")
    yield Row("script", f"SHA-256 {head.program.fingerprint[:16]}…")
    where, _, versions = machine(result.hardware).partition("; ")
    yield Row("machine", where)
    yield Row("versions", versions)
    yield Row("date", head.created)


def command(head: SearchInfo) -> str:
    """Return the line that begins such a search, with what differs from the defaults."""
    return " ".join(["autotune search", *_options(head), str(head.program)])


def _options(head: SearchInfo) -> Iterator[str]:
    space, options, goal = head.space, head.options, head.options.goal
    yield f"--budget {options.budget_s:g}s"
    if space.name != SPACE:
        yield f"--space {quote(space.name)}"
    if space.requested:
        yield f"--tune {quote(','.join(sorted(space.requested)))}"
    held = {name: (value,) for name, value in space.fixed.items()}
    offered = {name: values for name, values in space.knobs.items() if values is not None}
    for name, values in {**offered, **held}.items():
        if space.name == SPACE:  # a file has its own values
            listed = ",".join(map(as_text, values))
            yield f"--set {quote(f'{name}={listed}')}"
    said = {
        "may-change": "" if options.may_change is MayChange.ROUNDING else str(options.may_change),
        "objective": "" if goal.objective is Objective.THROUGHPUT else str(goal.objective),
        "for-hours": "" if goal.hours is None else f"{goal.hours:g}",
        "max-memory": "" if goal.max_memory is None else f"{goal.max_memory:.0%}",
        "max-global-batch": str(space.max_global_batch or ""),
        "lr-rule": str(options.lr_rule or ""),
        "seed": str(options.seed or ""),
        "sampler": "" if options.sampler == "autotune" else options.sampler,
    }
    yield from (f"--{name} {value}" for name, value in said.items() if value)
    yield from (["--keep-global-batch"] if space.keeps_global_batch else [])
    yield from options.fence.words
