"""The Python interface: search(), resume(), load() and log().

The commands ``autotune search`` and ``autotune resume`` call these functions too, so both
interfaces check arguments and raise errors in the same way. Nothing is printed here; a caller who
wants to follow the search passes *events*.
"""

from __future__ import annotations

import datetime
import inspect
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from autotune.errors import FenceError, RunDirectoryError, UsageError
from autotune.integrations.notebook import events_here
from autotune.knobs.space.space import SearchSpace
from autotune.machine import hardware
from autotune.program.fence_options import STRONGEST, FenceOptions
from autotune.program.line import read as read_line
from autotune.program.line import words_of
from autotune.program.program import Program, program_of
from autotune.results.record import SearchInfo
from autotune.results.result import SearchResult
from autotune.tuning.choosing.sampler import EffectsSampler
from autotune.tuning.events import Events
from autotune.tuning.search_request import SearchRequest, seconds_of
from autotune.tuning.storage import search_dir
from autotune.tuning.workflow import search as run_search

if TYPE_CHECKING:
    from autotune.integrations.trackers import Logged

__all__ = ["EffectsSampler", "load", "log", "resume", "search"]


def search(
    program: str | os.PathLike[str] | Callable[..., Any] | Program | None = None,
    *,
    command: str | Sequence[str] | None = None,
    args: Sequence[str] = (),
    space: str | SearchSpace = "default",
    budget: str | float = "3m",
    tune: Iterable[str] | None = None,
    fix: Mapping[str, object] | None = None,
    values: Mapping[str, Iterable[object]] | None = None,
    arg: Mapping[str, Iterable[object]] | None = None,
    auto_arg: bool = False,
    env: Mapping[str, Iterable[object]] | None = None,
    lr_rule: str | None = None,
    keep_global_batch: bool = False,
    max_global_batch: int | None = None,
    ranks: int | None = None,
    name: str | None = None,
    output: str | os.PathLike[str] | None = None,
    objective: str = "throughput",
    max_memory: str | float | None = None,
    for_hours: float | None = None,
    accept_learning_change: bool = False,
    check_learning: bool = False,
    sampler: str = "autotune",
    seed: int = 0,
    fence: FenceOptions = STRONGEST,
    events: Events | None = None,
) -> SearchResult:
    """Search for the fastest config of a training program on this machine.

    The program runs unmodified in separate processes, behind a fence that keeps its trials from
    changing the user's files. Everything that is found is recorded in a run directory below
    ``.autotune/``, from which ``resume()`` continues.

    Args:
        program: Path of a script, ``"file.py:function"``, ``"module:function"``, or a function. A
            function with a parameter named ``config`` receives a ``Config``; the values it reads
            from that are applied by the function alone.
        command: The complete command line that starts the program, instead of *program*: a list
            such as ``["torchrun", "--nproc-per-node", "2", "train.py"]``, or text that is split as
            a shell would.
        args: The program's arguments.
        space: Name of a shipped search space, path of a YAML file, or a SearchSpace.
        budget: Wall time for everything including the confirmation: seconds, or text such as
            ``"3m"``.
        tune: Search only these knobs. None searches all knobs of the space.
        fix: Values at which knobs are held in every config except the baseline.
        values: Candidate values for knobs, instead of those that autotune would choose.
        arg: Candidate values for the program's command-line flags or the function's keywords:
            ``{"--hidden": [128, 256]}``, ``{"hidden": [128, 256]}``.
        auto_arg: Use the program's flags for all knobs that autotune does not set itself, and try
            them early. Without it, flags are used where autotune only lacks another way.
        env: Candidate values for environment variables.
        lr_rule: How learning rates follow the batch size: ``"linear"``, ``"sqrt"`` or ``"none"``.
            By default the optimizer's family decides.
        keep_global_batch: Keep the samples per step, and therefore the learning rate, unchanged.
        max_global_batch: The most samples per step; by default 32 times the program's own.
        ranks: Number of ranks with which torchrun starts the program; None starts one process.
        name: Name of the run directory below ``.autotune/``.
        output: Where to write best.yaml in addition to the run directory; None writes no second
            copy.
        objective: What configs are compared by: ``"throughput"`` (samples/s), ``"step-time"``
            (optimizer steps/s), ``"memory"`` (the inverse of its peak) or ``"energy"`` (samples per
            joule).
        max_memory: Share of the memory that a config may use at most, such as ``0.9`` or
            ``"90%"``: of the device where one is used, else of the host.
        for_hours: Hours that the training will take, so that time spent compiling counts.
        accept_learning_change: Recommend the fastest config even if its training was seen to
            differ from that of the program as written, or was not checked.
        check_learning: If the fastest config has another global batch, compare what it learns with
            the program as written. That takes some minutes beyond the budget. By default it is done
            where it fits into the budget; otherwise the global batch stays.
        sampler: What chooses the configs: ``"autotune"``, or a sampler of Optuna, ``"tpe"``,
            ``"gp"`` or ``"random"``.
        seed: Seed of the sampler.
        fence: What keeps trials from changing files; by default the strongest that works here.
        events: Receives what happens during the search, as the console does on the command line.
            None shows a table in a Jupyter notebook, and discards it elsewhere.

    Returns:
        The result. Its ``best`` is the baseline if no gain was confirmed.

    Raises:
        UsageError: An argument is wrong.
        ProgramError: The program fails by itself, or does not make a step.
        BudgetError: The budget ends before the baseline is measured.
        FenceError: No mechanism here keeps trials from changing files. The run directory is
            removed.
    """
    request = SearchRequest(
        space=space,
        budget=budget,
        tune=tune,
        fix=fix,
        values=values,
        arg=arg or {},
        auto_arg=auto_arg,
        env=env or {},
        lr_rule=lr_rule,
        keep_global_batch=keep_global_batch,
        max_global_batch=max_global_batch,
        objective=objective,
        max_memory=max_memory,
        for_hours=for_hours,
        accept_learning_change=accept_learning_change,
        check_learning=check_learning,
        sampler=sampler,
        seed=seed,
        fence=fence,
    )
    searched, options = request.space_searched(), request.options()
    _refuse_unwritable(output)
    events = events or events_here()
    run, subject = _begin(_subject(program, command), args, name, ranks, events)
    head = SearchInfo(
        program=subject,
        space=searched,
        options=options,
        hardware=hardware.detect(subject.visible_devices),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    study = run.create_study(head)
    study.take_lease()
    try:
        result = run_search(run, study, options.budget_s, events)
    except FenceError:  # nothing was started, so there is nothing to resume either
        shutil.rmtree(run.path)
        raise
    return _finish(result, output)


def resume(
    run_name: str | None = None,
    *,
    budget: str | float | None = None,
    check_learning: bool = False,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    events: Events | None = None,
) -> SearchResult:
    """Continue a search that was stopped or killed; finished trials are not repeated.

    Args:
        run_name: Name or path of the run; None takes the most recent one.
        budget: New total budget, in which the time already spent counts; None keeps the original
            one.
        check_learning: Compare what the fastest config learns, as in ``search()``, and confirm it;
            the time for that is added to the budget.
        output: Where to write best.yaml in addition to the run directory; None writes no second
            copy.
        force: Take over a run whose process ran on another machine or container that no longer
            exists. autotune cannot check there whether it is still alive.
        events: Receives what happens during the search, as in ``search()``.

    Raises:
        RunDirectoryError: There is no such run, another process works on it, or the program or the
            machine has changed.
    """
    _refuse_unwritable(output)
    run = search_dir.find(run_name)
    study = run.load_study()
    machine = hardware.detect(study.head.program.visible_devices)
    search_dir.check_unchanged(study.head, machine)
    budget_s = study.head.options.budget_s if budget is None else seconds_of(budget)
    study.take_lease(force=force)
    if check_learning:
        study.checks_learning = True
    return _finish(run_search(run, study, budget_s, events or events_here()), output)


def load(run_name: str | None = None) -> SearchResult:
    """Return what an earlier search found; nothing is started.

    Args:
        run_name: Name or path of the run; None takes the most recent one.

    Raises:
        RunDirectoryError: There is no such run, or it has not ended.
    """
    from autotune.report import ShownResult

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
            f"'autotune resume {quote(run.name)}' goes on with it."
        )
    return ShownResult.of(replace(result, run_dir=run.path))


