"""Commands that autotune cannot start, each refused with the line to type instead.

An environment manager, a container or ``taskset`` must start autotune, so that every trial inherits
what it sets up. A profiler must be left out, because it slows the program down. A shell script
would hide the program from the rigs. A launcher of another kind is replaced by torchrun.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from autotune.errors import UsageError
from autotune.program.line.base import Known, Shell, is_python
from autotune.program.line.prefixes import can_start, split

DISTRIBUTION = "autotune-torch"
MANAGERS = frozenset(
    {"uv", "poetry", "conda", "mamba", "micromamba", "pipenv", "pdm", "hatch", "rye", "pixi"}
)
PROFILERS = frozenset({"cProfile", "profile", "pdb", "debugpy", "trace", "coverage", "memray"})
MPI = "it starts ranks as torchrun does, and not by MPI"
CLUSTER = "it cannot follow a program to the workers of a cluster"
LAUNCHERS = {
    "deepspeed": "DeepSpeed's engine owns the model and the optimizer and hides them from it",
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "jsrun"), MPI),
    "horovodrun": "it does not support Horovod's ranks and optimizer",
    **dict.fromkeys(("ray", "dask", "spark-submit"), CLUSTER),
    **dict.fromkeys(("composer", "fabric"), "it starts ranks as torchrun does, and not as that"),
}
SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh", "fish", "source", ".", "sbatch", "qsub"})
SCRIPT_ENDS = (".sh", ".bash", ".slurm", ".sbatch")
TRAINS = re.compile(r"\b(python[\d.]*|torchrun|accelerate launch)\s|\.py\b")  # lines of a script
MAX_LINES = 5


def refusal(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError | None:
    """Return the error for a command that is known not to be startable; None for any other."""
    name = Path(words[0]).name
    if name in SHELLS or name.endswith(SCRIPT_ENDS):
        return _script(words, known, shell)
    if name in MANAGERS:
        return _manager(words, known, shell)
    if name == "srun":
        before, after = split(words, shell)
        # Of an option that stands twice, srun takes the last
        line = known.to_type((*before, "--ntasks", "1"), after, shell)
        return UsageError(
            "srun starts the program, not autotune. Let srun start autotune, once; it starts N "
            f"ranks itself with --nproc-per-node N:\n{line}"
        )
    if name in LAUNCHERS:
        _, after = split(words, shell)
        bare = after[1:] if after and is_python(after[0]) else after
        instead = known.to_type((), ("torchrun", "--nproc-per-node", "N", *bare), shell)
        return UsageError(
            f"autotune cannot start '{shlex.join(words)}': {LAUNCHERS[name]}. If torchrun can "
            f"start the program as well, search that:\n{instead}"
        )
    return None


def profiler(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError:
    """Return the error for ``-m`` and a profiler or debugger, with the line that leaves it out."""
    _, after = split(words, shell, 2)
    return UsageError(
        f"{words[1]} watches the program and slows it down. Search without it:\n"
        f"{known.to_type((), ('python', *after), shell)}"
    )


def other(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError | None:
    """Return the error for a command that seems to start a program, such as ``taskset``."""
    before, after = split(words, shell)
    if not any(can_start(word, shell) for word in words[1:]):
        return None
    return UsageError(
        f"autotune cannot start '{words[0]}', which starts the program. If it sets up what every "
        f"trial needs, let it start autotune:\n{known.to_type(before, after, shell)}\n"
        f"If it only watches the program, leave it out:\n{known.to_type((), after, shell)}"
    )


def _manager(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError:
    name = Path(words[0]).name
    if "run" not in words[1:]:
        return UsageError(f"'{shlex.join(words[:2])}' starts no program: {name} run …")
    before, after = split(words, shell, words.index("run") + 1)
    return UsageError(
        f"{name} starts the program in an environment that it keeps. Let it start autotune in "
        f"there:\n{known.to_type(before, after, shell)}\n"
        f"If that environment has no autotune, install {DISTRIBUTION} in it."
    )


def _script(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError:
    """Return the error for a shell script, with the lines of it that may train."""
    starter = Path(words[0]).name
    if starter in SHELLS and words[1:2] == ("-c",) and words[2:]:
        line = known.to_type((), shlex.split(words[2]), shell)
        return UsageError(f"{starter} -c runs another command line. Search that line:\n{line}")
    names = words[1:] if starter in SHELLS else words
    name = next((word for word in names if not word.startswith("-")), None)
    if name is None or not (shell.cwd / name).is_file():
        return UsageError(f"There is no script '{name or ''}'. Paths are taken from {shell.cwd}.")
    lines = (shell.cwd / name).read_text(errors="replace").splitlines()
    found = [
        f"{n:5}: {line.strip()}"
        for n, line in enumerate(lines, 1)
        if TRAINS.search(line) and not line.lstrip().startswith("#")
    ]
    return UsageError(
        f"{name} is a shell script. In it, write '{shell.command} --' before the command that "
        "trains, and start it as usual.\n" + "\n".join(found[:MAX_LINES])
    )
