"""What runs in a process that the program starts itself: it takes its part in the rig, and trains.

The first of the processes that start together leads: it talks to the rig's first process, which
hands its messages on to the parent. The others follow it by a store on the loopback interface.
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
from autotune.rig.local_ranks import LOOPBACK
from autotune.rig.wire import Doubted, Link, Progress, Start, ToRig, decode

if TYPE_CHECKING:
    from autotune.inside.short_epochs import ShortEpochs
    from autotune.inside.step_tracker import StepTracker

Act = Callable[..., Any]


@dataclass(frozen=True)
class Place:
    """Where ranks that the program starts meet.

    Attributes:
        rank: Number of one of them.
        ranks: How many they are.
        started_by: What of the program starts them.
        port: Of their store on the loopback interface, 0 for one that is alone.
        key: Signs what they tell each other there.
        name: Of the part of the store that is theirs.
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
        """Meet the others."""
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
    """What a process needs to take part in a rig.

    Attributes:
        place: Where it meets the others.
        start: What the parent said first, as it goes over the wire.
        shared: The rig's folder.
        started: When the rig's first process began, by ``perf_counter``, a clock of the machine.
        flags: What the program's command line takes, as the rig's first process saw it.
        config_reads: What the program has read from its ``config`` there.
    """

    place: Place
    start: str
    shared: str
    started: float
    flags: tuple[Flag, ...] = ()
    config_reads: Mapping[str, KnobValue] = field(default_factory=dict)


class Training:
    """What a process runs in place of the program's own function; one per process.

    It is pickled where the process does not begin as a copy of the one that starts it.

    Args:
        act: The program's function.
        part: In the rig.
        wire: To the rig's first process, for the rank that leads; None for the others.
        leave: In a copy of the rig's first process, takes away what watches over that one.
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
        """Take part, and train."""
        if self._leave is not None:
            self._leave()
        listener, group = begin(self._part, self._wire, is_late=True)
        act = partial(self._act, *args, **kwargs)
        rank_process.run_and_tell(listener, act, group, Path(self._part.shared))


class Bystander:
    """What a process runs that is started beside one that may train: it tells if it trains too.

    Args:
        act: The program's function.
        wire: To the rig's first process.
    """

    def __init__(self, act: Act, wire: socket.socket) -> None:
        self._act = act
        self._wire = wire

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do what the program wants."""
        from autotune.inside.seams.after_import import AfterImport

        link = Link(self._wire)
        AfterImport().wait_for("torch.optim.optimizer", lambda _: tell_of_steps(link))
        return self._act(*args, **kwargs)


def tell_of_steps(link: Link) -> None:
    """Tell the rig's first process of the first step that an optimizer makes here."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    is_told = False

    def tell(*_: Any) -> None:
        nonlocal is_told
        if not is_told:  # the hook stays: torch goes through its hooks while they are called
            is_told = True
            link.send(Progress("start-up", 0.0, 1))

    register_optimizer_step_post_hook(tell)


def begin(
    part: Part, wire: socket.socket | None, *, is_late: bool
) -> tuple[StepTracker | ShortEpochs, Group]:
    """Begin to take part; imports torch.

    Args:
        part: In the rig.
        wire: To the rig's first process, for the rank that leads; None for the others.
        is_late: The program's modules may have been imported by now.
    """
    rank_process.end_with_starter()
    start = decode(part.start.encode())
    assert isinstance(start, Start), "the rig hands on what the parent said"
    group = part.place.group()
    listener = _leader(part, start, group, wire) if wire else rank_process.follower(start, group)
    listener.config_reads = part.config_reads
    seams = listener.seams
    if wire is None:
        seams.guard_files(start)
    if start.setting is not None:
        listener.steering.apply(start.setting)
    if is_late:
        seams.install_late()
    else:
        seams.install()
    if start.setting is None:
        seams.watch()
        seams.flags.seen += part.flags
    return listener, group


def _leader(
    part: Part, start: Start, group: Group, wire: socket.socket
) -> StepTracker | ShortEpochs:
    link = Link(wire)
    commands: queue.SimpleQueue[ToRig] = queue.SimpleQueue()
    threading.Thread(target=rank_process.listen, args=(link, commands), daemon=True).start()

    def go_on() -> None:
        """Train unmeasured: the rig's first process trains itself."""
        listener.stand_aside()

    listener = rank_process.leader(link, commands, start, part.started, group, go_on)
    listener.seams.guard_files(start, tell=lambda sentence: link.send(Doubted(sentence)))
    if start.rehearsal is not None:
        tell_of_steps(link)
    return listener
