"""Commands that autotune cannot start, each refused with the line to type instead.

An environment manager, a container or ``taskset`` must start autotune, so that every trial inherits
what it sets up. A profiler must be left out, because it slows the program down. For launchers that
autotune cannot replace, the message says what is missing.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from autotune.errors import UsageError
from autotune.program.line.base import Known, Shell
from autotune.program.line.prefixes import HARMLESS
from autotune.program.line.python import DISTRIBUTION, is_python
from autotune.program.line.table import named
from autotune.program.line.variables import is_assignment

# The command that installs autotune into an environment managed by each tool
MANAGERS = {
    "uv": f"uv pip install {DISTRIBUTION}",
    "poetry": f"poetry add --group dev {DISTRIBUTION}",
    "conda": f"conda run -n ENVIRONMENT pip install {DISTRIBUTION}",
    "mamba": f"mamba run -n ENVIRONMENT pip install {DISTRIBUTION}",
    "micromamba": f"micromamba run -n ENVIRONMENT pip install {DISTRIBUTION}",
    "pipenv": f"pipenv install --dev {DISTRIBUTION}",
    "pdm": f"pdm add --dev {DISTRIBUTION}",
    "hatch": f"hatch run pip install {DISTRIBUTION}",
    "rye": f"rye add --dev {DISTRIBUTION}",
    "pixi": f"pixi add --pypi {DISTRIBUTION}",
}
# Wrappers whose effect child processes inherit, so they work when they start autotune
OUTER = named(
    "taskset numactl chrt prlimit cgexec systemd-run sudo doas xvfb-run dotenv direnv firejail "
    "singularity apptainer docker podman nerdctl kubectl ssh flatpak bwrap unshare chroot "
    "screen tmux op aws-vault"
)
PROFILERS = named(
    "nsys ncu nvprof perf strace ltrace valgrind gdb py-spy scalene memray kernprof viztracer "
    "austin coverage ipython rocprof vtune watch"
)
PROFILER_MODULES = named(
    "cProfile profile pdb ipdb pudb debugpy trace memray scalene viztracer kernprof line_profiler "
    "coverage torch.utils.bottleneck IPython"
)
MPI = "it starts ranks as torchrun does, and not by MPI"
LAUNCHERS = {
    "deepspeed": "DeepSpeed's engine owns the model and the optimizer and hides them from it",
    "mpirun": MPI,
    "mpiexec": MPI,
    "orterun": MPI,
    "jsrun": MPI,
    "horovodrun": "it does not support Horovod's ranks and optimizer",
    "ray": "it cannot follow a program to the actors of a Ray cluster",
    "dask": "it cannot follow a program to the workers of a Dask cluster",
    "spark-submit": "it cannot follow a program to the executors of a Spark cluster",
    "composer": "it starts ranks as torchrun does, and not as Composer",
    "fabric": "it starts ranks as torchrun does, and not as Fabric's command",
    "colossalai": "Colossal-AI's booster owns the model and the optimizer and hides them from it",
}
# Options whose value could be taken for a program, such as a conda environment called "env"
WITH_NAMES = named("-n --name -p --prefix --cwd --with --python -e --env --env-file -v -w -C -H")

# Words that begin a program when they follow another command
STARTERS = {
    "env",
    "torchrun",
    "accelerate",
    "accelerate-launch",
    "srun",
    "bash",
    "sh",
    *HARMLESS,
    *LAUNCHERS,
}


def refuse_manager(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError:
    """Return the error for ``uv run …`` and other environment managers.

    It tells the user to let the manager start autotune, and how to install autotune there.
    """
    name = Path(words[0]).name
    if "run" not in words[1:] and name != "hatch":
        return UsageError(f"'{shlex.join(words[:2])}' starts no program: {name} run …")
    before, after = split(words, shell, words.index("run") + 1)
    return UsageError(
        f"{name} starts the program in an environment that it keeps. Let it start autotune in "
        f"there:\n{known.to_type(before, after, shell)}\n"
        f"If autotune is not installed in that environment:\n  {MANAGERS[name]}"
    )


def refuse_outer(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError:
    """Return the error for a wrapper, such as ``taskset``, that has to start autotune itself."""
    before, after = split(words, shell)
    return UsageError(
        f"{Path(words[0]).name} sets up what every trial needs. Let it start autotune:\n"
        f"{known.to_type(before, after, shell)}"
    )


def refuse_profiler(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError:
    """Return the error for a profiler or debugger, with the line that leaves it out."""
    name = words[2] if words[1:2] == ("-m",) else Path(words[0]).name
    _, after = split(words, shell, 3 if words[1:2] == ("-m",) else 1)
    if words[1:2] == ("-m",):
        after = (words[0], *after)
    return UsageError(
        f"{name} watches the program and slows it down. Search without it:\n"
        f"{known.to_type((), after, shell)}"
    )


def refuse_launcher(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError:
    """Return the error for a launcher that autotune cannot replace, with a torchrun alternative."""
    name = Path(words[0]).name
    _, after = split(words, shell)
    return UsageError(
        f"autotune cannot start '{shlex.join(words)}': {LAUNCHERS[name]}. If torchrun can start "
        "the program as well, search that:\n"
        f"{known.to_type((), ('torchrun', '--nproc-per-node', 'N', *_bare(after)), shell)}"
    )


def split(
    words: tuple[str, ...], shell: Shell, start: int = 1
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a line into the outer command with its options, and the program that it starts.

    Only the outer command knows which of its options take a value. So the first word that looks
    like a program is searched for. If there is none, the first word that is not an option is taken.
    If there is not even that, the second part is the placeholder ``PROGRAM``.
    """
    places = [n for n in range(start, len(words)) if words[n - 1] not in WITH_NAMES]
    found = next((n for n in places if can_start(words[n], shell)), None)
    if found is None:
        found = next((n for n in places if not words[n].startswith("-")), len(words))
    if found > start and words[found - 1] in {"-m", "--module"}:
        found -= 1
    while found > start and is_assignment(words[found - 1]):  # A=1 belongs to the program
        found -= 1
    before, after = words[:found], words[found:]
    if before[-1:] == ("--",):  # the line to type has autotune's own "--" behind it
        before = before[:-1]
    return before, after or ("PROGRAM",)


def can_start(word: str, shell: Shell) -> bool:
    """Return whether a word looks like the beginning of a program."""
    name = Path(word).name
    if name in STARTERS or is_python(word):
        return True
    return word.endswith((".py", ".sh")) or (shell.bin_dir / word).is_file()


def _bare(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words without a leading interpreter, because torchrun starts one itself."""
    return words[1:] if words and is_python(words[0]) else words
