"""Agreement: what the members of a shared study must have in common, and how one differs.

Rounds and claims of several machines are compared as if one machine had played them, so all of them
must have run the same program, and a config must mean the same to all. Budget, fence, sampler, seed
and output are each member's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from autotune.errors import UsageError
from autotune.program.program import Program, ProgramKind
from autotune.results.record import SearchInfo, SearchOptions
from autotune.sharing.entries import Agreement

DIGITS = 8  # of a SHA-256, which tell two files apart
WIDEST = 60  # characters of a value that differs
MOST_DIFFERENCES = 3
# What a difference is called, by the field of an agreement; the space is told by its settings
NAMES = {
    "version": "autotune",
    "line": "the line",
    "may_change": "--may-change",
    "goal": "the goal",
}


def agreement_of(head: SearchInfo) -> Agreement:
    """Return what a search must have in common with the others of its study.

    Raises:
        UsageError: Its program is a function of a notebook, which other machines cannot have.
    """
    program, options = head.program, head.options
    if program.kind is ProgramKind.PICKLED_FUNCTION:
        raise UsageError(
            f"'{program.name}' is a function of this process alone. Write it into a file, so that "
            "other machines can search it, too: file.py:function"
        )
    return Agreement(
        version=head.hardware.versions.get("autotune-torch", ""),
        fingerprint=program.fingerprint,
        line=_line(program),
        space=_space(head),
        may_change=str(options.may_change),
        goal=_goal(options),
    )


def disagreement(study: str, theirs: Agreement, ours: Agreement) -> str:
    """Return in one line how a search differs from a study of this name; empty if it does not."""
    differences = [*_differences(theirs, ours)]
    if not differences:
        return ""
    more = len(differences) - MOST_DIFFERENCES
    told = "; ".join(differences[:MOST_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
    return (
        f"The study '{study}' searches something else: {told}. Start what the others have started, "
        "or choose another --name."
    )


def _differences(theirs: Agreement, ours: Agreement) -> Iterator[str]:
    for field in theirs.differences(ours):
        their_value, our_value = getattr(theirs, field), getattr(ours, field)
        match field:
            case "fingerprint" if theirs.line != ours.line:
                continue  # of another program
            case "fingerprint":
                at, mine = their_value[:DIGITS], our_value[:DIGITS]
                yield f"the fingerprint of {_cut(theirs.line)} is {at}… there, and {mine}… here"
            case "space":
                yield from _settings(their_value, our_value)
            case _:
                yield _told(NAMES[field], their_value, our_value)


def _settings(theirs: str, ours: str) -> Iterator[str]:
    there, here = (_read(text) for text in (theirs, ours))
    for name in sorted({*there, *here}):
        told = [_values(one, name) for one in (there, here)]
        if told[0] != told[1]:
            yield _told(name, *told)
    if there == here:  # it holds what this autotune cannot read
        yield "other settings are searched there"


def _told(what: str, theirs: str, ours: str) -> str:
    return f"{what} is '{_cut(theirs)}' there, and '{_cut(ours)}' here"


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _values(settings: Mapping[str, Any], name: str) -> str:
    if name not in settings:
        return "not searched"
    value = settings[name]
    listed = value if isinstance(value, list) else [value]
    return "left open" if value is None else ", ".join(map(str, listed))


def _line(program: Program) -> str:
    ranks = "" if program.ranks is None else f" ({program.ranks} ranks)"
    return f"{program}{ranks}"


def _goal(options: SearchOptions) -> str:
    goal = options.goal
    limit = "" if goal.max_memory is None else f", --max-memory {goal.max_memory:g}"
    hours = "" if goal.hours is None else f", --for-hours {goal.hours:g}"
    return f"{goal.objective}{limit}{hours}"


def _space(head: SearchInfo) -> str:
    """Return what is searched as JSON, one key a setting; equal for equal spaces.

    A config of another rule trains with another rate, so the rule belongs to it.
    """
    space = head.space
    settings: dict[str, Any] = {
        **space.knobs,
        **space.fixed,
        "--keep-global-batch": space.keeps_global_batch,
        "--max-global-batch": space.max_global_batch,
        "--use-flags": space.uses_flags,
        "--lr-rule": head.options.lr_rule,
    }
    return json.dumps(settings, sort_keys=True)


def _read(text: str) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    return {}
