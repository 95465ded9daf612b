"""The Python interface: search(), resume(), load() and log().

The commands ``autotune search`` and ``autotune resume`` call these functions too, so both
interfaces check arguments and raise errors in the same way. Nothing is printed here: what a search
does is logged under the name ``autotune``, unless a caller passes *events*.
"""

from __future__ import annotations

import datetime
import inspect
import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import fill
from types import FunctionType
from typing import ParamSpec, TypeVar

from autotune.errors import OutOfReachError, RunDirectoryError, SharedStudyError, UsageError
from autotune.files.scratch import Scratch, short_place
from autotune.knobs.space.space import ResolvedSpace, SearchSpace
from autotune.machine import hardware
from autotune.program.config import Config
from autotune.program.environment import require_torch
from autotune.program.fence_options import STRONGEST, FenceOptions
from autotune.program.line import read as read_line
from autotune.program.line import words_of
from autotune.program.program import Program, program_of
from autotune.results.bestfile import CANDIDATE, RESULT
from autotune.results.output import BEST, Output, write_own
from autotune.results.record import SearchInfo, SearchOptions
from autotune.results.result import SearchResult
from autotune.results.verdict import changes_of
from autotune.tuning.budget import parse_duration
from autotune.tuning.events import Events, Phase, answer_to_interrupt
from autotune.tuning.joining import joined
from autotune.tuning.outlook import Outlook
from autotune.tuning.outlook import outlook as run_outlook
from autotune.tuning.search_request import SearchRequest, described, level_named, refuse_gone
from autotune.tuning.storage import search_dir
from autotune.tuning.storage.study import Study, allow
from autotune.tuning.surroundings import THIS_MACHINE
from autotune.tuning.workflow import search as run_search

__all__ = ["load", "log", "resume", "search"]


logger = logging.getLogger("autotune")
P = ParamSpec("P")
R = TypeVar("R")


def _with_arguments_of(
    request: Callable[P, SearchRequest],
) -> Callable[[Callable[[SearchRequest], R]], Callable[P, R]]:
    """Let a function that takes a request take its fields instead, as type checkers see it, too."""

    def decorate(function: Callable[[SearchRequest], R]) -> Callable[P, R]:
        def taking(*given: P.args, **options: P.kwargs) -> R:
            refuse_gone(options)
            return function(request(*given, **options))

        taking.__name__, taking.__qualname__ = function.__name__, function.__qualname__
        indent = " " * 8
        listed = "\n".join(
            fill(f"{name}: {one.help}", 100, initial_indent=indent, subsequent_indent=" " * 12)
            for name, one in described(SearchRequest).items()
        )
        taking.__doc__ = f"{function.__doc__}\n    Args:\n{listed}\n"
        signature = inspect.signature(request).replace(return_annotation="SearchResult")
        taking.__signature__ = signature  # type: ignore[attr-defined]
        return taking

    return decorate


@_with_arguments_of(SearchRequest)
def search(request: SearchRequest) -> SearchResult:
    """Search for the fastest config of a training program on this machine.

    The program runs unmodified in separate processes, behind a fence that keeps its trials from
    changing the user's files. Everything that is found is recorded in a run directory below
    ``.autotune/``, from which ``resume()`` continues. The arguments are the fields of
    ``SearchRequest``.

    Returns:
        The result. Its ``best`` is the baseline if no gain was confirmed.

    Raises:
        UsageError: An argument is wrong, or autotune cannot tune this environment's torch.
        ProgramError: The program fails by itself, or does not make a step.
        BudgetError: The budget ends before the baseline is measured.
        RecordError: The record of the search cannot be written.
        FenceError: No mechanism here keeps trials from changing files. The run directory is
            removed, unless the program was started in it.
        SharedStudyError: The study of several machines searches something else, or its storage
            refuses.
        OutOfReachError: Its storage cannot be reached at the beginning; later that ends nothing.
        Terminated: SIGTERM or SIGHUP has ended the search. It holds the result of what was
            measured, whose files are written; not caught, it ends the process.
    """
    events = request.events or Logged()
    request = replace(request, program=_program(request, events), command=None)
    output = _output(request.output, force=request.force)
    if output is not None:
        output.check(program=request.program if isinstance(request.program, Program) else None)
    run, study = _begin(request)
    options = study.head.options
    study.take_lease()
    try:
        return _searched(run, study, options.budget_s, output, events)
    except (UsageError, SharedStudyError, OutOfReachError):
        if not (run.path / "rigs").exists():  # nothing was started, so there is nothing to resume
            shutil.rmtree(run.path)
        raise


def outlook(request: SearchRequest) -> Outlook:
    """Start the program once, as written, and return what a search of it would try.

    Nothing is kept: the record lies in a temporary folder.

    Raises:
        AutotuneError: As ``search()`` does.
    """
    events = request.events or Logged()
    request = replace(request, program=_program(request, events), command=None)
    with Scratch(short_place()) as scratch:
        run, study = _begin(request, scratch.path)
        study.take_lease()
        return run_outlook(run, study, events)


