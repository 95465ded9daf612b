"""Turn the plan for one process into a command line that starts it once per rank.

On one machine the ranks are started by ``autotune.rig.local_ranks``, which listens on the loopback
interface only. Several nodes are started by torchrun, whose rendezvous uses the network.
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
from autotune.program.slurm_job import cores_option
from autotune.rig.local_ranks import KEY

LOCAL_RANKS = "autotune.rig.local_ranks"
TORCHRUN = "torch.distributed.run"
# torchrun's default port, and the size of the range from which each SLURM job takes one by its id:
# two jobs on one node seldom get the same port.
FIRST_PORT, PORTS = 29500, 1000


@dataclass(frozen=True)
class Nodes:
    """The machines that train together, in torchrun's terms.

    Attributes:
        rank: Number of this machine, from 0; None lets torchrun's rendezvous number them.
        endpoint: ``host:port`` of the first machine, to which all others connect.

    Raises:
        UsageError: when several machines have no endpoint, or *rank* is out of range.
    """

    count: int = 1
    rank: int | None = None
    endpoint: str = ""
    job: str = "autotune"

    def __post_init__(self) -> None:
        if self.count > 1 and not self.endpoint:
            raise UsageError(
                f"{self.count} nodes need an address to meet at: give HOST:PORT of the first one "
                "by --rdzv-endpoint."
            )
        if self.rank is not None and not 0 <= self.rank < self.count:
            raise UsageError(
                f"--node-rank {self.rank} is out of range for {self.count} nodes: count from 0."
            )

    @property
    def options(self) -> tuple[str, ...]:
        """Options of torchrun: its backend ``c10d`` numbers the machines, ``static`` does not."""
        backend = "c10d" if self.rank is None else "static"
        shared = ("--nnodes", str(self.count), "--rdzv-backend", backend)
        place = ("--rdzv-endpoint", self.endpoint, "--rdzv-id", self.job)
        number = () if self.rank is None else ("--node-rank", str(self.rank))
        return (*shared, *place, *number)


def nodes_of(environment: Mapping[str, str]) -> Nodes:
    """Return the machines of the SLURM job step that this process runs in.

    Outside of a step that spans several nodes, this machine alone. All machines compute the same
    endpoint: the first host of the step, and a port that follows from the job's id. Source: the
    output environment variables of ``srun``.

    Raises:
        UsageError: when srun started more than one task per node, or names no host.
    """
    count = int(environment.get("SLURM_STEP_NUM_NODES", environment.get("SLURM_NNODES", "1")))
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", "1")))
    if count == 1 or "SLURM_PROCID" not in environment:
        return Nodes()
    if tasks != count:
        raise UsageError(
            f"srun started {tasks} tasks on {count} nodes; autotune starts the ranks itself: "
            f"srun --ntasks-per-node=1 {cores_option(environment)} autotune run ..."
        )
    nodes = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", ""))
    job = environment.get("SLURM_JOB_ID", "0")
    port = FIRST_PORT + int(job) % PORTS
    number = int(environment.get("SLURM_NODEID", environment["SLURM_PROCID"]))
    return Nodes(count, number, f"{first_host(nodes)}:{port}", f"slurm-{job}")


def first_host(nodes: str) -> str:
    """Return the first host of SLURM's compact node list.

    For example ``gpu03`` for ``gpu[03-05,9],login``.

    Raises:
        UsageError: when the list names no host.
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
    """Return the plan of a launcher that runs a plan's command once per rank.

    A plan without ranks is returned unchanged. Each rank gets an equal share of the cores, where
    torchrun would give it a single thread; fewer threads that the user asks for are kept.

    Args:
        plan: What one rank runs; ``plan.ranks`` is the number of ranks per machine.
        codes: File for the exit codes of failed ranks. Ignored with several machines.
        pass_fds: File descriptors that rank 0 inherits. Ignored with several machines.
    """
    if plan.ranks is None:
        return plan
    share, wanted = max(1, cpu_quota() // plan.ranks), plan.variable("OMP_NUM_THREADS")
    threads = min(share, int(wanted)) if wanted.isdigit() else share
    if nodes.count == 1:
        noted = () if codes is None else ("--codes", str(codes))
        passed = ("--pass-fds", ",".join(map(str, pass_fds))) if pass_fds else ()
        starter = (LOCAL_RANKS, "--ranks", str(plan.ranks), *noted, *passed, "--")
    else:
        starter = (TORCHRUN, *nodes.options, "--nproc-per-node", str(plan.ranks), "--no-python")
    launched = replace(plan, argv=(sys.executable, "-P", "-m", *starter, *plan.argv))
    return with_hash_seed(launched.with_env(OMP_NUM_THREADS=str(threads)))


def with_hash_seed(plan: LaunchPlan) -> LaunchPlan:
    """Return a plan under which all processes hash text alike: by the user's seed, else by 0.

    Programs number labels and list files in the order of a set, which would otherwise differ from
    rank to rank, and from run to run.
    """
    hash_seed = plan.variable("PYTHONHASHSEED")
    return plan.with_env(PYTHONHASHSEED=hash_seed if hash_seed.isdigit() else "0")


def trust_note(nodes: Nodes, environment: Mapping[str, str]) -> str | None:
    """Return a warning about who can reach the ranks over the network; None on one machine.

    torchrun's rendezvous does not authenticate its peers. Messages between autotune's ranks are
    signed if all nodes share a key in the environment; the warning says so if there is none.
    """
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
