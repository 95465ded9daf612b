"""The command ``compare``: two configs or commits of a program, measured against each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import completion
from autotune.cli.messages import errors_told, plain, verbosity
from autotune.cli.options import (
    AllowEnvOption,
    ArgsArgument,
    BudgetOption,
    FenceRequest,
    JsonOption,
    ModuleOption,
    ProgramArgument,
    QuietOption,
)
from autotune.cli.typed_line import program_typed
from autotune.errors import RunDirectoryError, UsageError, did_you_mean

if TYPE_CHECKING:
    from autotune.cli.console import Talk
    from autotune.program.program import Program
    from autotune.tuning.compare import ComparedSide, Comparison

UNCERTAIN_PCT = 1000.0  # from which the most that a difference may be says nothing
YAML = {".yaml", ".yml"}
USAGE = (
    "What should be compared? autotune compare best.yaml train.py. A side is 'written' (the "
    "program as it is), a best.yaml, the name of a search, or git:REVISION"
)
SIDE = typer.Argument(
    help="a side: a best.yaml, the name of a search, git:REVISION, or 'written' (as it is).",
    metavar="A",
    autocompletion=completion.sides,
)
FAIL_IF_SLOWER = typer.Option(
    metavar="PERCENT",
    help="End with status 1 if B is this much slower than A: 5%. With 0 if such a slowdown is "
    "ruled out, and with 4 if neither can be told within the budget.",
)
OTHER_SIDE = typer.Argument(metavar="[B]", autocompletion=completion.sides)


def compare(
    context: typer.Context,
    a: Annotated[str, SIDE] = "",
    b: Annotated[str, OTHER_SIDE] = "",
    program: ProgramArgument = "",
    args: ArgsArgument = None,
    module: ModuleOption = False,
    allow_env: AllowEnvOption = None,
    budget: BudgetOption = "2m",
    *,
    fail_if_slower: Annotated[str, FAIL_IF_SLOWER] = "",
    fence: FenceRequest,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure two configs or commits of a program against each other.

    With one side, it is compared with the program as written.
    """
    from autotune.cli.console import Talk
    from autotune.knobs.space import options
    from autotune.machine import hardware
    from autotune.measurement.gate import Gate
    from autotune.tuning import compare as comparing
    from autotune.tuning.budget import parse_duration

    console = Talk(verbosity(quiet=quiet))
    with errors_told(console), ExitStack() as stack:
        is_program = Path(b).is_file() and Path(b).suffix not in YAML  # what follows is its own
        before = (b,) if is_program else (b, program)
        if stray := next((word for word in before if word[:2] == "--" != word), ""):
            raise UsageError(f"Options come first: autotune compare {stray} … A B train.py")
        if not b:
            raise UsageError(USAGE)
        names, words = parted(a, b, program, args or [])
        if not words:
            raise UsageError(
                f"Name the program that is to run: autotune compare {quote(a)} {quote(b)} train.py."
            )
        gate = Gate.read(fail_if_slower) if fail_if_slower else None
        subject = program_typed(context, console, words[0], words[1:], is_module=module)
        allowed = options.names(allow_env or [])
        sides = [stack.enter_context(_side(one, subject, console, allowed)) for one in names]
        found = comparing.compare(
            (sides[0], sides[1]),
            hardware.detect(subject.visible_devices),
            comparing.CompareOptions(parse_duration(budget), fence.options(), gate),
            console,
        )
    show(found, as_json=as_json)
    if found.verdict is not None:
        raise typer.Exit(comparing.STATUSES[found.verdict])


def parted(a: str, b: str, program: str, args: list[str]) -> tuple[tuple[str, str], list[str]]:
    """Return the names of both sides and the words of the program.

    Where the second word names no side, it is the program, and the first side is compared with the
    program as written.
    """
    from autotune.program.revision import COMMIT, WRITTEN
    from autotune.tuning.storage import search_dir

    is_file = Path(b).suffix in YAML or b == WRITTEN or b.startswith(COMMIT)
    is_side = is_file or b in [one.name for one in search_dir.every()]
    # A mistyped name before a script is told as one
    if is_side or (not Path(b).exists() and Path(program).is_file()):
        return (a, b), [program, *args] if program else []
    return (WRITTEN, a), [b, *([program] if program else []), *args]


