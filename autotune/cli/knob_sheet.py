"""The table of knobs that ``autotune knobs`` prints.

Of a program, it shows each knob's present value and the values that a search would try, or why the
knob is not offered. Without one, it says what each knob sets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from autotune.cli.console import results_console
from autotune.cli.messages import plain
from autotune.knobs import registry
from autotune.knobs.base import Here
from autotune.machine.hardware import Hardware
from autotune.program.domain import NotOffered
from autotune.program.flags import Flag, as_text
from autotune.program.profile import Profile


@dataclass(frozen=True)
class Row:
    """One knob, as it is offered to one program on one machine.

    Attributes:
        changes: ``live`` if a running process can change it, ``restart`` if it needs a fresh one.
        now: The program's own value; empty if the knob is not offered.
        is_hidden: Whether only ``--tune`` and the space ``full`` search it.
    """

    knob: str
    changes: str
    now: str
    values: tuple[str, ...]
    reason: str
    is_hidden: bool = False


def rows(hardware: Hardware, profile: Profile) -> list[Row]:
    """Return a row for every knob, including those that are not offered."""
    found = []
    for name, knob in registry().items():
        offer = knob.domain(Here(hardware, profile))
        if isinstance(offer, NotOffered):
            found.append(Row(name, knob.scope, "", (), offer.reason, knob.is_hidden))
            continue
        now = knob.current(profile)
        domain = offer.including(now)  # a search can always keep the program's value
        values = tuple(map(as_text, domain.values))
        alone = domain.alone or f"{values[0]} is the only value that fits here"
        only = "" if len(values) > 1 else alone
        offered = () if only else values
        found.append(Row(name, knob.scope, as_text(now), offered, only, knob.is_hidden))
    return found


def show(table_rows: Sequence[Row], about: str, flags: Sequence[Flag] = ()) -> None:
    """Print the offered knobs, the others with their reasons, and the program's own flags."""
    out = results_console()
    out.print(f"Knobs for {plain(about)}")
    offered = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("knob", "now", "would be tried", "changes"):
        offered.add_column(column, overflow="fold")
    shown = [row for row in table_rows if not row.is_hidden]
    for row in shown:
        if row.values:
            offered.add_row(row.knob, row.now, ", ".join(row.values), row.changes)
    out.print(offered)
    refused = [row for row in shown if not row.values]
    if refused:
        out.print("Not offered")
        reasons = Table.grid(padding=(0, 2, 0, 0))
        reasons.add_column(no_wrap=True)
        reasons.add_column(style="dim")
        for row in refused:
            reasons.add_row(f"  {row.knob}", plain(row.reason))
        out.print(reasons)
    if hidden := [row.knob for row in table_rows if row.is_hidden and row.values]:
        out.print(f"Seldom of use (--tune NAME, or --space full): {', '.join(hidden)}")
    if flags:
        out.print("Flags of the program: --arg='NAME=value,value' searches them")
        own = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("  flag", "now", "takes", "sets knob"):
            own.add_column(column, overflow="fold")
        for flag in flags:
            now = "" if flag.value is None else plain(as_text(flag.value))
            takes = "on or off" if flag.is_switch else ", ".join(flag.choices) or flag.takes
            own.add_row(f"  {plain(flag.name)}", now, plain(takes), _meaning(flag))
        out.print(own)


def as_json(table_rows: Sequence[Row], about: str, flags: Sequence[Flag] = ()) -> str:
    """Return what ``show()`` prints as JSON."""
    data = {
        "about": about,
        "knobs": [vars(row) for row in table_rows],
        "flags": [
            {
                "flag": flag.name,
                "now": flag.value,
                "takes": ["on", "off"] if flag.is_switch else [*flag.choices] or flag.takes,
                "sets_knob": _meaning(flag) or None,
            }
            for flag in flags
        ],
    }
    return json.dumps(data, indent=1, default=str)


def _meaning(flag: Flag) -> str:
    """Return the knob that a flag sets, which ``--use-flags`` may use it for; empty if none."""
    return next((n for n, knob in registry().items() if flag.words & set(knob.flag_names)), "")


def show_all() -> None:
    """Print what each knob sets."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("knob", "changes", "what it sets"):
        table.add_column(column, overflow="fold")
    for name, knob in registry().items():
        table.add_row(name, knob.scope, plain(knob.summary))
    results_console().print(table)