def log(result: SearchResult, to: str, run: object = None) -> Logged:
    """Log what a search found to a run of an experiment tracker, which stays open.

    It gets the changed knobs before and after as params, speed and memory before and after as
    metrics, what the figures are about as tags, and best.yaml and report.html as artifacts. All
    names begin with ``autotune/``.

    Args:
        result: What ``search()`` or ``load()`` returned.
        to: ``"mlflow"``, ``"wandb"`` or ``"tensorboard"``.
        run: MLflow: a run or its id. W&B: a run. TensorBoard: a folder or a SummaryWriter. None
            takes the run that is active in this process; TensorBoard knows no such run.

    Returns:
        Where the result was logged, and what the tool cannot hold.

    Raises:
        UsageError: There is no such tracker, its package is not installed, no run is active, or the
            tracker refuses.
    """
    from autotune.integrations.tracked_result import tracked_result
    from autotune.integrations.trackers import tracker

    chosen = tracker(to)
    return chosen.log(tracked_result(result), run)


def _refuse_unwritable(output: str | os.PathLike[str] | None) -> None:
    """Check now what a search of minutes must not end with: a file that cannot be written."""
    if output is None:
        return
    path = Path(output)
    # Folders that are missing are made when the file is saved.
    above = next(folder for folder in path.resolve().parents if os.access(folder, os.F_OK))
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        why = "may not be written" if above.is_dir() else "is not a folder"
        raise UsageError(f"'{output}' cannot be written: '{above}' {why}. Name another --output.")
    if path.is_dir():
        raise UsageError(f"'{output}' is a folder: name a file, such as {path / 'best.yaml'}")