@contextmanager
def _side(name: str, program: Program, console: Talk, allowed: list[str]) -> Iterator[ComparedSide]:
    """Read a side; where it is a commit, its files exist until the end."""
    from autotune.program.revision import COMMIT, WRITTEN, at_revision
    from autotune.results import bestfile
    from autotune.tuning.compare import ComparedSide

    if name == WRITTEN:
        yield ComparedSide(program)
    elif name.startswith(COMMIT):
        with at_revision(program, name.removeprefix(COMMIT)) as found:
            yield ComparedSide(found.program, None, name, found.commit)
    else:
        path = best_file(name)
        file, kind = bestfile.read(path).on()
        if kind:
            console.note(f"{path}: {kind}")
        for line in file.use(path, allowed):
            console.warn(line)
        yield ComparedSide(program, file, name)


def best_file(name: str) -> Path:
    """Return the best.yaml that is named by its path, or as that of a search; else UsageError."""
    from autotune.program.revision import WRITTEN
    from autotune.results.bestfile import CANDIDATE, RESULT
    from autotune.results.wording import as_typed
    from autotune.tuning.storage import search_dir

    if Path(name).is_file() or Path(name).suffix in YAML:
        return Path(name)  # that it is not there is said where it is read
    try:
        search = search_dir.find(name)
    except RunDirectoryError as error:
        names = [one.name for one in search_dir.every()]
        listed = f"{', '.join(names)}." if names else "none."
        raise UsageError(
            f"There is no best.yaml and no search '{name}'."
            f"{did_you_mean(name, [WRITTEN, *names])} {USAGE}. Searches here: {listed}"
        ) from error
    best, candidate = search.path / "best.yaml", search.path / CANDIDATE
    if best.is_file():
        return best
    if candidate.is_file():
        why = f"its config is not confirmed. Name it by its file: {as_typed(candidate)}"
    elif (search.path / RESULT).is_file():
        why = f"it found nothing faster. 'autotune show {quote(name)}' says why"
    else:
        why = f"it has not ended. 'autotune resume {quote(name)}' goes on with it"
    raise UsageError(f"The search '{name}' has no best.yaml: {why}.")


def show(found: Comparison, *, as_json: bool) -> None:
    """Print which of two sides is faster."""
    from autotune.cli.stdout import print_json, results_console
    from autotune.results.data.comparison import Difference
    from autotune.results.wording import times
    from autotune.tuning.compare import as_data

    if as_json:
        print_json(as_data(found))
        return
    out = results_console()
    first, second = (plain(side.name) for side in found.sides)
    speedup = times(found.speedup)
    if found.difference is Difference.UNCONFIRMED:
        said = f"[bold]Not confirmed:[/] {second} looks {speedup} as fast as {first}"
    elif found.difference is Difference.NONE:
        most = f", so at most {found.most_pct:.0f} %" if found.most_pct < UNCERTAIN_PCT else ""
        said = f"[bold]No difference to be seen[/] between {second} and {first}: {speedup}{most}"
    else:
        said = f"[bold]{second} is {found.difference}[/] than {first}: {speedup}"
    out.print(said)
    for side, samples_per_s in zip(found.sides, found.samples_per_s, strict=True):
        commit = f" ({side.commit[:8]})" if side.commit else ""
        out.print(f"  {plain(side.name)}{commit}: {samples_per_s:,.1f} samples/s")
    for knob, value in found.second.changes_from(found.first).items():
        out.print(f"  {plain(knob)}: {plain(found.first.get(knob, ''))} → {plain(value)}")
    if found.training_note:
        style = "yellow" if found.trains_otherwise else "default"
        out.print(f"  [{style}]{plain(found.training_note)}[/]")
    for note in found.notes:
        out.print(f"  [yellow]{plain(note)}[/]")
    if found.gate is not None:
        out.print(f"[bold]Gate: {found.verdict}.[/] {plain(found.gate_reason)}.")
