"""Lines that are not autotune's to start: each is answered with the line to type instead.

An environment manager, a container or ``taskset`` must start autotune, so that what it sets up is
there for every trial. A profiler must not be there at all. For launchers that autotune cannot take
the place of, what is missing is said.
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

# How autotune gets into the environment that a manager keeps
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
# What these set up is inherited by all that autotune starts
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
    "deepspeed": "DeepSpeed's engine owns model and optimizer, and no seam reaches into it",
    "mpirun": MPI,
    "mpiexec": MPI,
    "orterun": MPI,
    "jsrun": MPI,
    "horovodrun": "Horovod's ranks and its optimizer are unknown to it",
    "ray": "it cannot follow a program to the actors of a Ray cluster",
    "dask": "it cannot follow a program to the workers of a Dask cluster",
    "spark-submit": "it cannot follow a program to the executors of a Spark cluster",
    "composer": "it starts ranks as torchrun does, and not as Composer",
    "fabric": "it starts ranks as torchrun does, and not as Fabric's command",
    "colossalai": "Colossal-AI's booster owns model and optimizer, and no seam reaches into it",
}
# Their values may look like the beginning of a program: an environment that is called "env"
WITH_NAMES = named("-n --name -p --prefix --cwd --with --python -e --env --env-file -v -w -C -H")

# Words at which a program may begin, behind another command
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
    """Return what to say of ``uv run …`` and its like."""
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
    """Return what to say of a command whose effect autotune's processes must inherit."""
    before, after = split(words, shell)
    return UsageError(
        f"{Path(words[0]).name} sets up what every trial needs. Let it start autotune:\n"
        f"{known.to_type(before, after, shell)}"
    )


def refuse_profiler(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError:
    """Return what to say of a command that watches the program."""
    name = words[2] if words[1:2] == ("-m",) else Path(words[0]).name
    _, after = split(words, shell, 3 if words[1:2] == ("-m",) else 1)
    if words[1:2] == ("-m",):
        after = (words[0], *after)
    return UsageError(
        f"{name} watches the program and slows it down. Search without it:\n"
        f"{known.to_type((), after, shell)}"
    )


def refuse_launcher(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError:
    """Return what to say of a launcher whose place autotune cannot take."""
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
    """Part a line before the program that another command starts.

    Which words are options with values, only that command knows; so a word that can be started is
    looked for, and without one the first that is no option.
    """
    places = [n for n in range(start, len(words)) if words[n - 1] not in WITH_NAMES]
    found = next((n for n in places if can_start(words[n], shell)), None)
    if found is None:
        found = next((n for n in places if not words[n].startswith("-")), len(words))
    if found > start and words[found - 1] in {"-m", "--module"}:
        found -= 1
    while found > start and is_assignment(words[found - 1]):
        found -= 1
    before, after = words[:found], words[found:]
    if before[-1:] == ("--",):
        before = before[:-1]
    return before, after or ("PROGRAM",)


def can_start(word: str, shell: Shell) -> bool:
    """Tell whether a word looks like the beginning of a program."""
    name = Path(word).name
    if name in STARTERS or is_python(word):
        return True
    return word.endswith((".py", ".sh")) or (shell.bin_dir / word).is_file()


def _bare(words: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out the interpreter: torchrun starts it."""
    return words[1:] if words and is_python(words[0]) else words
