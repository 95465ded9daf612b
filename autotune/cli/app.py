"""The commands of ``autotune`` that start the program: one function per subcommand.

autotune's own options come before the program; everything after the program's name belongs to the
program. Commands about searches that are over stand in ``past_runs``.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune import __version__
from autotune.cli import compare as comparing
from autotune.cli import completion, past_runs, skill, support, tracker_log
from autotune.cli.exits import errors_told
from autotune.cli.messages import Messages, Verbosity
from autotune.cli.options import (
    LINE,
    AllowEnvOption,
    ArgsArgument,
    BudgetOption,
    CacheDirOption,
    CheckLearningOption,
    FenceOption,
    JsonOption,
    MaxScratchOption,
    ModuleOption,
    OutputOption,
    ProgramArgument,
    QuietOption,
    RanksOption,
    RunArgument,
    ScratchDirOption,
    SideEffectsOption,
    VerboseOption,
)
from autotune.errors import UsageError

if TYPE_CHECKING:
    from autotune.cli.console import Console
    from autotune.program.program import Program
    from autotune.results.result import SearchResult

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find the fastest safe configuration for a PyTorch training program, with proof.",
    pretty_exceptions_enable=False,
)
AUTO = "auto"
# Exit status if only the baseline was measured, so that scripts can tell it from "no gain" (0)
NOTHING_MEASURED = 3
# Without this, click would also read options that stand after the program as autotune's.
PROGRAM_LAST = {"allow_interspersed_args": False, "ignore_unknown_options": False}


@app.command(context_settings=PROGRAM_LAST)
def search(
    program: ProgramArgument,
    args: ArgsArgument = None,
    module: ModuleOption = False,
    budget: BudgetOption = "3m",
    space: Annotated[
        str,
        typer.Option(
            help="Built-in search space, or a YAML file.", autocompletion=completion.spaces
        ),
    ] = "default",
    tune: Annotated[
        list[str] | None,
        typer.Option(
            help="Search only these knobs: a,b. Repeatable.", autocompletion=completion.knob_list
        ),
    ] = None,
    fix: Annotated[
        list[str] | None,
        typer.Option(
            help="Hold a knob at a value: knob=value. Repeatable.",
            autocompletion=completion.knob_value,
        ),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            help="Candidate values: knob=v1,v2. Repeatable.",
            autocompletion=completion.knob_value,
        ),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            help="Candidate values for one of the program's flags: --arg='--hidden=128,256'. "
            "'auto' uses the program's flags for all knobs that autotune does not set itself, and "
            "tries them early. "
            "Repeatable."
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="Candidate values for an environment variable: NAME=a,b. Repeatable."),
    ] = None,
    lr_rule: Annotated[
        str | None,
        typer.Option(
            help="How the learning rate follows the batch size: linear, sqrt or none. "
            "Default: chosen for each optimizer by its class.",
            autocompletion=completion.lr_rules,
        ),
    ] = None,
    keep_global_batch: Annotated[
        bool,
        typer.Option(
            "--keep-global-batch", help="Keep the samples per step and the learning rate unchanged."
        ),
    ] = False,
    max_global_batch: Annotated[
        int | None, typer.Option(help="Maximum samples per step. Default: at least 32 times yours.")
    ] = None,
    nproc_per_node: RanksOption = None,
    output: OutputOption = Path("best.yaml"),
    name: Annotated[str | None, typer.Option(help="Name of the folder in .autotune/.")] = None,
    objective: Annotated[
        str,
        typer.Option(
            help="What to improve: throughput, step-time, memory or energy.",
            autocompletion=completion.objectives,
        ),
    ] = "throughput",
    max_memory: Annotated[
        str | None, typer.Option(help="Share of the memory that a config may use: 90%.")
    ] = None,
    for_hours: Annotated[
        float | None,
        typer.Option(help="Hours that the training will take, so that compiling time counts."),
    ] = None,
    accept_learning_change: Annotated[
        bool,
        typer.Option(
            "--accept-learning-change",
            help="Recommend the fastest config even if it trains something else, or may.",
        ),
    ] = False,
    check_learning: CheckLearningOption = False,
    sampler: Annotated[
        str,
        typer.Option(
            help="What chooses configs: autotune, or Optuna's tpe, gp or random.",
            autocompletion=completion.samplers,
        ),
    ] = "autotune",
    seed: Annotated[int, typer.Option(help="Seed of the sampler.")] = 0,
    fence: FenceOption = None,
    scratch_dir: ScratchDirOption = None,
    max_scratch: MaxScratchOption = None,
    cache_dir: CacheDirOption = None,
    allow_side_effects: SideEffectsOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search for the fastest config of a training program, without changing the program."""
    console = _console(verbose=verbose, quiet=quiet)
    words = _words(program, args, is_module=module)
    with errors_told(console, resumable=True):
        subject = _read(console, words, "search", nproc_per_node)
        from autotune import api
        from autotune.cli import search_report
        from autotune.knobs.space import options

        result = api.search(
            subject,
            space=space,
            budget=budget,
            tune=options.names(tune) if tune is not None else None,
            fix=options.settings(fix or [], "--fix"),
            values=options.values(values or [], "--values"),
            arg=options.own_values([a for a in arg or [] if a != AUTO], "--arg"),
            auto_arg=AUTO in (arg or []),
            env=options.texts(env or [], "--env"),
            lr_rule=lr_rule,
            keep_global_batch=keep_global_batch,
            max_global_batch=max_global_batch,
            name=name,
            output=output,
            objective=objective,
            max_memory=max_memory,
            for_hours=for_hours,
            accept_learning_change=accept_learning_change,
            check_learning=check_learning,
            sampler=sampler,
            seed=seed,
            fence=options.fence(
                fence, scratch_dir, max_scratch, cache_dir, allow_side_effects=allow_side_effects
            ),
            events=console,
        )
    search_report.show(result, output, as_json=as_json)
    _exit_with(result)