def resume(
    run_name: str | None = None,
    *,
    budget: str | float | None = None,
    may_change: str | None = None,
    output: str | os.PathLike[str] | Output | None = None,
    force: bool = False,
    fence: FenceOptions = STRONGEST,
    allow_env: Collection[str] = (),
    events: Events | None = None,
) -> SearchResult:
    """Continue a search that was stopped or killed; finished trials are not repeated.

    Args:
        run_name: Name or path of the search; None takes the most recent one.
        budget: New total budget, in which the time already spent counts; None keeps the original
            one.
        may_change: What may change of the training, as in ``search()``; None keeps what the search
            was begun with. The time that checking other batches takes is added to the budget.
        output: Where to write best.yaml in addition to the run directory; None writes no second
            copy.
        force: Take over a run whose process ran on another machine or container that no longer
            exists. autotune cannot check there whether it is still alive. Also replace the file
            that *output* names, whatever it is.
        fence: What keeps trials from changing files. Where the record has a weaker fence, or
            folders that trials may fill, these must be said again: it may be somebody else's.
        allow_env: Environment variables that the record sets although they are not known to tune.
        events: Receives what happens during the search, as in ``search()``.

    Raises:
        RunDirectoryError: There is no such run, another process works on it, or the program or the
            machine has changed.
        RecordError: Its record cannot be read or written.
        Terminated: SIGTERM or SIGHUP has ended the search, as in ``search()``.
        UsageError: The record lets trials do what was not said here, or autotune cannot tune this
            environment's torch.
    """
    require_torch()
    run = search_dir.find(run_name)
    study = run.load_study()
    place, events = _output(output, force=force), events or Logged()
    if place is not None:
        place.check(program=study.head.program)
    machine = hardware.detect(study.head.program.visible_devices)
    search_dir.check_unchanged(study, machine)
    allowed = [allow_env] if isinstance(allow_env, str) else allow_env
    study.head.refuse_unless_said(run.name, study.variables, fence, allowed)
    budget_s = study.head.options.budget_s if budget is None else parse_duration(str(budget))
    study.take_lease(force=force)
    options = study.head.options
    if (going_on := fence.going_on_from(options.fence)) != options.fence:
        study.head = replace(study.head, options=replace(options, fence=going_on))
    if may_change is not None:
        allow(study, level_named(may_change))
    return _searched(run, study, budget_s, place, events, resumes=True)


def _searched(
    run: search_dir.SearchDir,
    study: Study,
    budget_s: float,
    output: Output | None,
    events: Events,
    *,
    resumes: bool = False,
) -> SearchResult:
    """Search or go on, alone or as a member of a shared study, and return the result."""
    finish = partial(_finish, output=output, events=events)
    with joined(run.path, study.head, events, THIS_MACHINE.clock, resumes=resumes) as sharing:
        machine = replace(THIS_MACHINE, sharing=sharing)
        result = run_search(run, study, budget_s, events, machine, finish=finish)
        events.on_result(result)
    return result


def load(run_name: str | None = None) -> SearchResult:
    """Return what an earlier search found; nothing is started.

    Args:
        run_name: Name or path of the run; None takes the most recent one.

    Raises:
        RunDirectoryError: There is no such run, or it has not ended.
        RecordError: Its record cannot be read.
    """
    run = search_dir.find(run_name)
    study = run.load_study()
    result = study.result
    if result is None and study.failure:
        raise RunDirectoryError(
            f"The search '{run.name}' measured nothing: {study.failure}. Mend the "
            "program or its arguments, then search again."
        )
    if result is None:
        raise RunDirectoryError(
            f"The search '{run.name}' has not ended. "
            f"'{study.head.to_resume(run.name)}' goes on with it."
        )
    return replace(result, run_dir=run.path)


def log(result: SearchResult, to: str, folder: str | os.PathLike[str] | None = None) -> str:
    """Log what a search found to the run of an experiment tracker that is active in this process.

    Without one, a run is started that has the search's name. It gets the changed knobs before and
    after as params, speed and memory before and after as metrics, what the figures are about as
    tags, and best.yaml and report.html as artifacts. All names begin with ``autotune/``.

    Args:
        result: What ``search()`` or ``load()`` returned.
        to: ``"mlflow"``, ``"wandb"`` or ``"tensorboard"``.
        folder: Where TensorBoard's event file goes; None takes a folder of the search.

    Returns:
        The run or the folder, as people look for it.

    Raises:
        UsageError: There is no such tracker, its package is not installed, or it refuses.
    """
    from autotune import exports
    from autotune.report import html

    page = html(result, Path(result.own_file.name))
    return exports.log(result, to, page, None if folder is None else Path(folder))


