"""Group: the processes that train together, as one of them sees it.

torchrun's environment variables tell a process its rank. On one machine autotune's own launcher
sets them, on several machines torchrun does. The ranks share a key-value store, which exists before
any process group and independently of it; through it they agree on what happens next. On one
machine the first rank serves the store, at a loopback socket that it inherits from the launcher. A
program written for one process must not see these variables, because many scripts distribute
themselves when they find them.
"""

from __future__ import annotations

import atexit
import os
import select
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from autotune.errors import UsageError
from autotune.machine import hardware
from autotune.rig.local_ranks import KEY, LISTENER, LOOPBACK, OTHERS, OURS

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from autotune.inside.ranks.exchange import SignedStore
    from autotune.program.applied_config import ProgramTraits

PATIENCE = timedelta(days=7)  # ranks may wait for a whole search; the parent's watchdog ends them
LAST_S = 60.0  # wait for the other ranks to end, if they may be in a GPU collective with this one
# as set by worker_env in torch.distributed.elastic.agent.server.local_elastic_agent
SCOPES = ("", "LOCAL_", "GROUP_", "ROLE_")
SET_BY_TORCHRUN = frozenset(
    {"ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"}
    | {f"{scope}{what}" for scope in SCOPES for what in ("RANK", "WORLD_SIZE")}
)


@dataclass(frozen=True)
class Group:
    """Identifies this process among those that train together.

    Attributes:
        local_rank: Its number on this machine.
        world_size: How many ranks there are.
        shared: The store that all ranks share; None if the process trains alone.
        started_by: What in the program started these processes, such as
            ``torch.multiprocessing.spawn``; empty if autotune or torchrun started them.
        helpers: Ids of the processes that started the ranks; their CPU load counts as the ranks'.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    shared: SignedStore | None = None
    started_by: str = ""
    helpers: tuple[int, ...] = ()

    @property
    def is_launched(self) -> bool:
        """Whether autotune's launcher or torchrun started this process, even as the only rank."""
        return self.shared is not None and not self.started_by

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which saves, prints and talks to the parent."""
        return self.rank == 0

    @property
    def store(self) -> SignedStore:
        """The store that all ranks share; a process alone has none."""
        assert self.shared is not None, "a process alone shares nothing"
        return self.shared

    def initialize(self) -> None:
        """Initialize torch's default process group unless the program has done so.

        Torch picks the backends: gloo for CPU tensors, nccl for GPU tensors.
        """
        from torch import distributed
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        if not distributed.is_initialized():
            distributed.init_process_group(
                store=PrefixStore("collectives", self.store.plain),
                rank=self.rank,
                world_size=self.world_size,
            )

    def leave(self) -> None:
        """Destroy torch's default process group, if there is one."""
        from torch import distributed

        if distributed.is_initialized():
            distributed.destroy_process_group()


ALONE = Group()


