"""Read ``srun …`` on one node.

Inside a SLURM allocation autotune already runs on the node, so srun is dropped and its tasks become
ranks. Outside of one, srun would start the program on another machine, so it has to start autotune
there.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from autotune.errors import UsageError
from autotune.program.line.base import Known, Shell
from autotune.program.line.table import Table, Taken, named

# Source: man srun of SLURM 24. Options that choose nodes and resources are read and dropped:
# inside an allocation, those are already granted.
SRUN = Table(
    "srun",
    valued=named(
        "-A -b -c -C -d -D -e -G -i -J -L -m -M -n -N -o -p -q -r -S -t -T -w -W -x -B "
        "--account --acctg-freq --bcast --begin --chdir --cluster-constraint --clusters --comment "
        "--constraint --container --core-spec --cores-per-socket --cpu-bind --cpu-freq "
        "--cpus-per-gpu --cpus-per-task --dependency --distribution --epilog --error --exclude "
        "--export --export-file --gpu-bind --gpu-freq --gpus --gpus-per-node --gpus-per-socket "
        "--gpus-per-task --gres --gres-flags --hint --input --job-name --jobid --kill-on-bad-exit "
        "--label --licenses --mail-type --mail-user --mcs-label --mem --mem-bind --mem-per-cpu "
        "--mem-per-gpu --mincpus --mpi --network --nodefile --nodelist --nodes --ntasks "
        "--ntasks-per-core --ntasks-per-gpu --ntasks-per-node --ntasks-per-socket --open-mode "
        "--output --partition --power --priority --profile --prolog --qos --relative --reservation "
        "--signal --slurmd-debug --sockets-per-node --switches --task-epilog --task-prolog "
        "--thread-spec --threads --threads-per-core --time --time-min --tmp --tres-bind "
        "--tres-per-task --wait --wckey --het-group"
    ),
    switches=named(
        "-E -H -I -K -l -O -Q -s -u -v -X -Z -h -V --contiguous --disable-status --exact "
        "--exclusive --help --hold --immediate --interactive --kill-on-bad-exit --label "
        "--multi-prog --no-allocate --no-kill --overcommit --overlap --oversubscribe "
        "--preserve-env --pty --quiet --quit-on-interrupt --reboot --spread-job --unbuffered "
        "--usage --use-min-nodes --verbose --version --whole"
    ),
)
# Options whose effect would be lost when srun is dropped inside an allocation, with the remedy
CHDIR = "Go there first: cd FOLDER"
UNSEEN = {"-D": CHDIR, "--chdir": CHDIR, "--export-file": "Set these variables before autotune"}


def take_srun(words: tuple[str, ...], known: Known, shell: Shell) -> tuple[tuple[str, ...], Known]:
    """Read srun inside an allocation of one node; its tasks become ranks.

    A single task gets the rank variables that SLURM would set.

    Raises:
        UsageError: The line starts several nodes, has an option that only srun itself can perform,
            or is typed outside of an allocation, where srun must start autotune.
    """
    taken = SRUN.take(words[1:])
    nodes = taken.last("-N", "--nodes") or known.variable("SLURM_NNODES", shell) or "1"
    if nodes not in {"1", "1-1"}:  # srun also takes a range, MIN-MAX
        raise UsageError(
            f"srun trains on {nodes} nodes, and a search runs on one. Search with --nodes 1; train "
            "on several by: srun --ntasks-per-node 1 autotune run best.yaml …"
        )
    per_node = taken.last("--ntasks-per-node")
    tasks = int(
        taken.last("-n", "--ntasks")
        or per_node
        or known.variable("SLURM_NTASKS", shell)
        or known.variable("SLURM_NTASKS_PER_NODE", shell)
        or 1
    )
    if known.variable("SLURM_JOB_ID", shell) is None:  # SLURM sets it inside an allocation
        options = _with_one_task(taken.words)
        ranks = f" --nproc-per-node {tasks}" if tasks > 1 else ""
        command = f"srun {shlex.join(options)} {shell.command}{ranks}".replace("  ", " ")
        raise UsageError(
            "srun starts the program on another machine. Let it start autotune there:\n"
            f"  {known.prefix(())}{command} -- {shlex.join(taken.rest)}"
        )
    known = known.with_env(_exported(taken))
    for option, mend in UNSEEN.items():
        if (value := taken.last(option)) is not None and not _is_here(option, value, shell):
            raise UsageError(
                f"autotune leaves srun out, so srun {option} {value} would have no effect. "
                f"{mend}, and leave it out of srun's options."
            )
    variables = {"SLURM_NTASKS": str(tasks), "SLURM_STEP_NUM_TASKS": str(tasks)}
    if tasks == 1:
        known = known.with_env(variables | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    else:
        known = replace(known.with_env(variables), ranks=tasks)
    note = "srun is left out: trials run on this node, within its allocation."
    return taken.rest, known.with_note(note)


def _is_here(option: str, value: str, shell: Shell) -> bool:
    """Return whether an option only names the folder in which the program starts anyway."""
    return option in {"-D", "--chdir"} and (shell.cwd / value).resolve() == shell.cwd.resolve()


def _exported(taken: Taken) -> dict[str, str]:
    """Return the variables that ``--export`` sets in addition to the existing environment.

    Raises:
        UsageError: The option would remove variables from the environment, as every form without
            ALL does, or contains quotes.
    """
    wanted = taken.last("--export") or "ALL"
    names = wanted.split(",")
    if "'" in wanted or '"' in wanted:
        raise UsageError(
            f"srun --export={wanted}: autotune does not read quotes there. Set these variables "
            "before autotune, and leave them out of srun's options."
        )
    if "ALL" not in names:
        kept = [name for name in names if name not in {"NONE", "NIL"}]
        raise UsageError(
            f"srun --export={wanted} removes all other variables, and autotune, which leaves srun "
            f"out, would keep them. Use --export={','.join(['ALL', *kept])} if the program trains "
            "with them, or remove them before autotune: env -u NAME autotune …"
        )
    pairs = (name.partition("=") for name in names if "=" in name)
    return {name: value for name, _, value in pairs}


def _with_one_task(options: tuple[str, ...]) -> tuple[str, ...]:
    """Return srun's options with a single task, because autotune starts the ranks itself."""
    kept: list[str] = []
    skips = False
    for word in options:
        name = word.partition("=")[0]
        if skips:
            skips = False
        elif name in {"-n", "--ntasks", "--ntasks-per-node"}:
            skips = "=" not in word
        elif not (word.startswith("-n") and word[2:].isdecimal()):  # -n4
            kept.append(word)
    return (*kept, "--ntasks", "1")
