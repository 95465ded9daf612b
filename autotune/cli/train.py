"""The command ``run``: it becomes the process that trains with a best.yaml."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.messages import Messages, errors_told, verbosity
from autotune.cli.options import AllowEnvOption, ArgsArgument, ProgramArgument, QuietOption
from autotune.cli.stdout import print_json
from autotune.cli.typed_line import program_typed
from autotune.errors import AutotuneError, UsageError

if TYPE_CHECKING:
    from autotune.machine.hardware import Hardware
    from autotune.program.program import LaunchPlan, Program
    from autotune.results.bestfile import BestFile

BEST = Path("best.yaml")  # where a search puts it
EXPLAIN = ("-P", "-m", "autotune.inside.train", "--explain")  # of Python, before a best.yaml


def run(
    context: typer.Context,
    best: Annotated[
        Path,
        typer.Argument(help="The file of a search; ./best.yaml by default.", metavar="[BEST.YAML]"),
    ] = BEST,
    program: ProgramArgument = "",
    args: ArgsArgument = None,
    larger_batch: Annotated[
        bool,
        typer.Option("--larger-batch", help="Use the file's config with a larger batch."),
    ] = False,
    allow_env: AllowEnvOption = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Print what acts inside the program, and where, and exit."),
    ] = False,
    print_command: Annotated[
        bool,
        typer.Option("--print-command", help="Print the training command and exit."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --print-command: its words and variables as JSON.")
    ] = False,
    quiet: QuietOption = False,
    nnodes: Annotated[
        int | None,
        typer.Option(min=1, help="Number of machines. Default: the nodes of a SLURM step, else 1."),
    ] = None,
    node_rank: Annotated[
        int | None, typer.Option(min=0, help="Rank of this machine, from 0.")
    ] = None,
    rdzv_endpoint: Annotated[
        str, typer.Option(help="HOST:PORT on the first machine, where all machines meet.")
    ] = "",
) -> None:
    """Train with what a search found.

    Nothing is measured or redirected. Without a program, the one that a search of this folder was
    about is trained.
    """
    from autotune.machine import hardware
    from autotune.program.environment import require_torch
    from autotune.results import bestfile
    from autotune.rig.torchrun_plan import Nodes, nodes_of, trust_note, with_ranks

    messages = Messages(verbosity(quiet=quiet))
    with errors_told(messages):
        require_torch()
    if explain:
        with errors_told(messages):
            file = bestfile.read(best, larger_batch=larger_batch)  # a faulty file is told here
            kind = _kind(file, hardware.detect(), larger_batch=larger_batch)
        line = [sys.executable, *EXPLAIN, str(best)]
        os.execve(sys.executable, line, {**os.environ, **kind})  # noqa: S606
    with errors_told(messages):
        if as_json and not print_command:
            raise UsageError("--json is for --print-command: what a training prints is its own.")
        if best.suffix == ".py":
            typed = shlex.join([str(BEST), str(best), *filter(None, [program]), *(args or ())])
            raise UsageError(f"The file of a search comes first: autotune run {typed}")
        if best == BEST and not program and not best.exists():
            raise UsageError(f"There is no {BEST} here. 'autotune search train.py' writes one.")
        nodes = nodes_of(os.environ) if nnodes is None else Nodes(nnodes, node_rank, rdzv_endpoint)
        file = bestfile.read(best, larger_batch=larger_batch)
        subject = _subject(context, messages, best, file, [program, *(args or ())])
        machine = hardware.detect(subject.visible_devices)
        used = _used(messages, best, file, machine, allow_env)
        plan = _checked_plan(messages, best, used, subject, machine)
        plan = plan.with_env(**_kind(file, machine, larger_batch=larger_batch))
        if nodes.count > 1 and plan.ranks is None:
            raise UsageError(
                f"{best} trains in one process, which cannot be shared among {nodes.count} nodes. "
                "Search with --tune devices first."
            )
        plan = with_ranks(plan, nodes)
        if trust := trust_note(nodes, os.environ):
            messages.warn(trust)
        if print_command:
            if as_json:
                about = {"command": plan.command, "argv": list(plan.argv), "env": dict(plan.env)}
                print_json({**about, "ranks": plan.ranks})
            else:
                sys.stdout.write(f"{plan.command}\n")
            return
        sys.stdout.flush()  # exec drops what is still buffered
        sys.stderr.flush()
        # exec: the program (or torchrun) replaces this process, so it gets the terminal and all
        # signals, and its exit status reaches the shell.
        os.execve(plan.argv[0], plan.argv, {**os.environ, **plan.env})  # noqa: S606


def _kind(file: BestFile, machine: Hardware, *, larger_batch: bool) -> dict[str, str]:
    """Return the variable that tells the training which of a file's configs is meant."""
    if larger_batch:
        return {"AUTOTUNE_RUN": "larger batch"}
    group = file.group_on(machine) if file.groups else ""
    return {"AUTOTUNE_RUN": group} if group else {}


