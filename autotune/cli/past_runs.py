"""The commands about searches that are over, ``show`` and ``export``; they start nothing."""

from __future__ import annotations

import os
import sys
import webbrowser
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli import completion
from autotune.cli.compare import best_file
from autotune.cli.failure_screen import printable
from autotune.cli.messages import Messages, errors_told
from autotune.cli.options import (
    AllowEnvOption,
    ForceOption,
    JsonOption,
    SearchArgument,
    StudyRequest,
)
from autotune.errors import AutotuneError, UsageError
from autotune.tuning.storage import search_dir

if TYPE_CHECKING:
    from autotune.results.result import SearchResult
    from autotune.tuning.storage.search_dir import SearchDir

COLUMNS = ("search", "date", "program", "trials", "found")


class Shown(StrEnum):
    """What of a search is shown, by the option that asks for it."""

    RESULT = ""
    DETAILS = "--verbose"
    TRIALS = "--trials"
    HTML = "--html"
    MD = "--md"
    LIST = "--list"

    @property
    def is_page(self) -> bool:
        """Whether it is a page, which is written to a file."""
        return self in {Shown.HTML, Shown.MD}


def show(
    search: SearchArgument = None,
    details: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print also what led to the result.")
    ] = False,
    trials: Annotated[bool, typer.Option("--trials", help="Print all trials as a table.")] = False,
    html: Annotated[bool, typer.Option("--html", help="Write the report as a web page.")] = False,
    open_: Annotated[
        bool, typer.Option("--open", help="Open the web page in the browser, too.")
    ] = False,
    md: Annotated[
        bool, typer.Option("--md", help="Write the report in Markdown, for a pull request.")
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="List the searches of this folder, the latest first.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write the report; '-' prints it. Default: the search's folder.",
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    *,
    study: StudyRequest,
) -> None:
    """Print again what a search found, or write it as a report."""
    messages = Messages()
    with errors_told(messages):
        if study.is_typed:
            if search or details or trials or html or open_ or md or list_ or output:
                raise UsageError("A shared study is shown as it stands: only --json goes with it.")
            _show_study(study, as_json=as_json)
            return
        flags = zip([*Shown][1:], (details, trials, html or open_, md, list_), strict=True)
        shown = _chosen([one for one, is_typed in flags if is_typed], output, is_named=bool(search))
        if shown is Shown.LIST:
            _list(messages, as_json=as_json)
            return
        from autotune import api  # it loads optuna
        from autotune.cli import search_report

        result = api.load(search)
        if shown.is_page:
            path = _page(messages, result, shown, output, force=force, as_json=as_json)
            if open_ and path is not None:
                webbrowser.open(path.resolve().as_uri())
            return
        others = 0 if search else len(search_dir.every()) - 1
    match shown:
        case Shown.DETAILS if not as_json:
            search_report.details(result)
        case Shown.TRIALS if not as_json:
            search_report.trials(result)
        case _:
            search_report.show(result, result.own_file, as_json=as_json)
    if others and not as_json:
        more = "1 more search" if others == 1 else f"{others} more searches"
        messages.note(f"{more}: autotune show --list")


def _show_study(study: StudyRequest, *, as_json: bool) -> None:
    """Print what a study of several machines stands at."""
    from autotune.cli import shared_study
    from autotune.tuning.sharing import liveness

    observer = shared_study.observer_of(study.storage, study.name)
    found = shared_study.looked_at(observer, liveness.BEAT_S)
    shared_study.show(found, study.name or "", as_json=as_json)


def _chosen(typed: list[Shown], output: Path | None, *, is_named: bool) -> Shown:
    """Return what is shown, or refuse options that exclude each other."""
    shown = typed[0] if typed else Shown.RESULT
    if len(typed) > 1:
        raise UsageError(f"Choose one of {' and '.join(typed)}.")
    if output is not None and not shown.is_page:
        raise UsageError("--output is where a report goes: add --html or --md.")
    if is_named and shown is Shown.LIST:
        raise UsageError("--list is about all searches of this folder: leave out the name.")
    return shown


def _page(
    messages: Messages,
    result: SearchResult,
    shown: Shown,
    output: Path | None,
    *,
    force: bool,
    as_json: bool,
) -> Path | None:
    """Write or print a report, and return its path; None if it was printed."""
    from autotune.cli.stdout import print_json
    from autotune.report import html, markdown
    from autotune.results.output import Output, write_own

    is_printed = str(output) == "-"
    if is_printed and as_json:
        raise UsageError("'-o -' prints the page itself; leave out --json.")
    page = (html if shown is Shown.HTML else markdown)(result, result.own_file)
    if is_printed:
        sys.stdout.write(page)
        return None
    format_ = shown.removeprefix("--")
    path = output or result.run_dir / f"report.{format_}"
    if output is None:
        write_own(path, page)
    elif said := Output.typed(output, force=force).write(page):
        messages.warn(said)
    about = {"run": str(result.run_dir), "path": str(path), "format": format_}
    if as_json:
        print_json(about)
    else:
        typer.echo(os.fsencode(path))  # which has the bytes that it has
    return path


