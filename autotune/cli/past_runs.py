"""Commands about searches that are over: report, runs, show and export; they start nothing."""

from __future__ import annotations

import json
import sys
import webbrowser
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console as Output
from rich.table import Table
from rich.text import Text

from autotune.cli.exits import errors_told
from autotune.errors import RunDirectoryError, UsageError

if TYPE_CHECKING:
    from autotune.tuning.storage.search_dir import SearchDir

RunArgument = Annotated[
    str | None, typer.Argument(help="Name or path of a run; the latest by default.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, with keys that stay.")
]
FORMATS = "snippet, patch, hf, accelerate, lightning, fabric, torchrun, deepspeed, sbatch or env"
COLUMNS = ("run", "date", "program", "trials", "found")


class Format(StrEnum):
    """In which form a report is written."""

    HTML = "html"
    MD = "md"


def report(
    run: RunArgument = None,
    format_: Annotated[Format, typer.Option("--format", help="html or md.")] = Format.HTML,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where to write it; '-' prints it. Default: the run's folder."
        ),
    ] = None,
    for_hours: Annotated[
        float | None, typer.Option(min=0.0, help="Hours that the training takes as written.")
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(min=0.0, help="What an hour of this machine costs.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write what a search found as one page: HTML, or Markdown for a pull request."""
    from autotune import api
    from autotune.cli.console import Console
    from autotune.report import Training, html, markdown

    console = Console()
    with errors_told(console):
        if open_ and format_ is Format.MD:
            raise UsageError("--open shows HTML; leave out --format md.")
        result = api.load(run)
        best = result.run_dir / "best.yaml"
        make = html if format_ is Format.HTML else markdown
        page = make(result, _short(best), Training(for_hours, price_per_hour))
        if str(output) == "-":
            sys.stdout.write(page)
            return
        path = output or result.run_dir / f"report.{format_}"
        _write(path, page)
    sys.stdout.write(f"{path}\n")
    if open_:
        webbrowser.open(path.resolve().as_uri())


def runs(as_json: JsonOption = False) -> None:
    """List the searches of this folder, the latest first, with what each one found."""
    from autotune.cli.console import Console
    from autotune.tuning.storage import search_dir

    console = Console()
    with errors_told(console):
        found = search_dir.every()
        if not found:
            raise RunDirectoryError(
                "There is no search in this folder. 'autotune search PROGRAM' starts one."
            )
        rows = [_about(run) for run in found]
    if as_json:
        listed = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        sys.stdout.write(f"{json.dumps(listed, indent=1)}\n")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Output(highlight=False, soft_wrap=not sys.stdout.isatty()).print(table)


def show(run: RunArgument = None, as_json: JsonOption = False) -> None:
    """Print again what a search found."""
    from autotune import api
    from autotune.cli import search_report
    from autotune.cli.console import Console

    console = Console()
    with errors_told(console):
        result = api.load(run)
    search_report.show(result, _short(result.run_dir / "best.yaml"), as_json=as_json)


def export(
    to: Annotated[str, typer.Option("--to", help=f"Format: {FORMATS}.", show_default=False)],
    best: Annotated[Path, typer.Argument(help="The best.yaml of a search.")] = Path("best.yaml"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write it. Default: print it.")
    ] = None,
) -> None:
    """Write a best.yaml in the words of another tool; what that cannot say is listed."""
    from autotune.cli.console import Console
    from autotune.results import bestfile
    from autotune.results.exporters import exporter

    console = Console()
    with errors_told(console):
        chosen = exporter(to)
        made = chosen.export(bestfile.read(best))
        if output is None:
            sys.stdout.write(made.text)
        else:
            _write(output, made.text)
    for change, reason in made.left_out.items():
        console.warn(f"Left out: {change} ({reason}).")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"'{path}' cannot be written: {error.strerror}. Name another --output."
        ) from error


def _about(run: SearchDir) -> tuple[str, ...]:
    try:
        study = run.load_study()
    except RunDirectoryError as error:
        return run.name, "", "", "", str(error)
    found = study.found
    said = "not over" if found is None else found
    head = study.head
    return run.name, head.created, str(head.program), str(study.trial_count), said


def _short(path: Path) -> Path:
    """Return a path as people would type it here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
