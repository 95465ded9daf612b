"""Run inside a process that the program itself starts: join the rig, then train.

A program may start its training processes itself, for example by ``torch.multiprocessing.spawn``.
Of the processes that start together, rank 0 leads: it exchanges messages with the rig's first
process, which relays them to and from the parent. The other ranks follow rank 0 through a key-value
store on the loopback interface.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.inside.ranks import rank_process
from autotune.inside.ranks.group import PATIENCE, Group
from autotune.program.config import KnobValue
from autotune.program.flags import Flag
from autotune.rig.link import Link
from autotune.rig.local_ranks import LOOPBACK
from autotune.rig.wire import Progress, Start, ToRig, decode

if TYPE_CHECKING:
    from autotune.inside.short_epochs import ShortEpochs
    from autotune.inside.step_tracker import StepTracker

Act = Callable[..., Any]


@dataclass(frozen=True)
class Place:
    """The identity of a rank that the program starts, and where it meets the other ranks.

    Attributes:
        rank: Its number.
        ranks: How many ranks start together.
        started_by: What in the program starts them, such as ``torch.multiprocessing.spawn``.
        port: Of the ranks' store on the loopback interface; 0 for a single rank, which needs no
            store.
        key: Signs what the ranks tell each other in the store.
        name: Prefix of their entries in the store, which several groups may share.
        helpers: Ids of the parent and of the rig's first process.
    """

    rank: int
    ranks: int
    started_by: str
    port: int = 0
    key: str = ""
    name: str = ""
    helpers: tuple[int, ...] = ()

    def group(self) -> Group:
        """Return the group of these ranks, connected to its store if there are several ranks."""
        plain = Group(
            self.rank,
            self.rank,
            self.ranks,
            self.ranks,
            started_by=self.started_by,
            helpers=self.helpers,
        )
        if not self.port:
            return plain
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        from autotune.inside.ranks.exchange import SignedStore

        store = TCPStore(LOOPBACK, self.port, is_master=False, timeout=PATIENCE)
        return replace(plain, shared=SignedStore(PrefixStore(self.name, store), self.key))


@dataclass(frozen=True)
class Part:
    """All that a process needs to take part in a rig.

    It is sent to the new process by pickle, or as JSON in the environment of a script.

    Attributes:
        place: Where the process meets the other ranks.
        start: The parent's first message, encoded as on the wire.
        shared: The rig's folder.
        started: When the rig's first process began, by ``perf_counter``, which on Linux all
            processes of a machine share.
        flags: The program's command-line options, as the rig's first process saw them.
        config_reads: The entries of its ``config`` that the program has read in that process.
    """

    place: Place
    start: str
    shared: str
    started: float
    flags: tuple[Flag, ...] = ()
    config_reads: Mapping[str, KnobValue] = field(default_factory=dict)


class Training:
    """What a process runs in place of the program's own function: join the rig, then train.

    ``Children`` makes one for each process that may train, on the thread that starts the process.
    The new process calls it on its main thread. It is pickled to processes that do not begin as a
    fork.

    Args:
        act: The program's function.
        part: What the process needs to take part in the rig.
        wire: To the rig's first process for rank 0; None for the other ranks.
        leave: Called first in a forked process, where it removes the seams that were copied from
            the rig's first process. It is dropped when this object is pickled.
    """

    def __init__(
        self, act: Act, part: Part, wire: socket.socket | None, leave: Callable[[], object]
    ) -> None:
        self._act = act
        self._part = part
        self._wire = wire
        self._leave: Callable[[], object] | None = leave

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_leave": None}

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Join the rig and run the program's function with the program's arguments."""
        if self._leave is not None:
            self._leave()
        listener, group = begin(self._part, self._wire, is_late=True)
        act = partial(self._act, *args, **kwargs)
        rank_process.run_and_tell(listener, act, group, Path(self._part.shared))


class Bystander:
    """What a process runs that starts while another may train: report if it trains as well.

    ``Children`` makes one for workers of pools and for further single processes, on the thread that
    starts them. The new process calls it on its main thread. A report tells the rig's first process
    that the program trains in several separate processes, which cannot be measured.

    Args:
        act: The program's function.
        wire: To the rig's first process.
    """

    def __init__(self, act: Act, wire: socket.socket) -> None:
        self._act = act
        self._wire = wire

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program's function and return its result; watch torch once it is imported."""
        from autotune.inside.hubs.after_import import AfterImport

        link = Link(self._wire)
        AfterImport().wait_for("torch.optim.optimizer", lambda _: tell_of_steps(link))
        return self._act(*args, **kwargs)


def tell_of_steps(link: Link) -> None:
    """Send one message to the rig's first process when an optimizer makes its first step here.

    Later steps send nothing.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    is_told = False

    def tell(*_: Any) -> None:
        nonlocal is_told
        if not is_told:  # the hook is not removed, as torch iterates over the hooks it calls
            is_told = True
            link.send(Progress("start-up", 1))

    register_optimizer_step_post_hook(tell)


def begin(
    part: Part, wire: socket.socket | None, *, is_late: bool
) -> tuple[StepTracker | ShortEpochs, Group]:
    """Join the rig: meet the other ranks, install the seams, apply the config; imports torch.

    Args:
        part: What the process needs to take part in the rig.
        wire: To the rig's first process for rank 0; None for the other ranks.
        is_late: The program's modules may be imported already, so the seams must also patch those.

    Returns:
        The listener that the seams report to, and the group of ranks.
    """
    rank_process.end_with_starter()
    start = decode(part.start.encode())
    assert isinstance(start, Start), "the rig hands on the parent's first message"
    group = part.place.group()
    listener = _leader(part, start, group, wire) if wire else rank_process.follower(start, group)
    listener.config_reads = part.config_reads
    seams = listener.seams
    # the leader's files are guarded in _leader(), with a link by which the guard can report
    if wire is None:
        seams.guard_files(start)
    if start.applied is not None:
        listener.steering.apply(start.applied)
    if is_late:
        seams.install_late()
    else:
        seams.install()
    if start.applied is None:
        seams.watch()
        seams.flags.seen += part.flags
    return listener, group


def _leader(
    part: Part, start: Start, group: Group, wire: socket.socket
) -> StepTracker | ShortEpochs:
    """Return the listener of rank 0; a thread of its process reads the commands from the wire."""
    link = Link(wire)
    commands: queue.SimpleQueue[ToRig] = queue.SimpleQueue()
    threading.Thread(target=rank_process.listen, args=(link, commands), daemon=True).start()

    def go_on() -> None:
        """Train on without being measured, because the rig's first process trains as well."""
        listener.stand_aside()

    listener = rank_process.leader(link, commands, start, part.started, group, go_on)
    listener.seams.guard_files(start)
    # the rig's first process waits for a step before it lets a child lead
    if start.rehearsal is not None:
        tell_of_steps(link)
    return listener
