"""Launching ranks: a plan for one process becomes the line that starts it many times.

On one machine our own launcher does that, on loopback alone; several nodes meet by torchrun.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import UsageError
from autotune.machine.hardware import cpu_quota
from autotune.program.program import LaunchPlan
from autotune.rig.local_ranks import KEY

LOCAL_RANKS = "autotune.rig.local_ranks"
TORCHRUN = "torch.distributed.run"
FIRST_PORT, PORTS = 29500, 1000  # torchrun's own default, and the room for one port per SLURM job


@dataclass(frozen=True)
class Nodes:
    """The machines that train together, by torchrun's own names.

    Attributes:
        count: Machines.
        rank: Number of this one; None lets the rendezvous number them.
        endpoint: ``host:port`` of the first one, where all meet.
        job: Name of the rendezvous.
    """

    count: int = 1
    rank: int | None = None
    endpoint: str = ""
    job: str = "autotune"

    def __post_init__(self) -> None:
        if self.count > 1 and not self.endpoint:
            raise UsageError(
                f"{self.count} nodes need a place to meet: --rdzv-endpoint HOST:PORT of the first."
            )
        if self.rank is not None and not 0 <= self.rank < self.count:
            raise UsageError(
                f"--node-rank {self.rank} is none of {self.count} nodes, which count from 0."
            )

    @property
    def options(self) -> tuple[str, ...]:
        """The options of torchrun that say so."""
        backend = "c10d" if self.rank is None else "static"
        shared = ("--nnodes", str(self.count), "--rdzv-backend", backend)
        place = ("--rdzv-endpoint", self.endpoint, "--rdzv-id", self.job)
        number = () if self.rank is None else ("--node-rank", str(self.rank))
        return (*shared, *place, *number)


def nodes_of(environment: Mapping[str, str]) -> Nodes:
    """Return the machines of a SLURM job step with one task on each; else this machine alone.

    Source: the output environment variables of ``srun``.
    """
    count = int(environment.get("SLURM_STEP_NUM_NODES", environment.get("SLURM_NNODES", "1")))
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", "1")))
    if count == 1 or "SLURM_PROCID" not in environment:
        return Nodes()
    if tasks != count:
        raise UsageError(
            f"srun started {tasks} tasks on {count} nodes; autotune starts the ranks itself: "
            "srun --ntasks-per-node=1 autotune run ..."
        )
    nodes = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", ""))
    job = environment.get("SLURM_JOB_ID", "0")
    port = FIRST_PORT + int(job) % PORTS
    number = int(environment.get("SLURM_NODEID", environment["SLURM_PROCID"]))
    return Nodes(count, number, f"{first_host(nodes)}:{port}", f"slurm-{job}")


def first_host(nodes: str) -> str:
    """Return the first host of SLURM's compact list: ``gpu[03-05,9],login`` begins with gpu03.

    Raises:
        UsageError: when it names none.
    """
    match = re.match(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)", nodes)
    if match is None:
        raise UsageError(f"SLURM names no nodes ({nodes!r}). Give --rdzv-endpoint HOST:PORT.")
    prefix, numbers, suffix = match.groups()
    first = re.split(r"[-,]", numbers)[0] if numbers else ""
    return f"{prefix}{first}{suffix}"


def with_ranks(
    plan: LaunchPlan,
    nodes: Nodes = Nodes(),
    codes: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> LaunchPlan:
    """Return the plan that starts a plan's process in each of its ranks; itself without ranks.

    Args:
        plan: What one rank runs.
        nodes: The machines that train together.
        codes: Where the exit codes of failed ranks are noted; of the ranks of one machine alone.
        pass_fds: Open files that the first rank inherits, on one machine alone.
    """
    if plan.ranks is None:
        return plan
    if nodes.count == 1:
        noted = () if codes is None else ("--codes", str(codes))
        passed = ("--pass-fds", ",".join(map(str, pass_fds))) if pass_fds else ()
        starter = (LOCAL_RANKS, "--ranks", str(plan.ranks), *noted, *passed, "--")
    else:
        starter = (TORCHRUN, *nodes.options, "--nproc-per-node", str(plan.ranks), "--no-python")
    # sets are iterated in one order on all ranks: labels are numbered by them, files listed
    hash_seed = plan.variable("PYTHONHASHSEED")
    return replace(plan, argv=(sys.executable, "-P", "-m", *starter, *plan.argv)).with_env(
        OMP_NUM_THREADS=str(_threads(plan, plan.ranks)),
        PYTHONHASHSEED=hash_seed if hash_seed.isdigit() else "0",
    )


def _threads(plan: LaunchPlan, ranks: int) -> int:
    """Return how many threads a rank has for itself, fewer where the user asks for fewer."""
    share = max(1, cpu_quota() // ranks)
    wanted = plan.variable("OMP_NUM_THREADS")
    return min(share, int(wanted)) if wanted.isdigit() else share


def trust_note(nodes: Nodes, environment: Mapping[str, str]) -> str | None:
    """Return what a user of several nodes must know of who can reach them, None on one machine."""
    if nodes.count == 1:
        return None
    note = (
        f"Nodes meet at {nodes.endpoint} over the network; whoever can reach that port can run "
        "code in this training. Use a network that you trust."
    )
    if not environment.get(KEY):
        note += (
            f" What autotune's ranks tell each other is not signed: set {KEY} to one secret on "
            "all nodes."
        )
    return note
