"""The commands ``search`` and ``resume``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.command_line import TYPED
from autotune.cli.exit_status import ExitStatus
from autotune.cli.messages import Messages, errors_told, verbosity
from autotune.cli.options import (
    FORCE,
    AllowEnvOption,
    ArgsArgument,
    FenceRequest,
    JsonOption,
    ModuleOption,
    OutputOption,
    ProgramArgument,
    QuietOption,
    SearchArgument,
    SharingRequest,
    VerboseOption,
)
from autotune.cli.typed_line import program_typed
from autotune.errors import Terminated, UsageError
from autotune.tuning.search_request import SearchRequest, described

DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Start the program once, and print what would be tried."),
]

ARRAY_TASK = "SLURM_ARRAY_TASK_ID"  # set in the jobs of an array (sbatch(1), "JOB ARRAY SUPPORT")
ANSWERED = (
    "This job of the array starts after the study '{name}' was answered, so it measures nothing. "
    "Another --name begins another study."
)

if TYPE_CHECKING:
    from autotune.cli.console import Console
    from autotune.results.output import Output
    from autotune.results.result import SearchResult


def search(
    context: typer.Context,
    program: ProgramArgument = "",
    args: ArgsArgument = None,
    module: ModuleOption = False,
    *,
    request: SearchRequest,
    output: OutputOption = None,
    dry_run: DryRunOption = False,
    fence: FenceRequest,
    sharing: SharingRequest,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search for the fastest settings of a training program, which stays as it is."""
    from autotune import api
    from autotune.cli import shared_study
    from autotune.cli.console import Console
    from autotune.results.output import Output

    console = Console(verbosity(verbose=verbose, quiet=quiet))
    place = Output.typed(output, force=request.force)
    request = replace(request, storage=sharing.storage, serve=sharing.serve)

    def whole() -> SearchRequest:
        if not program:
            dry = " --dry-run" if dry_run else ""
            raise UsageError(f"What should be searched? autotune search{dry} train.py")
        subject = program_typed(
            context, console, program, args, is_module=module, ranks=request.ranks
        )
        where = None if dry_run else place
        return replace(
            request, program=subject, output=where, fence=fence.options(), events=console
        )

    if sharing.workers is not None or sharing.executor is not None:
        messages = Messages(verbosity(verbose=verbose, quiet=quiet))
        with errors_told(messages):
            if dry_run:
                raise UsageError("--dry-run looks at this machine: leave out --workers.")
            typed = (context.meta[TYPED], [program, *(args or ())])
            _hand_over(messages, whole(), sharing, *typed, as_json=as_json)
        return
    if dry_run:
        from autotune.cli import dry_run as dry

        with errors_told(console):
            wanted = whole()
            found = api.outlook(wanted)
        dry.show(found, str(wanted.program), as_json=as_json)
        return
    if ARRAY_TASK in os.environ and shared_study.has_answer(request.storage, request.name):
        Messages().warn(ANSWERED.format(name=request.name))
        return
    _end(console, lambda: api.search(**vars(whole())), place, as_json=as_json)


def _hand_over(
    messages: Messages,
    request: SearchRequest,
    sharing: SharingRequest,
    words: Sequence[str],
    program: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Have an executor start the searches of ``--workers``, and watch them."""
    from autotune import api
    from autotune.cli.executors import Kubernetes, executor_of, workers

    if sharing.workers is None or sharing.executor is None:
        raise UsageError("--workers says how many, and --executor what starts them: type both.")
    executor = executor_of(sharing.executor)
    head = api.info_of(replace(request, events=None))
    if isinstance(executor, Kubernetes):
        line = ["autotune", *workers.line_of(words, program, None)]
        workers.show_manifest(executor, request, line, sharing.workers)
        return
    line = [*workers.this_command(), *workers.line_of(words, program, head.options.sharing)]
    workers.start(messages, head, executor, line, sharing.workers, as_json=as_json)


def resume(
    search: SearchArgument = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="New total budget. Default: the search's own."),
    ] = None,
    may_change: Annotated[
        str | None,
        typer.Option(
            help=described(SearchRequest)["may_change"].help + " Default: the search's own."
        ),
    ] = None,
    output: OutputOption = None,
    force: Annotated[
        bool,
        typer.Option("--force", help=f"Take over a search from a machine that is gone. {FORCE}"),
    ] = False,
    allow_env: AllowEnvOption = None,
    *,
    fence: FenceRequest,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Continue a search that was stopped or killed."""
    from autotune import api
    from autotune.cli.console import Console
    from autotune.knobs.space import options
    from autotune.results.output import Output

    console = Console(verbosity(verbose=verbose, quiet=quiet))
    place = Output.typed(output, force=force)

    def go_on() -> SearchResult:
        return api.resume(
            search,
            budget=budget,
            may_change=may_change,
            output=place,
            force=force,
            fence=fence.options(),
            allow_env=options.names(allow_env or []),
            events=console,
        )

    _end(console, go_on, place, as_json=as_json)


def _end(
    console: Console, find: Callable[[], SearchResult], place: Output, *, as_json: bool
) -> None:
    """Search and show the result; the exit status says which signal has ended the search.

    Without a signal, it tells scripts if no config was measured.
    """
    from autotune.cli import search_report
    from autotune.results.finding import Finding

    def show(result: SearchResult) -> None:
        search_report.show(result, result.found_in(place), as_json=as_json)

    console.show = show
    status = 0
    with errors_told(console, resumable=True):
        try:
            result = find()
        except Terminated as end:
            if end.result is None:
                raise
            result, status = end.result, end.code
            show(result)
    if status or result.finding is Finding.NOT_MEASURED:
        raise typer.Exit(status or ExitStatus.NOTHING_MEASURED)
