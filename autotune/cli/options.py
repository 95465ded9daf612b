"""Options and arguments that several commands have, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli import completion

LINE = (
    "What to train: train.py, file.py:function, module:function, or your usual command line: "
    "python -u train.py, python -m package.train, A=1 torchrun --nproc-per-node 2 train.py, "
    "accelerate launch train.py, a console script. A '--' before it is optional."
)
ProgramArgument = Annotated[str, typer.Argument(help=LINE, show_default=False, metavar="LINE")]
ModuleOption = Annotated[
    bool, typer.Option("-m", "--module", help="Train a module, as python -m does.")
]
ArgsArgument = Annotated[
    list[str] | None, typer.Argument(help="The program's own arguments.", show_default=False)
]
BudgetOption = Annotated[
    str, typer.Option(help="Wall time, confirmation included: 90s, 3m, 1h30m.")
]
RanksOption = Annotated[
    int | None,
    typer.Option(
        "--nproc-per-node",
        min=1,
        help="Start this number of ranks on this machine, as torchrun does.",
    ),
]
FenceOption = Annotated[
    str | None,
    typer.Option(
        "--fence",
        help="Fence that keeps trials from changing your files: overlay, landlock or guard. "
        "Default: the first that works here (guard only with --allow-side-effects).",
        autocompletion=completion.fences,
    ),
]
ScratchDirOption = Annotated[
    Path | None,
    typer.Option(help="Where to keep what a trial writes until it ends: a folder on a local disk."),
]
MaxScratchOption = Annotated[
    str | None,
    typer.Option(help="Limit for what one trial may write: 20G. Default: a tenth of free space."),
]
CacheDirOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="Folder with data that the program prepares before its first step; later trials "
        "reuse it. Repeatable."
    ),
]
SideEffectsOption = Annotated[
    bool,
    typer.Option(
        "--allow-side-effects",
        help="Search even if only the guard works: it redirects writes by Python's own functions, "
        "but C libraries and subprocesses can change your files.",
    ),
]
AllowEnvOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Allow best.yaml to set these environment variables, although they can load code: "
        "NAME,NAME. Repeatable."
    ),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print every trial, all values and all reasons.")
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print warnings, errors and the result alone.")
]
CheckLearningOption = Annotated[
    bool,
    typer.Option(
        "--check-learning",
        help="Compare what a larger global batch learns; takes minutes beyond the budget.",
    ),
]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="Where to write best.yaml.")]
RunArgument = Annotated[
    str | None,
    typer.Argument(
        help="Name or path of a run; the latest by default.", autocompletion=completion.runs
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, with keys that stay.")
]
