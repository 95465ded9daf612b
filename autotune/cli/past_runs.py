"""Commands about searches that are over: show, runs, report and export; they start nothing."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from autotune.cli import completion
from autotune.cli.compare import best_file
from autotune.cli.messages import Messages, errors_told
from autotune.cli.options import ForceOption, JsonOption, RunArgument
from autotune.errors import AutotuneError, UsageError

if TYPE_CHECKING:
    from autotune.tuning.storage.search_dir import SearchDir

COLUMNS = ("run", "date", "program", "trials", "found")


class PageFormat(StrEnum):
    """In which form a report is written."""

    HTML = "html"
    MD = "md"


def show(run: RunArgument = None, as_json: JsonOption = False) -> None:
    """Print again what a search found."""
    from autotune import api
    from autotune.cli import search_report

    with errors_told(Messages()):
        result = api.load(run)
    search_report.show(result, result.own_file, as_json=as_json)


def report(
    run: RunArgument = None,
    format_: Annotated[PageFormat, typer.Option("--format", help="html or md.")] = PageFormat.HTML,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where to write it; '-' prints it. Default: the run's folder."
        ),
    ] = None,
    force: ForceOption = False,
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write what a search found as one page: HTML, or Markdown for a pull request."""
    from autotune import api
    from autotune.report import html, markdown
    from autotune.results.output import Output, write_own

    messages = Messages()
    with errors_told(messages):
        if open_ and format_ is PageFormat.MD:
            raise UsageError("--open shows HTML; leave out --format md.")
        if str(output) == "-" and (as_json or open_):
            raise UsageError("'-o -' prints the page itself; leave out --json and --open.")
        result = api.load(run)
        make = html if format_ is PageFormat.HTML else markdown
        page = make(result, result.own_file)
        if str(output) == "-":
            sys.stdout.write(page)
            return
        path = output or result.run_dir / f"report.{format_}"
        if output is None:
            write_own(path, page)
        elif said := Output.typed(output, force=force).write(page):
            messages.warn(said)
    about = {"run": str(result.run_dir), "path": str(path), "format": str(format_)}
    # A path has the bytes that it has
    typer.echo(json.dumps(about, indent=1) if as_json else os.fsencode(path))
    if open_:
        webbrowser.open(path.resolve().as_uri())


def runs(as_json: JsonOption = False) -> None:
    """List the searches of this folder, the latest first, with what each one found."""
    from autotune.cli.console import results_console
    from autotune.tuning.storage import search_dir

    messages = Messages()
    with errors_told(messages):
        listed = [_about(run) for run in search_dir.every()]
    if as_json:
        sys.stdout.write(f"{json.dumps(listed, indent=1)}\n")
        return
    if not listed:
        messages.note("There is no search in this folder. 'autotune search PROGRAM' starts one.")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in COLUMNS:
        # On a narrow terminal texts are folded, names and dates stay whole: they are copied
        is_text = column in {"program", "found"}
        table.add_column(column, overflow="fold", no_wrap=not is_text)
    for one in listed:
        date = one["date"][:16].replace("T", " ")
        why = f"cannot be read: 'autotune show {quote(one['run'])}' says why"
        cells = (one["run"], date, one["program"], one["trials"] or "", one["found"] or why)
        table.add_row(*(Text(str(cell)) for cell in cells))
    results_console().print(table)


def _about(run: SearchDir) -> dict[str, Any]:
    """Return what the list says of a run; its keys are those of ``autotune runs --json``."""
    about: dict[str, Any] = {"run": run.name, "path": str(run.path), "date": "", "program": ""}
    try:
        study = run.load_study()
        head, found, failure = study.head, study.found, study.failure
    except AutotuneError as error:  # one that cannot be read hides no other
        return {**about, "trials": None, "found": "", "error": str(error)}
    said = found or ("the program failed" if failure else "not over")
    known = {"date": head.created, "program": str(head.program), "trials": len(study.records)}
    return {**about, **known, "found": said, "error": ""}


def export(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Format: snippet, hf, accelerate, lightning, deepspeed or sbatch; or tracker: "
            "mlflow, wandb or tensorboard.",
            show_default=False,
            autocompletion=completion.exports,
        ),
    ],
    best: Annotated[
        str,
        typer.Argument(
            help="The best.yaml of a search, or the search's name. A tracker takes the name; the "
            "latest by default.",
            autocompletion=completion.runs,
        ),
    ] = "best.yaml",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to write it; for TensorBoard, a folder. Default: print it.",
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a best.yaml in the words of another tool, or log a search to an experiment tracker."""
    from autotune import api, exports
    from autotune.results import bestfile
    from autotune.results.output import Output
    from autotune.results.wording import as_typed

    messages = Messages()
    with errors_told(messages):
        if to in exports.TRACKERS:
            where = api.log(api.load(None if best == "best.yaml" else best), to, output)
            made, is_as_written = exports.Export(f"{where}\n", {}), False
        else:
            chosen = exports.format_named(to)
            file = bestfile.read(path := as_typed(best_file(best)))
            made, is_as_written = chosen.export(file, path), file.applied.is_as_written
            if output is not None and (said := Output.typed(output, force=force).write(made.text)):
                messages.warn(said)
    if as_json:
        data = {"format": to, "path": output and str(output), **vars(made)}
        sys.stdout.write(f"{json.dumps(data, indent=1)}\n")
        return
    if output is None or to in exports.TRACKERS:
        sys.stdout.write(made.text)
    if is_as_written:
        messages.warn(f"{best} changes nothing: the program's own config was kept.")
    for sentence in made.sentences:
        messages.warn(sentence)
