"""What ``autotune search --dry-run`` prints: what a search would try, and why not more.

The program was started once, as written, as a search starts it; nothing else was tried or kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.text import Text

from autotune.cli.stdout import print_json, results_console, table
from autotune.knobs import registry
from autotune.program.flags import Flag, as_text
from autotune.results.wording import by_reason, format_duration, typed_duration
from autotune.tuning.budget import Missed, Reach
from autotune.tuning.outlook import Outlook
from autotune.tuning.reach import reach

TAKES = {
    "bool": "text",  # argparse's type=bool takes any text, and takes it for true
    "float": "a number",
    "int": "a whole number",
    "str": "text",
}
FLAG = ("flag", "now", "takes", "sets")


def show(found: Outlook, about: str, *, as_json: bool) -> None:
    """Print what a search would try."""
    held = reach(found.plan, found.space)
    if as_json:
        print_json(as_data(found, held, about))
        return
    out = results_console()
    budget = format_duration(found.plan.total_s)
    out.print(Text(f"A search of {about} would try", style="bold"))
    late = dict.fromkeys(held.spare, "if the others leave time")
    late |= {one.what: _needed(one) for one in held.missed}
    tried = ((*row, late.get(row[0], "")) for row in _tried(found))
    out.print(table(tried, ("setting", "now", "values", "")))
    for name, value in found.space.fixed.items():
        out.print(Text(f"  {name} is held at {as_text(value)}"))
    if found.space.refused:
        out.print(Text("It would not try", style="bold"))
        rows = [(", ".join(names), why) for why, names in by_reason(found.space.refused).items()]
        out.print(table(rows, whole=()))
    if flags := found.profile.flags:
        out.print(Text("Flags of the program, which --set=--FLAG=v1,v2 tries", style="bold"))
        out.print(table(map(_flag, flags), FLAG))
    rate = found.measurement.throughput.estimate
    out.print(Text(f"As written: {rate:,.1f} samples/s, seen in {format_duration(found.took_s)}."))
    out.print(Text(f"It would take {budget}, the confirmation included. {found.fence}"))
    out.print(Text("Some settings may still go once short runs show that they train otherwise."))


def as_data(found: Outlook, held: Reach, about: str) -> dict[str, object]:
    """Return what ``show()`` prints as data that JSON can hold."""
    return {
        "program": about,
        "samples_per_s": found.measurement.throughput.estimate,
        "budget_s": found.plan.total_s,
        "fence": found.fence,
        "settings": [
            {"setting": name, "now": now, "values": values.split(", ")}
            for name, now, values in _tried(found)
        ],
        "held": {name: as_text(value) for name, value in found.space.fixed.items()},
        "not_tried": dict(found.space.refused),
        "needs_budget_s": {
            one.what: one.budget_s if math.isfinite(one.budget_s) else None for one in held.missed
        },
        "flags": [dict(zip(FLAG, _flag(flag), strict=True)) for flag in found.profile.flags],
    }


def _tried(found: Outlook) -> Iterator[tuple[str, str, str]]:
    for name, domain in found.space.domains.items():
        now = found.space.baseline[name]
        others = ", ".join(as_text(value) for value in domain.values if value != now)
        yield name, as_text(now), others


def _needed(missed: Missed) -> str:
    if math.isinf(missed.budget_s):
        return "in no budget of a week"
    return f"only with --budget {typed_duration(missed.budget_s)}"


def _flag(flag: Flag) -> tuple[str, str, str, str]:
    """Return a flag's name, its value, what it takes, and the setting that it sets."""
    now = "" if flag.value is None else as_text(flag.value)
    takes = "on or off" if flag.is_switch else ", ".join(flag.choices) or TAKES[flag.takes]
    sets = (name for name, knob in registry().items() if flag.words & set(knob.flag_names))
    return flag.name, now, takes, next(sets, "")