def is_rank(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun, or autotune's launcher in its place, started this process."""
    return "TORCHELASTIC_RUN_ID" in environment


def rank_of(environment: Mapping[str, str]) -> int:
    """Return the rank of this process; 0 if no launcher started it."""
    return int(environment["RANK"]) if is_rank(environment) else 0


def join(environment: MutableMapping[str, str]) -> Group:
    """Return the group that torchrun's variables describe; ``ALONE`` without them.

    Connects to the ranks' store; the first rank serves it. The variables of autotune's own launcher
    are removed from *environment*: a key and file descriptors that the program must not see.
    """
    if not is_rank(environment):
        return ALONE
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    from autotune.inside.ranks.exchange import SignedStore

    port, key = int(environment["MASTER_PORT"]), environment.pop(KEY, "")
    # only the first rank of a machine that autotune's launcher started has these
    if LISTENER in environment:
        listener, others = int(environment.pop(LISTENER)), int(environment.pop(OTHERS))
        for inherited in (listener, others):  # not by processes that the program starts
            os.set_inheritable(inherited, False)  # noqa: FBT003 - positional in os
        store = served_store(port, listener)
        atexit.register(_stay, store, others, os.getpid())
    else:
        address = environment["MASTER_ADDR"]
        store = TCPStore(address, port, is_master=False, timeout=PATIENCE)
    return Group(
        rank=int(environment["RANK"]),
        local_rank=int(environment["LOCAL_RANK"]),
        world_size=int(environment["WORLD_SIZE"]),
        local_world_size=int(environment["LOCAL_WORLD_SIZE"]),
        shared=SignedStore(PrefixStore("autotune", store), key),
    )


def served_store(port: int, listener: int) -> Store:
    """Serve a store from this process at a listening socket, which the store takes over."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    serve = partial(
        TCPStore,
        LOOPBACK,
        port,
        is_master=True,
        master_listen_fd=listener,
        wait_for_workers=False,
        timeout=PATIENCE,
    )
    try:
        return serve()
    except NotImplementedError:  # in torch 2.6 and 2.7, the older server alone takes over a socket
        return serve(use_libuv=False)


def _stay(store: Store, others: int, owner: int) -> None:
    """Keep serving the store until the other ranks have ended, which closes the pipe *others*.

    A program that failed does not wait: the launcher then ends the other ranks. Otherwise this rank
    leaves the process group first, so that no rank waits for it in a collective. A forked copy of
    the *owner* returns at once.
    """
    del store  # the caller holds it
    has_failed = getattr(sys, "last_value", None) is not None
    if has_failed or os.getpid() != owner:
        return
    from torch import cuda, distributed

    patience_s = None
    if distributed.is_initialized():
        if cuda.is_initialized():
            patience_s = LAST_S  # leaving a group of NCCL may itself wait for the others
        else:
            distributed.destroy_process_group()
    select.select([others], [], [], patience_s)


def hide_launcher(environment: MutableMapping[str, str]) -> None:
    """Remove all variables of a launcher: many scripts distribute themselves if they find them."""
    for name in list(environment):
        if name in SET_BY_TORCHRUN or name.startswith(("TORCHELASTIC_", OURS)):
            del environment[name]


def take_device(group: Group, environment: MutableMapping[str, str], replicas: int = 0) -> None:
    """Leave one GPU visible, so that ``cuda`` and ``cuda:0`` mean this rank's GPU.

    The entries of ``CUDA_VISIBLE_DEVICES`` (indices, UUIDs or MIG instances) are given to the ranks
    in their order. Call it before CUDA is initialized.

    A program that divides its batches among several GPUs keeps them all: many scripts wrap their
    model, and multiply their batch, only where torch counts several. Each rank then sees them in
    turned order, so that a device's number means another GPU on each rank.

    Args:
        replicas: Among how many GPUs the program divides a batch by ``nn.DataParallel``.

    Raises:
        UsageError: when fewer GPUs are visible than there are ranks.
    """
    rank, visible = group.local_rank, environment.get("CUDA_VISIBLE_DEVICES")
    devices = [part.strip() for part in visible.split(",")] if visible else []
    if visible is None:  # CUDA leaves out what follows a number without a GPU
        there_are = len(hardware.detect().gpus) if replicas > 1 else 0
        most = max(replicas, group.local_world_size, there_are)
        devices = [str(number) for number in range(most)]
    if rank >= len(devices):
        raise UsageError(
            f"Rank {rank} has no GPU: CUDA_VISIBLE_DEVICES={visible} names {len(devices)}. "
            "Lower the number in 'devices' in best.yaml, or search again."
        )
    turned = devices[rank:] + devices[:rank]
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(turned if replicas > 1 else turned[:1])


def stand_alone(group: Group, traits: ProgramTraits) -> None:
    """Leave a program written for one process an environment as if it ran alone."""
    if traits.device == "cuda":
        take_device(group, os.environ, traits.replicas)
    hide_launcher(os.environ)
