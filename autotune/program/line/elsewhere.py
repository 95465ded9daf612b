"""What stands before a program: variables and ``env``, and commands that start it.

Commands that autotune cannot start are refused, each with the line to type instead.

An environment manager, a container or ``taskset`` must start autotune, so that every trial inherits
what it sets up. A profiler must be left out, because it slows the program down. A shell script
would hide the program from the rigs. A launcher of another kind is replaced by torchrun.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from autotune.errors import UsageError
from autotune.program.line.base import Known, Rest, Shell, is_assignment, is_python
from autotune.program.slurm_job import CORES, cores_of_job, cores_option, names_cores

INSTALL = "-m pip install ."  # in a clone: no package index has autotune
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
# Words that begin a program when they follow another command, besides interpreters and scripts
STARTERS = frozenset({"env", "torchrun", "accelerate", "accelerate-launch", "srun", "bash", "sh"})
# Options whose value could be taken for a program, such as a conda environment called "env"
WITH_NAMES = frozenset(
    {"-n", "--name", "-p", "--prefix", "--cwd", "--with", "--python", "-e", "--env", "--env-file"}
)


def refusal(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError | None:
    """Return the error for a command that is known not to be startable; None for any other."""
    name = Path(words[0]).name
    if name in SHELLS or name.endswith(SCRIPT_ENDS):
        return _script(words, known, shell)
    if name in MANAGERS:
        return _manager(words, known, shell)
    if name == "srun":
        return _srun(words, known, shell)
    if name in LAUNCHERS:
        _, after = split(words, shell)
        bare = after[1:] if after and is_python(after[0]) else after
        instead = known.to_type((), ("torchrun", "--nproc-per-node", "N", *bare), shell)
        return UsageError(
            f"autotune cannot start '{shlex.join(words)}': {LAUNCHERS[name]}. If torchrun can "
            f"start the program as well, search that:\n{instead}"
        )
    return None


def _srun(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError:
    """Return the error for ``srun``, with the cores that the line gives its program."""
    before, after = split(words, shell)
    cores = () if names_cores(before) else (cores_option(shell.variables),)
    # Of an option that stands twice, srun takes the last
    line = known.to_type((*before, *cores, "--ntasks", "1"), after, shell)
    has = cores_of_job(shell.variables)
    of = f" of the {has} that this job has" if has else ""
    one = f" Without {CORES}, srun gives each task 1 core{of}." if cores else ""
    return UsageError(
        "srun starts the program, not autotune. Let srun start autotune, once; it starts N "
        f"ranks itself with --nproc-per-node N.{one}\n{line}"
    )


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
        f"If that environment has no autotune, let it run python {INSTALL} in a clone of autotune."
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


def split(
    words: tuple[str, ...], shell: Shell, start: int = 1
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a line into the outer command with its options, and the program that it starts.

    Only the outer command knows which of its options take a value. So the first word that looks
    like a program is searched for, else the first one that is not an option.
    """
    places = [n for n in range(start, len(words)) if words[n - 1] not in WITH_NAMES]
    found = next((n for n in places if can_start(words[n], shell)), None)
    if found is None:
        found = next((n for n in places if not words[n].startswith("-")), len(words))
    if found > start and words[found - 1] in {"-m", "--module"}:
        found -= 1
    while found > start and is_assignment(words[found - 1]):  # A=1 belongs to the program
        found -= 1
    before = words[:found]
    # The line to type has autotune's own "--" behind it
    return (before[:-1] if before[-1:] == ("--",) else before), words[found:]


def can_start(word: str, shell: Shell) -> bool:
    """Return whether a word looks like the beginning of a program."""
    is_command = Path(word).name in STARTERS or is_python(word)
    is_script = word.endswith((".py", ".sh")) or ".py:" in word
    return is_command or is_script or (shell.bin_dir / word).is_file()


def take_assignments(words: tuple[str, ...], known: Known, shell: Shell) -> Rest:
    """Read leading ``NAME=value`` words, as a shell does."""
    del shell
    place = next((n for n, word in enumerate(words) if not is_assignment(word)), len(words))
    pairs = (word.partition("=") for word in words[:place])
    return words[place:], known.with_env({name: value for name, _, value in pairs})


def take_env(words: tuple[str, ...], known: Known, shell: Shell) -> Rest:
    """Read ``env NAME=value …``.

    Raises:
        UsageError: ``env`` has options. They change the environment as a whole, so ``env`` has to
            start autotune; the message names that line.
    """
    rest = words[2:] if words[1:2] == ("--",) else words[1:]
    if rest and rest[0].startswith("-"):
        before, after = split(words, shell)
        raise UsageError(
            f"env {rest[0]} acts on all that it starts. Let it start autotune:\n"
            f"{known.to_type(before, after, shell)}"
        )
    return take_assignments(rest, known, shell)