def _list(messages: Messages, *, as_json: bool) -> None:
    """Print the searches of this folder, the latest first, with what each one found."""
    from autotune.cli.stdout import print_json, results_console, table

    listed = [_about(one) for one in search_dir.every()]
    if as_json:
        print_json(listed)
        return
    if not listed:
        messages.note("There is no search in this folder. 'autotune search PROGRAM' starts one.")
        return
    rows = []
    for one in listed:
        date = one["date"][:16].replace("T", " ")
        why = f"cannot be read: 'autotune show {quote(one['run'])}' says why"
        cells = (one["run"], date, one["program"], one["trials"] or "", one["found"] or why)
        rows.append([printable(str(cell)).replace("\n", " ") for cell in cells])
    # On a narrow terminal names, dates and numbers stay whole: they are copied
    results_console().print(table(rows, COLUMNS, margin=0, whole=(0, 1, 3)))


def _about(search: SearchDir) -> dict[str, Any]:
    """Return what the list says of a search, as ``autotune show --list --json`` prints it."""
    about: dict[str, Any] = {
        "run": search.name,
        "path": str(search.path),
        "date": "",
        "program": "",
    }
    try:
        study = search.load_study()
        head, found, failure = study.head, study.found, study.failure
    except AutotuneError as error:  # one that cannot be read hides no other
        return {**about, "trials": None, "found": "", "error": str(error)}
    said = found or ("the program failed" if failure else "not over")
    known = {"date": head.created, "program": str(head.program), "trials": len(study.records)}
    return {**about, **known, "found": said, "error": ""}


def export(
    best: Annotated[
        str,
        typer.Argument(
            help="the file of a search, or its name; best.yaml by default. A tracker takes the "
            "name; the latest by default.",
            metavar="[BEST.YAML]",
            autocompletion=completion.searches,
        ),
    ] = "best.yaml",
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TOOL",
            help="Other tool: snippet, hf, accelerate, lightning and more. Also deepspeed or "
            "sbatch, or a tracker: mlflow, wandb or tensorboard. Without it, they are listed.",
            show_default=False,
            autocompletion=completion.exports,
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write it. For TensorBoard, a folder. Default: print it.",
        ),
    ] = None,
    force: ForceOption = False,
    allow_env: AllowEnvOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a best.yaml for another tool, or log a search to a tracker."""
    from autotune import api, exports
    from autotune.cli.stdout import print_json
    from autotune.exports import formats
    from autotune.knobs.space import options
    from autotune.results import bestfile
    from autotune.results.output import Output
    from autotune.results.wording import as_typed

    messages = Messages()
    with errors_told(messages):
        if not to:
            if as_json or output is not None:
                raise UsageError(f"Name the tool: autotune export --to {next(iter(formats()))}")
            _list_formats()
            return
        if to in exports.TRACKERS:
            where = api.log(api.load(None if best == "best.yaml" else best), to, output)
            made, is_as_written = exports.Export(f"{where}\n", {}), False
        else:
            chosen = exports.format_named(to)
            file, kind = bestfile.read(path := as_typed(best_file(best))).on()
            if kind:
                messages.note(f"{path}: {kind}")
            allowed = options.names(allow_env or [])
            made, is_as_written = chosen.export(file, path, allowed), file.applied.is_as_written
            if output is not None and (said := Output.typed(output, force=force).write(made.text)):
                messages.warn(said)
    if as_json:
        print_json({"format": to, "path": output, **vars(made)})
        return
    if output is None or to in exports.TRACKERS:
        sys.stdout.write(made.text)
    if is_as_written:
        messages.warn(f"{best} changes nothing: the program's own config was kept.")
    for sentence in made.sentences:
        messages.warn(sentence)


def _list_formats() -> None:
    """Print what ``--to`` takes."""
    from autotune.exports import TRACKERS, formats

    sys.stdout.write(f"settings for another tool: {', '.join(formats())}\n")
    sys.stdout.write(f"log of a search for a tracker: {', '.join(TRACKERS)}\n")
    sys.stdout.write("autotune export --to TOOL [BEST.YAML]\n")
