"""Read ``srun …`` on one node.

Inside a SLURM allocation autotune already runs on the node, so srun is dropped and its tasks become
ranks; its other options choose nodes and resources, which are granted already. Outside of one, and
with an option that acts on what srun starts, srun has to start autotune.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from autotune.errors import UsageError
from autotune.program.line.base import Known, Rest, Shell
from autotune.program.line.prefixes import split

TASKS = ("-n", "--ntasks", "--ntasks-per-node")
# Options that change what the program sees
ACTING = ("-D", "--chdir", "--export", "--export-file", "--multi-prog", "--container-image")


def take_srun(words: tuple[str, ...], known: Known, shell: Shell) -> Rest:
    """Read srun inside an allocation of one node; its tasks become ranks.

    A single task gets the rank variables that SLURM would set.

    Raises:
        UsageError: The line starts several nodes, or srun must start autotune; the message says
            how.
    """
    before, rest = split(words, shell)
    options = before[1:]
    nodes = _value(options, "-N", "--nodes") or known.variable("SLURM_NNODES", shell) or "1"
    if nodes not in {"1", "1-1"}:  # srun also takes a range, MIN-MAX
        raise UsageError(
            f"srun trains on {nodes} nodes, and a search runs on one. Search with --nodes 1; train "
            "on several by: srun --ntasks-per-node 1 autotune run best.yaml …"
        )
    tasks = int(
        _value(options, "-n", "--ntasks")
        or _value(options, "--ntasks-per-node")
        or known.variable("SLURM_NTASKS", shell)
        or known.variable("SLURM_NTASKS_PER_NODE", shell)
        or 1
    )
    acting = [option for option in ACTING if _value(options, option) not in {None, "ALL"}]
    is_inside = known.variable("SLURM_JOB_ID", shell) is not None  # SLURM sets it in an allocation
    if acting or not is_inside:
        ranks = ("--nproc-per-node", str(tasks)) if tasks > 1 else ()
        command = replace(shell, command=shlex.join((*shlex.split(shell.command), *ranks)))
        line = known.to_type(("srun", *_without_tasks(options), "--ntasks", "1"), rest, command)
        why = f"srun {acting[0]} acts on what srun starts" if acting else "srun starts the program"
        raise UsageError(f"{why}, not autotune. Let srun start autotune there:\n{line}")
    variables = {"SLURM_NTASKS": str(tasks), "SLURM_STEP_NUM_TASKS": str(tasks)}
    if tasks == 1:
        known = known.with_env(variables | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    else:
        known = replace(known.with_env(variables), ranks=tasks)
    note = "srun is left out: trials run on this node, within its allocation."
    return rest, known.with_note(note)


def _value(options: tuple[str, ...], *names: str) -> str | None:
    """Return the last value of an option: ``-n2``, ``-n 2``, ``--ntasks=2`` or ``--ntasks 2``."""
    found = None
    for place, word in enumerate(options):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else "".join(options[place + 1 : place + 2])
        elif word[:2] in names and not word.startswith("--"):
            found = word[2:]
    return found


def _without_tasks(options: tuple[str, ...]) -> tuple[str, ...]:
    """Return srun's options without the number of tasks, because autotune starts the ranks."""
    kept: list[str] = []
    skips = False
    for word in options:
        is_short = word[:2] == "-n" and word[2:].isdecimal()  # -n4
        if not (skips or is_short or word.partition("=")[0] in TASKS):
            kept.append(word)
        skips = word in TASKS
    return tuple(kept)