def _subject(
    program: str | os.PathLike[str] | Callable[..., Any] | Program | None,
    command: str | Sequence[str] | None,
) -> Sequence[str] | Callable[..., Any] | Program:
    """Return what to search: the words of a command line, a function, or a Program.

    Raises:
        UsageError: Not exactly one of *program* and *command* was given.
    """
    if (program is None) == (command is None):
        raise UsageError('Give a program or a command: search("train.py"), or search(command=[…]).')
    if command is not None:
        return words_of(command)
    if isinstance(program, str | os.PathLike):
        return [os.fspath(program)]
    if program is None or not (callable(program) or isinstance(program, Program)):
        raise UsageError(f"A program is a path, a name or a function, not {program!r}.")
    return program


def _begin(
    program: Sequence[str] | Callable[..., Any] | Program,
    args: Sequence[str],
    name: str | None,
    ranks: int | None,
    events: Events,
) -> tuple[search_dir.SearchDir, Program]:
    """Return the run directory and the program.

    The program is read first, so that a mistyped path leaves no run directory behind.
    """
    if callable(program):
        if not inspect.isfunction(program):
            raise UsageError(
                f"{program!r} is not a plain function. Wrap it: def train(): ... and pass that."
            )
        # A function may have to be pickled into the run directory, so that is created first.
        run = search_dir.new(name, program.__name__)
        return run, replace(program_of(program, args, run.path), ranks=ranks)
    if isinstance(program, Program):
        return search_dir.new(name, program.name), program
    line = read_line([*program, *args], ranks=ranks)
    subject = line.program
    for note in line.notes:
        events.warn(note)
    return search_dir.new(name, subject.name), subject


def _finish(result: SearchResult, output: str | os.PathLike[str] | None) -> SearchResult:
    from autotune.report import ShownResult, html

    own = result.run_dir / "best.yaml"
    result.save(own)
    if output is not None:
        result.save(Path(output))
    page = html(result, own if output is None else Path(output))
    result.run_dir.joinpath("report.html").write_text(page, encoding="utf-8")
    return ShownResult.of(result)
