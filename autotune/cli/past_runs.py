"""Commands about searches that are over: report, runs, show and export; they start nothing."""

from __future__ import annotations

import json
import sys
import webbrowser
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from autotune.cli import completion
from autotune.cli.exits import errors_told
from autotune.cli.messages import Messages
from autotune.cli.options import JsonOption, RunArgument
from autotune.errors import RunDirectoryError, UsageError

if TYPE_CHECKING:
    from autotune.tuning.storage.search_dir import SearchDir

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
    as_json: JsonOption = False,
) -> None:
    """Write what a search found as one page: HTML, or Markdown for a pull request."""
    from autotune import api
    from autotune.report import Training, html, markdown
    from autotune.results.wording import as_typed

    messages = Messages()
    with errors_told(messages):
        if open_ and format_ is Format.MD:
            raise UsageError("--open shows HTML; leave out --format md.")
        if str(output) == "-" and (as_json or open_):
            raise UsageError("'-o -' prints the page itself; leave out --json and --open.")
        result = api.load(run)
        best = result.run_dir / "best.yaml"
        make = html if format_ is Format.HTML else markdown
        page = make(result, as_typed(best), Training(for_hours, price_per_hour))
        if str(output) == "-":
            sys.stdout.write(page)
            return
        path = output or result.run_dir / f"report.{format_}"
        write(path, page)
    if as_json:
        about = {"run": str(result.run_dir), "path": str(path), "format": str(format_)}
        sys.stdout.write(f"{json.dumps(about, indent=1)}\n")
    else:
        sys.stdout.write(f"{path}\n")
    if open_:
        webbrowser.open(path.resolve().as_uri())


def runs(as_json: JsonOption = False) -> None:
    """List the searches of this folder, the latest first, with what each one found."""
    from autotune.cli.console import results_console
    from autotune.tuning.storage import search_dir

    messages = Messages()
    with errors_told(messages):
        rows = [_about(run) for run in search_dir.every()]
    if as_json:
        listed = [{**vars(row), "path": str(row.path)} for row in rows]
        sys.stdout.write(f"{json.dumps(listed, indent=1)}\n")
        return
    if not rows:
        messages.note("There is no search in this folder. 'autotune search PROGRAM' starts one.")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in COLUMNS:
        # On a narrow terminal texts are folded, names and dates stay whole: they are copied
        is_text = column in {"program", "found"}
        table.add_column(column, overflow="fold", no_wrap=not is_text)
    for row in rows:
        trials = "" if row.trials is None else str(row.trials)
        said = row.found or _says_why(row)
        table.add_row(
            *map(Text, (row.run, row.date[:16].replace("T", " "), row.program, trials, said))
        )
    results_console().print(table)


def show(run: RunArgument = None, as_json: JsonOption = False) -> None:
    """Print again what a search found."""
    from autotune import api
    from autotune.cli import search_report
    from autotune.results.wording import as_typed

    messages = Messages()
    with errors_told(messages):
        result = api.load(run)
    search_report.show(result, as_typed(result.run_dir / "best.yaml"), as_json=as_json)


def export(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help=f"Format: {FORMATS}.",
            show_default=False,
            autocompletion=completion.formats,
        ),
    ],
    best: Annotated[Path, typer.Argument(help="The best.yaml of a search.")] = Path("best.yaml"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write it. Default: print it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a best.yaml in the words of another tool; what that cannot say is listed."""
    from autotune.results import bestfile
    from autotune.results.exporters import exporter

    messages = Messages()
    with errors_told(messages):
        chosen = exporter(to)
        file = bestfile.read(best)
        made = chosen.export(file)
        if output is not None:
            write(output, made.text)
    if as_json:
        data = {
            "format": to,
            "path": None if output is None else str(output),
            "text": made.text,
            "left_out": dict(made.left_out),
        }
        sys.stdout.write(f"{json.dumps(data, indent=1)}\n")
        return
    if output is None:
        sys.stdout.write(made.text)
    if file.applied.is_as_written:
        messages.warn(f"{best} changes nothing: the program's own config was kept.")
    for change, reason in made.left_out.items():
        messages.warn(f"Left out: {change} ({reason}).")


def write(path: Path, text: str) -> None:
    """Write a text, in a folder that is made if it is missing.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"'{path}' cannot be written: {error.strerror}. Name another --output."
        ) from error


@dataclass(frozen=True)
class _Listed:
    """A run in the list; its fields are the keys of ``autotune runs --json``.

    Attributes:
        run: Its name.
        path: Its folder.
        date: When it was started, in ISO 8601 (UTC); empty if its record cannot be read.
        program: What was searched.
        trials: Number of trials; None if the record cannot be read.
        found: What the search found, or that it is not over.
        error: Why its record cannot be read; empty if it can.
    """

    run: str
    path: Path
    date: str = ""
    program: str = ""
    trials: int | None = None
    found: str = ""
    error: str = ""


def _about(run: SearchDir) -> _Listed:
    try:
        study = run.load_study()
        head, found, failure = study.head, study.found, study.failure
    except RunDirectoryError as error:
        return _Listed(run.name, run.path, error=str(error))
    said = found or ("the program failed" if failure else "not over")
    program, trials = str(head.program), len(study.records)
    return _Listed(run.name, run.path, head.created, program, trials, said)


def _says_why(row: _Listed) -> str:
    return f"cannot be read: 'autotune show {quote(row.run)}' says why"