@app.command()
def resume(
    run: RunArgument = None,
    budget: Annotated[
        str | None, typer.Option(help="New total budget. Default: the search's own.")
    ] = None,
    check_learning: CheckLearningOption = False,
    output: OutputOption = Path("best.yaml"),
    force: Annotated[
        bool, typer.Option("--force", help="Take over a run from a machine that is gone.")
    ] = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Continue a search that was stopped or killed."""
    from autotune import api
    from autotune.cli import search_report

    console = _console(verbose=verbose, quiet=quiet)
    with errors_told(console, resumable=True):
        result = api.resume(
            run,
            budget=budget,
            check_learning=check_learning,
            output=output,
            force=force,
            events=console,
        )
    search_report.show(result, output, as_json=as_json)
    _exit_with(result)


@app.command(context_settings=PROGRAM_LAST)
def run(
    best: Annotated[Path, typer.Argument(help="The best.yaml of a search.", show_default=False)],
    program: ProgramArgument = "",
    args: ArgsArgument = None,
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
    """Train with the config of a best.yaml, without measuring or redirecting anything."""
    from autotune.cli.train import EXPLAIN, on_nodes, plan_json, run_plan
    from autotune.knobs.space import options
    from autotune.machine import hardware
    from autotune.results import bestfile
    from autotune.rig.torchrun_plan import Nodes, nodes_of, trust_note

    messages = Messages(_verbosity(quiet=quiet))
    if explain:
        with errors_told(messages):
            bestfile.read(best)  # a faulty file is told here
        os.execv(sys.executable, [sys.executable, *EXPLAIN, str(best)])  # noqa: S606
    words = _words(program, args)
    with errors_told(messages):
        if not program:
            raise UsageError(f"Name the program to train: autotune run {best} train.py")
        if as_json and not print_command:
            raise UsageError("--json is for --print-command: what a training prints is its own.")
        file = bestfile.read(best)
        for line in file.use(best, options.names(allow_env or [])):
            messages.warn(line)
        subject = _read(messages, words, "run")
        machine = hardware.detect(subject.visible_devices)
        for warning in file.warnings(machine, subject):
            messages.warn(warning)
        if note := file.ranks_warning(best, subject.ranks):
            messages.warn(note)
        nodes = nodes_of(os.environ) if nnodes is None else Nodes(nnodes, node_rank, rdzv_endpoint)
        plan = on_nodes(run_plan(file, best, subject, machine), best, nodes)
        if trust := trust_note(nodes, os.environ):
            messages.warn(trust)
        if print_command:
            sys.stdout.write(f"{plan_json(plan) if as_json else plan.command}\n")
            return
        sys.stdout.flush()  # exec drops what is still buffered
        sys.stderr.flush()
        # exec: the program (or torchrun) replaces this process, so it gets the terminal and all
        # signals, and its exit status reaches the shell.
        os.execve(plan.argv[0], plan.argv, {**os.environ, **plan.env})  # noqa: S606


@app.command(cls=comparing.SidesFirst, context_settings=PROGRAM_LAST)
def compare(
    first: Annotated[
        str,
        typer.Argument(
            help="'written' (the program as it is), a best.yaml, the name of a run, or "
            "git:REVISION.",
            metavar="A",
            show_default=False,
            autocompletion=completion.sides,
        ),
    ],
    second: Annotated[
        str,
        typer.Argument(
            help="The same, to be compared with A.",
            metavar="B",
            show_default=False,
            autocompletion=completion.sides,
        ),
    ],
    program: Annotated[
        str | None,
        typer.Argument(
            help=f"Without it, both sides are runs that are shown side by side. {LINE}",
            show_default=False,
            metavar="LINE",
        ),
    ] = None,
    args: ArgsArgument = None,
    module: ModuleOption = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", "-o", help="Where to write the reports of two runs as one page, side by side."
        ),
    ] = None,
    allow_env: AllowEnvOption = None,
    budget: BudgetOption = "2m",
    fence: FenceOption = None,
    scratch_dir: ScratchDirOption = None,
    max_scratch: MaxScratchOption = None,
    cache_dir: CacheDirOption = None,
    allow_side_effects: SideEffectsOption = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure two configs or commits against each other, or show two runs side by side."""
    from autotune.knobs.space import options
    from autotune.tuning.budget import parse_duration

    console = _console(quiet=quiet)
    words = _words(program, args, is_module=module)
    with errors_told(console):
        if program is None:
            comparing.show_two_runs((first, second), html, as_json=as_json)
            return
        if html is not None:
            raise UsageError("--html is for two runs: autotune compare RUN RUN --html page.html")
        fenced = options.fence(
            fence, scratch_dir, max_scratch, cache_dir, allow_side_effects=allow_side_effects
        )
        found = comparing.measure(
            (first, second),
            _read(console, words, "compare"),
            parse_duration(budget),
            console,
            fenced,
            options.names(allow_env or []),
        )
    comparing.show(found, as_json=as_json)


@app.command(context_settings=PROGRAM_LAST)
def doctor(
    program: Annotated[
        str | None,
        typer.Argument(
            help=f"Without it, only the machine is described. {LINE}",
            show_default=False,
            metavar="LINE",
        ),
    ] = None,
    args: ArgsArgument = None,
    module: ModuleOption = False,
    aa: Annotated[bool, typer.Option("--aa", hidden=True)] = False,
    nproc_per_node: RanksOption = None,
    fence: FenceOption = None,
    scratch_dir: ScratchDirOption = None,
    max_scratch: MaxScratchOption = None,
    cache_dir: CacheDirOption = None,
    allow_side_effects: SideEffectsOption = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find out where a program's step goes, and what slows it and this machine down."""
    from autotune.cli import doctor as examining
    from autotune.knobs.space import options

    console = _console(quiet=quiet)
    words = _words(program, args, is_module=module)
    with errors_told(console):
        if aa:
            raise UsageError(
                "doctor has no --aa any more. Type: autotune compare written written train.py"
            )
        subject = None if program is None else _read(console, words, "doctor", nproc_per_node)
        fenced = options.fence(
            fence, scratch_dir, max_scratch, cache_dir, allow_side_effects=allow_side_effects
        )
        examining.examine(subject, console, fenced, as_json=as_json)


@app.command(
    hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def measure() -> None:
    """Say what to type instead of a command that is gone."""
    with errors_told(_console()):
        raise UsageError("There is no command 'measure' any more. Type: autotune doctor train.py")


@app.command(context_settings=PROGRAM_LAST)
def knobs(
    program: Annotated[
        str | None,
        typer.Argument(
            help=f"Without it, a typical program is assumed. {LINE}",
            show_default=False,
            metavar="LINE",
        ),
    ] = None,
    args: ArgsArgument = None,
    module: ModuleOption = False,
    fence: FenceOption = None,
    scratch_dir: ScratchDirOption = None,
    max_scratch: MaxScratchOption = None,
    cache_dir: CacheDirOption = None,
    allow_side_effects: SideEffectsOption = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """List all knobs: the values that a search would try here, or why a knob is not offered."""
    from autotune.cli import knob_sheet
    from autotune.knobs.base import Here
    from autotune.knobs.space import options
    from autotune.machine import hardware
    from autotune.program.typical_profile import ordinary_program
    from autotune.rig.open_rig import Reports
    from autotune.tuning.start.observe import observe

    console = _console(quiet=quiet)
    words = _words(program, args, is_module=module)
    with errors_told(console):
        subject = None if program is None else _read(console, words, "knobs")
        machine = hardware.detect(None if subject is None else subject.visible_devices)
        if subject is None:
            device = "cuda" if machine.gpus else "cpu"
            about = "a typical image classifier on this machine; name a program to inspect it"
            here = Here(machine, ordinary_program(device))
        else:
            fenced = options.fence(
                fence, scratch_dir, max_scratch, cache_dir, allow_side_effects=allow_side_effects
            )
            reports = Reports(warning=console.warn, note=console.note)
            about, here = str(subject), observe(subject, machine, fenced, reports)
    rows = knob_sheet.rows(here.hardware, here.profile)
    if as_json:
        sys.stdout.write(knob_sheet.as_json(rows, about, here.profile.flags) + "\n")
    else:
        knob_sheet.show(rows, about, here.profile.flags)


for command in (
    *(past_runs.report, past_runs.runs, past_runs.show, past_runs.export),
    *(tracker_log.log, support.env, support.dashboard, skill.skill),
):
    app.command()(command)


def _console(*, verbose: bool = False, quiet: bool = False) -> Console:
    from autotune.cli.console import Console

    return Console(_verbosity(verbose=verbose, quiet=quiet))


def _verbosity(*, verbose: bool = False, quiet: bool = False) -> Verbosity:
    if verbose:
        return Verbosity.VERBOSE
    return Verbosity.QUIET if quiet else Verbosity.NORMAL


def _exit_with(result: SearchResult) -> None:
    """Exit with a status that tells scripts that no config was measured."""
    if result.has_measured_nothing:
        raise typer.Exit(NOTHING_MEASURED)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        typer.echo(f"autotune {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; the entry point of the command ``autotune``."""
    app()


def _words(
    program: str | None, args: Sequence[str] | None, *, is_module: bool = False
) -> tuple[str, ...]:
    """Return the command line as it was typed, with ``-m`` put back in front."""
    if program is None:
        return ()
    words = (program, *(args or ()))
    return ("-m", *words) if is_module else words


def _read(
    messages: Messages, words: Sequence[str], command: str, ranks: int | None = None
) -> Program:
    """Return the program that a command line starts, and warn about what was not taken as typed."""
    from autotune.program import line

    found = line.read(words, ranks=ranks)
    for note in (*found.notes, *_strayed(found.program, words, command)):
        messages.warn(note)
    return found.program


def _strayed(program: Program, words: Sequence[str], command: str) -> Iterator[str]:
    """Yield a warning if options of autotune stand after the program, with the line to type.

    Such an option goes to the program. It is only warned about if the program's file does not
    contain its name.
    """
    names = [arg.partition("=")[0] for arg in program.args if arg.startswith("-")]
    # A program that knows an option of the same name contains it, with dashes or as an identifier.
    text = Path(program.source).read_text(encoding="utf-8", errors="replace")
    unknown = [n for n in names if n.lstrip("-").replace("-", "_") not in text]
    known = _options(command) if unknown else {}
    if strayed := [n for n in unknown if n in known]:
        ours, theirs = list[str](), list(program.args)
        before = words[: len(words) - len(theirs)]
        for name in strayed:
            place = next(n for n, arg in enumerate(theirs) if arg.partition("=")[0] == name)
            end = place + 1 + (known[name] and "=" not in theirs[place])
            ours += theirs[place:end]
            del theirs[place:end]
        ours += [] if before[0].endswith(".py") else ["--"]
        yield (
            f"{' '.join(strayed)} stands after the program, so the program gets it. If it is meant "
            "for autotune, press Ctrl-C and type: "
            f"autotune {command} {shlex.join([*ours, *before, *theirs])}"
        )


def _options(command: str) -> dict[str, bool]:
    """Return the options of a subcommand as they are typed, and whether a value follows."""
    group = typer.main.get_command(app)
    found = group.commands[command].params  # type: ignore[attr-defined]
    return {
        name: not getattr(parameter, "is_flag", False)
        for parameter in found
        for name in parameter.opts
        if name.startswith("-")
    }
