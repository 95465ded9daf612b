"""Group: the processes that train together, as one of them sees it.

torchrun's environment says who this process is; on one machine autotune's own launcher sets it, and
on several torchrun does. The ranks share a key-value store before and beside any process group:
there they agree on what comes next. On one machine the first rank serves it, at a socket of the
loopback interface that it inherits. A program that is written for one process must not see that
environment.
"""

from __future__ import annotations

import atexit
import os
import select
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from autotune.errors import UsageError
from autotune.rig.local_ranks import KEY, LISTENER, LOOPBACK, OTHERS, OURS

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from autotune.inside.ranks.exchange import SignedStore

PATIENCE = timedelta(days=7)  # a search may let its ranks wait; the parent's watchdog ends them
LAST_S = 60.0  # for the others to end, where they may wait for a GPU collective of this rank
# torch.distributed.elastic.agent.server.local_elastic_agent, worker_env
SCOPES = ("", "LOCAL_", "GROUP_", "ROLE_")
SET_BY_TORCHRUN = frozenset(
    {"ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"}
    | {f"{scope}{what}" for scope in SCOPES for what in ("RANK", "WORLD_SIZE")}
)


@dataclass(frozen=True)
class Group:
    """Who this process is among those that train together.

    Attributes:
        rank: Its number.
        local_rank: Its number on this machine.
        world_size: How many there are.
        local_world_size: How many on this machine.
        shared: The store of all, None for a process alone.
        started_by: By what the program has started these processes itself, as in
            ``torch.multiprocessing.spawn``; empty where autotune or torchrun did.
        helpers: Ids of processes whose work counts as theirs: those that started them.
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
        """A launcher started it, if only as the one rank."""
        return self.shared is not None and not self.started_by

    @property
    def is_first(self) -> bool:
        """It is the one that saves, prints and talks to the parent."""
        return self.rank == 0

    @property
    def store(self) -> SignedStore:
        """The store of all, of which only what they have signed is read."""
        assert self.shared is not None, "a process alone shares nothing"
        return self.shared

    def initialize(self) -> None:
        """Open the default process group: gloo between CPUs, nccl between GPUs."""
        from torch import distributed
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        if not distributed.is_initialized():
            distributed.init_process_group(
                store=PrefixStore("collectives", self.store.plain),
                rank=self.rank,
                world_size=self.world_size,
            )

    def leave(self) -> None:
        """Close the default process group."""
        from torch import distributed

        if distributed.is_initialized():
            distributed.destroy_process_group()


ALONE = Group()


def is_rank(environment: Mapping[str, str]) -> bool:
    """Tell whether torchrun, or our launcher in its place, started this process."""
    return "TORCHELASTIC_RUN_ID" in environment


def rank_of(environment: Mapping[str, str]) -> int:
    """Return the number of this process, 0 where no launcher started it."""
    return int(environment["RANK"]) if is_rank(environment) else 0


def join(environment: MutableMapping[str, str]) -> Group:
    """Return the group that torchrun's environment speaks of, ALONE without it.

    Our launcher's own variables are taken out: they serve once, and are nothing for the program.
    """
    if not is_rank(environment):
        return ALONE
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    from autotune.inside.ranks.exchange import SignedStore

    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    key = environment.pop(KEY, "")
    if LISTENER in environment:
        listener, others = int(environment.pop(LISTENER)), int(environment.pop(OTHERS))
        store = _serve(port, listener, others)
    else:
        store = TCPStore(address, port, is_master=False, timeout=PATIENCE)
    return Group(
        rank=int(environment["RANK"]),
        local_rank=int(environment["LOCAL_RANK"]),
        world_size=int(environment["WORLD_SIZE"]),
        local_world_size=int(environment["LOCAL_WORLD_SIZE"]),
        shared=SignedStore(PrefixStore("autotune", store), key),
    )


def _serve(port: int, listener: int, others: int) -> Store:
    """Serve the store of all ranks from this process, to its end."""
    for inherited in (listener, others):
        os.set_inheritable(inherited, False)  # noqa: FBT003 - the library's own
    store = served_store(port, listener)
    atexit.register(_stay, store, others, os.getpid())
    return store


def served_store(port: int, listener: int) -> Store:
    """Serve a store from this process, at a socket that listens; it takes the socket over."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        LOOPBACK,
        port,
        is_master=True,
        master_listen_fd=listener,
        wait_for_workers=False,
        timeout=PATIENCE,
    )


def _stay(store: Store, others: int, owner: int) -> None:
    """Keep the store until the other ranks have ended: they may still read what was told there.

    A program that failed goes at once: the launcher then ends the others. So that none of them
    waits for this rank in a collective, it leaves the process group first.
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
    """Take out what a launcher has set: many scripts distribute themselves when they find it."""
    for name in list(environment):
        if name in SET_BY_TORCHRUN or name.startswith(("TORCHELASTIC_", OURS)):
            del environment[name]


def take_device(local_rank: int, environment: MutableMapping[str, str]) -> None:
    """Leave one GPU visible, so that ``cuda`` and ``cuda:0`` mean this rank's own.

    What was visible before, indices, UUIDs or MIG instances, is shared out in its order. Comes
    before CUDA starts.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    devices = [part.strip() for part in visible.split(",")] if visible else []
    if visible is None:
        environment["CUDA_VISIBLE_DEVICES"] = str(local_rank)
    elif local_rank < len(devices):
        environment["CUDA_VISIBLE_DEVICES"] = devices[local_rank]
    else:
        raise UsageError(
            f"Rank {local_rank} has no GPU: CUDA_VISIBLE_DEVICES={visible} names {len(devices)}. "
            "Lower 'world_size' in best.yaml, or search again."
        )


def join_in_place(*, has_device_each: bool) -> Group:
    """Join, and leave the program an environment as if it were alone."""
    group = join(os.environ)
    if has_device_each:
        take_device(group.local_rank, os.environ)
    hide_launcher(os.environ)
    return group