def _output(named: str | os.PathLike[str] | Output | None, *, force: bool) -> Output | None:
    return named if named is None or isinstance(named, Output) else Output.typed(named, force=force)


def _program(request: SearchRequest, events: Events) -> Program | FunctionType:
    """Return the program, or the function that ``_begin()`` makes one of.

    Raises:
        UsageError: Not exactly one of *program* and *command* was given, or it is not a program, or
            autotune cannot tune this environment's torch.
    """
    require_torch()
    program = request.program
    if (program is None) == (request.command is None):
        raise UsageError('Give a program or a command: search("train.py"), or search(command=[…]).')
    if isinstance(program, Program | FunctionType):
        return program
    if callable(program):
        raise UsageError(
            f"{program!r} is not a plain function. Wrap it: def train(): ... and pass that."
        )
    if request.command is not None:
        words = [*words_of(request.command)]
    elif isinstance(program, str | os.PathLike):
        words = [os.fspath(program)]
    else:
        raise UsageError(f"A program is a path, a name or a function, not {program!r}.")
    line = read_line([*words, *request.args], ranks=request.ranks)
    for note in line.notes:
        events.warn(note)
    return line.program


def _begin(request: SearchRequest, base: Path | None = None) -> tuple[search_dir.SearchDir, Study]:
    """Begin the record of a search in *base* or the current directory.

    Args:
        request: Its program has been read.
    """
    program, searched, options = request.program, request.space_searched(), request.options()
    assert isinstance(program, Program | FunctionType)
    short = program.name if isinstance(program, Program) else program.__name__
    run = search_dir.new(request.name, short, base, is_shared=options.sharing is not None)
    if isinstance(program, FunctionType):  # it may have to be pickled into that folder
        program = replace(program_of(program, request.args, run.path), ranks=request.ranks)
    return run, run.create_study(_info(program, searched, options))


def _info(program: Program, searched: SearchSpace, options: SearchOptions) -> SearchInfo:
    return SearchInfo(
        program=program,
        space=searched,
        options=options,
        hardware=hardware.detect(program.visible_devices),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def info_of(request: SearchRequest) -> SearchInfo:
    """Return what a search would record of itself; nothing is written or started.

    Raises:
        UsageError: An argument is wrong, or the program is a function of this process.
    """
    if request.name is not None:
        search_dir.check_name(request.name)
    program = _program(request, request.events or Logged())
    if not isinstance(program, Program):
        raise UsageError("Write the function into a file, so that others can start it, too.")
    return _info(program, request.space_searched(), request.options())


class Logged(Events):
    """Logs what a search does: a line for each phase and each better config, and warnings."""

    def __init__(self) -> None:
        self._best = ""
        self._phase: Phase | None = None

    def on_phase(self, phase: Phase) -> None:
        """Log which phase begins."""
        if phase is not self._phase:
            self._phase = phase
            logger.info(phase)

    def on_rounds(self, best: Config, speedup: float, space: ResolvedSpace) -> None:
        """Log the best config so far, where it is another one than before."""
        changes = changes_of(best, space.baseline)
        if changes != self._best:
            self._best = changes
            logger.info("about %.2gx  %s", speedup, changes or "as written")

    def on_interrupt(self, requests: int, confirm_s: float) -> None:
        """Log what the interrupt does, and what another one would do."""
        logger.warning(answer_to_interrupt(requests, confirm_s))

    def note(self, text: str) -> None:
        """Log a sentence."""
        logger.info(text)

    def warn(self, text: str) -> None:
        """Log a sentence that the user must not miss."""
        logger.warning(text)


def _finish(result: SearchResult, output: Output | None, events: Events) -> None:
    """Write what a search found; where that fails it is said, because the record has it."""
    from autotune.report import html
    from autotune.results.data.result import as_text

    config, own = result.own_file, result.own_file.with_name
    for name in {BEST.name, CANDIDATE} - {config.name}:  # of an earlier session
        with suppress(OSError):
            own(name).unlink()
    # A candidate lies here alone, so its first line names it as it is typed
    typed = str(config) if config.name == CANDIDATE else config.name
    files = {} if config.name == RESULT else {config.name: result.best_file().text(typed)}
    failures = _written(own, files)
    if output is not None and (said := result.put_into(output)):
        events.warn(said)
    found = result.found_in(output)
    files = {RESULT: as_text(result, found), "report.html": html(result, found)}
    if failures := [*failures, *_written(own, files)]:
        again = result.head.to_resume(result.run_dir.name)
        events.warn(f"{failures[0]} Make room; '{again}' writes it.")


def _written(own: Callable[[str], Path], files: Mapping[str, str]) -> list[str]:
    """Write files in the search's folder; return why which cannot be written, as sentences."""
    failures = []
    for name, text in files.items():
        try:
            write_own(own(name), text)
        except UsageError as error:
            failures.append(str(error))
    return failures
