"""``srun …`` on one node: taken off inside an allocation, asked for outside of one."""

from __future__ import annotations

import shlex
from dataclasses import replace

from autotune.errors import UsageError
from autotune.program.line.base import Known, Shell
from autotune.program.line.table import Table, Taken, named

# man srun, of SLURM 24; options that choose machines and their share are the allocation's affair
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
# Inside an allocation srun is left out, and with it what these would do
CHDIR = "Go there first: cd FOLDER"
UNSEEN = {"-D": CHDIR, "--chdir": CHDIR, "--export-file": "Set these variables before autotune"}


def take_srun(words: tuple[str, ...], known: Known, shell: Shell) -> tuple[tuple[str, ...], Known]:
    """Read srun inside an allocation of one node; its tasks are ranks.

    Raises:
        UsageError: for several nodes, for options that only srun can heed, and outside of an
            allocation, where srun must start autotune.
    """
    taken = SRUN.take(words[1:])
    nodes = taken.last("-N", "--nodes") or known.variable("SLURM_NNODES", shell) or "1"
    if nodes not in {"1", "1-1"}:
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
    if known.variable("SLURM_JOB_ID", shell) is None:
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
                f"srun {option} {value} is not done without srun. {mend}, and leave it "
                "out of srun's options."
            )
    variables = {"SLURM_NTASKS": str(tasks), "SLURM_STEP_NUM_TASKS": str(tasks)}
    if tasks == 1:
        known = known.with_env(variables | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    else:
        known = replace(known.with_env(variables), ranks=tasks)
    note = "srun is left out: trials run on this node, within its allocation."
    return taken.rest, known.with_note(note)


def _is_here(option: str, value: str, shell: Shell) -> bool:
    """Tell whether an option asks for the folder in which the program starts in any case."""
    return option in {"-D", "--chdir"} and (shell.cwd / value).resolve() == shell.cwd.resolve()


def _exported(taken: Taken) -> dict[str, str]:
    """Return the variables that ``--export`` sets beside those that are there.

    Raises:
        UsageError: when it takes those away, as all of its forms without ALL do.
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
            f"srun --export={wanted} keeps the other variables from the program, which is not done "
            f"without srun. Say --export={','.join(['ALL', *kept])} if it trains with them, or "
            "take them away before autotune: env -u NAME autotune …"
        )
    pairs = (name.partition("=") for name in names if "=" in name)
    return {name: value for name, _, value in pairs}


def _with_one_task(options: tuple[str, ...]) -> tuple[str, ...]:
    """Drop the options that start several tasks: the ranks are autotune's to start."""
    kept: list[str] = []
    skips = False
    for word in options:
        name = word.partition("=")[0]
        if skips:
            skips = False
        elif name in {"-n", "--ntasks", "--ntasks-per-node"}:
            skips = "=" not in word
        elif not (word.startswith("-n") and word[2:].isdecimal()):
            kept.append(word)
    return (*kept, "--ntasks", "1")
