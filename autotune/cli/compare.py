"""What ``autotune compare`` does: read its two sides, and print what came of them.

With a program, both sides are measured against each other. Without one they are two searches that
are over, which are shown side by side.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from autotune.errors import RunDirectoryError, UsageError, did_you_mean
from autotune.program.revision import COMMIT, WRITTEN, at_revision

if TYPE_CHECKING:
    from autotune.cli.console import Console
    from autotune.program.fence_options import FenceOptions
    from autotune.program.program import Program
    from autotune.results.two_runs import Difference, TwoRuns
    from autotune.tuning.compare import ComparedSide, Comparison

UNCERTAIN_PCT = 1000.0  # from which the most that a difference may be says nothing
SIDES = 2
YAML = {".yaml", ".yml"}
USAGE = (
    "A side is 'written' (the program as it is), a best.yaml, the name of a run, or git:REVISION: "
    "autotune compare written best.yaml train.py"
)


class SidesFirst(TyperCommand):
    """A command whose options may stand before its two sides, or between them and the program.

    Options after the program are the program's, so the parser stops at the first word that is not
    an option. Here that word is a side.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the options that stand before the program to the front, and parse as usual."""
        rest, options, sides = list(args), list[str](), list[str]()
        while len(sides) < SIDES and rest[:1] != ["--"]:
            found, rest = self._options(rest)
            options += found
            if not rest:
                break
            sides.append(rest.pop(0))
        found, rest = self._options(rest)
        return super().parse_args(ctx, [*options, *found, *sides, *rest])

    def _options(self, words: list[str]) -> tuple[list[str], list[str]]:
        """Return the options at the beginning, with their values, and the other words."""
        takes_value = {
            name: not getattr(parameter, "is_flag", False)
            for parameter in self.params
            for name in parameter.opts
            if name.startswith("-")
        }
        end = 0
        while end < len(words):
            name, equals, _ = words[end].partition("=")
            if name not in takes_value and name not in {"-h", "--help"}:
                break
            end += 2 if takes_value.get(name, False) and not equals else 1
        return words[:end], words[end:]


def measure(
    names: tuple[str, str],
    program: Program,
    budget_s: float,
    console: Console,
    fence: FenceOptions,
    allowed: Collection[str],
) -> Comparison:
    """Measure two sides against each other.

    Args:
        names: What the user typed for the sides.
        program: The program as it is.
        budget_s: Most wall time in seconds.
        console: Told what happens.
        fence: What the user requested of the fence.
        allowed: Environment variables that a best.yaml may set although they can load code.

    Raises:
        UsageError: A side cannot be read, or cannot run here.
    """
    from autotune.machine import hardware
    from autotune.tuning import compare

    with ExitStack() as stack:
        sides = [
            stack.enter_context(_side(name, program, console, list(allowed))) for name in names
        ]
        machine = hardware.detect(program.visible_devices)
        return compare.compare((sides[0], sides[1]), machine, budget_s, console, fence)


@contextmanager
def _side(
    name: str, program: Program, console: Console, allowed: list[str]
) -> Iterator[ComparedSide]:
    """Read a side; where it is a commit, its files exist until the end.

    Raises:
        UsageError: There is no such file, run or revision.
    """
    from autotune.results import bestfile
    from autotune.tuning.compare import ComparedSide

    if name == WRITTEN:
        yield ComparedSide(program)
    elif name.startswith(COMMIT):
        with at_revision(program, name.removeprefix(COMMIT)) as found:
            yield ComparedSide(found.program, None, name, found.commit)
    else:
        path = _best_file(name)
        file = bestfile.read(path)
        for line in file.use(path, allowed):
            console.warn(line)
        yield ComparedSide(program, file, name)


def _best_file(name: str) -> Path:
    """Return the best.yaml that a side names: by its path, or as that of a run.

    Raises:
        UsageError: There is neither.
    """
    from autotune.tuning.storage import search_dir

    if Path(name).is_file() or Path(name).suffix in YAML:
        return Path(name)  # that it is not there is said where it is read
    try:
        run = search_dir.find(name)
    except RunDirectoryError as error:
        raise UsageError(_no_side(name)) from error
    best = run.path / "best.yaml"
    if not best.is_file():
        raise UsageError(
            f"The run '{name}' has no best.yaml, because it has not ended. "
            f"'autotune resume {name}' goes on with it."
        )
    return best


def _no_side(name: str) -> str:
    from autotune.tuning.storage import search_dir

    runs = [run.name for run in search_dir.every()]
    hint = did_you_mean(name, [WRITTEN, *runs])
    return f"There is no best.yaml and no run '{name}'.{hint} {USAGE}. Runs here: " + (
        f"{', '.join(runs)}." if runs else "none."
    )


def two_runs(names: tuple[str, str]) -> TwoRuns:
    """Return two searches that are over.

    Raises:
        UsageError: A name is not that of a run, or the run has not ended.
    """
    from autotune import api
    from autotune.results.two_runs import TwoRuns

    for name in names:
        if Path(name).is_file() and Path(name).suffix not in YAML:
            raise UsageError(
                f"'{name}' stands in place of a side. {USAGE.replace('train.py', name)}"
            )
        if name == WRITTEN or name.startswith(COMMIT) or Path(name).suffix in YAML:
            raise UsageError(
                f"To compare '{name}', name the program that is to run: "
                f"autotune compare {' '.join(names)} train.py. Without a program, both sides are "
                "runs, and nothing is started."
            )
    first, second = (api.load(name) for name in names)
    return TwoRuns(first, second)


def show_two_runs(names: tuple[str, str], page: Path | None, *, as_json: bool) -> None:
    """Print two searches side by side.

    Args:
        names: Names or paths of the runs.
        page: Where to write their reports as one HTML page; None writes none.
        as_json: Print them as data instead, for programs.

    Raises:
        UsageError: There is no such run, or the page cannot be written.
    """
    from autotune.cli.console import results_console
    from autotune.cli.past_runs import write
    from autotune.report import html_of_two
    from autotune.results.two_runs import as_data

    found = two_runs(names)
    if page is not None:
        write(page, html_of_two(found))
    if as_json:
        data = {**as_data(found), "page": None if page is None else str(page)}
        sys.stdout.write(f"{json.dumps(data, indent=1)}\n")
        return
    out = results_console()
    for name, verdict in zip(found.names, found.verdicts, strict=True):
        headline = (verdict.headline, f"bold {verdict.tone}")
        out.print(Text.assemble((f"{name}: ", "bold"), headline, f" {verdict.basis}"))
    for title, rows in (
        ("Before → after", found.figures),
        ("Recommended configs", found.configs),
        ("Circumstances", found.circumstances),
    ):
        if rows:
            out.print()
            out.print(_table(title, found.names, rows))
    out.print()
    out.print(Text(found.said, style="" if found.is_comparable else "yellow"))
    # Not wrapped: a line break would be copied along with the command
    if found.command:
        out.print(Text.assemble(("Next: ", "bold"), found.command), soft_wrap=True)
    if page is not None:
        out.print(Text(f"page: {page}", style="dim"), soft_wrap=True)


def _table(title: str, names: tuple[str, str], rows: Sequence[Difference]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), title_justify="left")
    table.add_column(title, overflow="fold")
    for name in names:
        table.add_column(Text(name), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, (row.name, row.first, row.second)))
    return table


def show(found: Comparison, *, as_json: bool) -> None:
    """Print which of two sides is faster."""
    from autotune.cli.console import results_console
    from autotune.cli.messages import plain
    from autotune.results.wording import bounds
    from autotune.tuning.compare import Difference, as_data

    if as_json:
        sys.stdout.write(f"{json.dumps(as_data(found), indent=1)}\n")
        return
    out = results_console()
    first, second = (plain(side.name) for side in found.sides)
    speedup = f"{found.speedup.estimate:.3f}x {plain(bounds(found.speedup))}"
    match found.difference:
        case Difference.NONE:
            most = f", so at most {found.most_pct:.0f} %" if found.most_pct < UNCERTAIN_PCT else ""
            out.print(
                f"[bold]No difference to be seen[/] between {second} and {first}: {speedup}{most}"
            )
        case difference:
            out.print(f"[bold]{second} is {difference}[/] than {first}: {speedup}")
    for side, samples_per_s in zip(found.sides, found.samples_per_s, strict=True):
        commit = f" ({side.commit[:8]})" if side.commit else ""
        out.print(f"  {plain(side.name)}{commit}: {samples_per_s:,.1f} samples/s")
    for knob, value in found.second.changes_from(found.first).items():
        out.print(f"  {plain(knob)}: {plain(found.first.get(knob, ''))} → {plain(value)}")
    for note in found.notes:
        out.print(f"  [yellow]{plain(note)}[/]")