def _subject(
    context: typer.Context, messages: Messages, best: Path, file: BestFile, typed: list[str]
) -> Program:
    """Return the program that is typed, or else the one that the file is about."""
    program, *args = typed
    if not program:
        option = "--larger-batch " if context.params.get("larger_batch") else ""
        command = f"autotune run {option}{quote(str(best))}"
        program, *args = _recorded_line(best, file, command)
        messages.note(f"{command} {shlex.join([program, *args])}")
    return program_typed(context, messages, program, args)


def _used(
    messages: Messages, best: Path, file: BestFile, machine: Hardware, allow_env: list[str] | None
) -> BestFile:
    """Return a file as this machine takes it, and tell what it passes to the program."""
    from autotune.knobs.space import options

    taken, said = file.on(machine)
    if said:
        messages.note(f"{best}: {said}")
    for line in taken.use(best, options.names(allow_env or [])):
        messages.warn(line)
    return taken


def _checked_plan(
    messages: Messages, best: Path, file: BestFile, subject: Program, machine: Hardware
) -> LaunchPlan:
    """Return the plan of a training, and warn where it is not as it was searched."""
    for warning in file.warnings(machine, subject, best):
        messages.warn(warning)
    if subject.ranks is not None and subject.ranks != (searched := file.ranks):
        used = "one process" if searched is None else f"{searched} ranks"
        messages.warn(
            f"The search of {best.name} used {used}, and this line starts {subject.ranks} ranks. "
            "Another config may be faster; search again."
        )
    return run_plan(file, best, subject, machine)


def _recorded_line(best: Path, file: BestFile, command: str) -> list[str]:
    """Return the words of the program that a file is about, if a search here was about it, too.

    A file may be somebody else's, and so may a folder: a line that sets more than variables known
    to tune is not taken from there either.

    Raises:
        UsageError: No search in this folder holds the line; it has to be typed.
    """
    from autotune.tuning.storage import search_dir

    line = file.program
    for search in search_dir.every():
        with suppress(AutotuneError):  # one that cannot be read, or is another user's
            head = search.load_study().head
            if str(head.program) == line and head.is_plain:
                return shlex.split(line)
    typed = line if line.isprintable() else "train.py"
    raise UsageError(
        f"{best} names a program, and no search of this folder is about it; the file may be "
        f"somebody else's. Nothing was started. If you know it, type:\n  {command} {typed}"
    )


def run_plan(best: BestFile, path: Path, program: Program, machine: Hardware) -> LaunchPlan:
    """Return the plan of the process that trains with a best.yaml.

    A file that changes nothing starts a script or a module as it is, without autotune in its
    process, unless it trains in several ranks.

    Args:
        program: The program to train. If its command line starts ranks, their number overrides that
            of the file.

    Raises:
        UsageError: There are fewer GPUs than ranks.
    """
    from autotune.knobs import launch_plan_for
    from autotune.program.program import python_plan

    ranks = best.ranks if program.ranks is None else program.ranks
    own = program.own_plan if best.applied.is_as_written and ranks is None else None
    plan = own or python_plan(
        "autotune.inside.train", str(path), *program.words, cwd=".", options=program.python_options
    )
    # AUTOTUNE_RUN tells an autotune.apply() in the program that the config is applied already.
    plan = replace(plan, ranks=ranks).with_env(**program.env).with_env(AUTOTUNE_RUN="1")
    plan = launch_plan_for(best.applied, plan)
    gpus = len(machine.gpus)
    # With 0 GPUs nothing is known (NVML may not answer), so the program itself has to complain.
    if best.facts.device == "cuda" and plan.ranks is not None and 0 < gpus < plan.ranks:
        raise UsageError(
            f"{path} trains in {plan.ranks} ranks with a GPU each, and {gpus} are visible here. "
            "Search again on this machine, or lower the number in 'devices' in the file."
        )
    return plan
