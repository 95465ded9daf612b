"""Run inside a process that the program itself starts: join the rig, then train.

A program may start its training processes itself, for example by ``torch.multiprocessing.spawn``,
or by running its script again, as Lightning's launcher does: then ``Children`` starts
``python -m autotune.inside.processes.child_rank ARGS`` instead. Of those that start together,
rank 0 leads: it exchanges messages with the rig's first process, which relays them to and from the
parent. The other ranks follow rank 0 through a key-value store on the loopback interface.
"""

from __future__ import annotations

import gc
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from autotune.inside import run_program
from autotune.inside.processes import rank_process
from autotune.inside.ranks.group import PATIENCE, Group
from autotune.inside.seams.sources import SourcesSeam
from autotune.inside.seams.started import Host, Script, StartedSeam, Starting
from autotune.inside.steering import install
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import KnobValue
from autotune.program.flags import Flag
from autotune.rig.local_ranks import LOOPBACK, OURS
from autotune.rig.wire import Link, Progress, Start, ToRig, decode

if TYPE_CHECKING:
    from autotune.inside.short_epochs import ShortEpochs
    from autotune.inside.step_tracker import StepTracker

Act = Callable[..., Any]
CHILD = f"{OURS}CHILD"  # environment variable with the ``ChildStart`` of a script, as JSON


@dataclass(frozen=True)
class ChildStart:
    """All that a process needs to take part in a rig; it is pickled, or sent as JSON to a script.

    Attributes:
        started_by: What in the program starts them, such as ``torch.multiprocessing.spawn``.
        start: The parent's first message, encoded as on the wire.
        shared: The rig's folder.
        started: When the rig's first process began, by ``perf_counter``, which on Linux all
            processes of a machine share.
        helpers: Ids of the parent and of the rig's first process.
        port: Of the ranks' store on the loopback interface; 0 for a single rank, which needs none.
        key: Signs what the ranks tell each other in the store.
        name: Prefix of their entries in the store, which several groups may share.
        flags: The program's command-line options, as the rig's first process saw them.
        config_reads: The entries of its ``config`` that the program has read in that process.
    """

    rank: int
    ranks: int
    started_by: str
    start: str
    shared: str
    started: float
    helpers: tuple[int, ...] = ()
    port: int = 0
    key: str = ""
    name: str = ""
    flags: tuple[Flag, ...] = ()
    config_reads: Mapping[str, KnobValue] = field(default_factory=dict)

    @property
    def message(self) -> Start:
        """The parent's first message."""
        start = decode(self.start.encode())
        assert isinstance(start, Start), "the rig hands on the parent's first message"
        return start

    def group(self) -> Group:
        """Return the group of these ranks, connected to its store if there are several ranks."""
        store = None
        if self.port:
            from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

            from autotune.inside.ranks.exchange import SignedStore

            plain = TCPStore(LOOPBACK, self.port, is_master=False, timeout=PATIENCE)
            store = SignedStore(PrefixStore(self.name, plain), self.key)
        numbers = (self.rank, self.rank, self.ranks, self.ranks)
        return Group(*numbers, store, started_by=self.started_by, helpers=self.helpers)


class Training:
    """What a process runs in place of the program's own function: join the rig, then train.

    Args:
        wire: To the rig's first process for rank 0; None for the other ranks.
        leave: Called first in a forked process, where it removes the seams that were copied from
            the rig's first process. It is dropped when this object is pickled.
    """

    def __init__(
        self, act: Act, child: ChildStart, wire: socket.socket | None, leave: Callable[[], object]
    ) -> None:
        self._act = act
        self._child = child
        self._wire = wire
        self._leave: Callable[[], object] | None = leave

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_leave": None}

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Join the rig and run the program's function with the program's arguments."""
        if self._leave is not None:
            self._leave()
        listener, group = begin(self._child, self._wire, is_late=True)
        act = partial(self._act, *args, **kwargs)
        rank_process.run_and_tell(listener, act, group, Path(self._child.shared))


def begin(
    child: ChildStart, wire: socket.socket | None, *, is_late: bool
) -> tuple[StepTracker | ShortEpochs, Group]:
    """Join the rig: meet the other ranks, install the seams, apply the config; imports torch.

    Args:
        wire: To the rig's first process for rank 0; None for the other ranks.
        is_late: The program's modules may be imported already, so the seams must also patch those.
    """
    rank_process.end_with_starter()
    start, group = child.message, child.group()
    if wire is not None:
        link = Link(wire)
        listener = _leader(child, start, group, link)
    else:
        listener = rank_process.follower(start, group)
    SourcesSeam(Path(child.shared), (*start.open_places, start.shadow_dir)).install()
    listener.seams.fence.guard_files(start)
    listener.config_reads = child.config_reads
    seams = listener.seams
    if start.applied is not None:
        listener.steering.apply(start.applied)
    seams.install(is_late=is_late)
    if start.applied is None:
        seams.watch()
        seams.watched.flags.seen += child.flags
    return listener, group


def _leader(child: ChildStart, start: Start, group: Group, link: Link) -> StepTracker | ShortEpochs:
    """Return the listener of rank 0; a thread of its process reads the commands from the link."""
    commands: queue.SimpleQueue[ToRig] = queue.SimpleQueue()
    threading.Thread(target=rank_process.listen, args=(link, commands), daemon=True).start()

    def go_on() -> None:
        """Train on without being measured, because the rig's first process trains as well."""
        listener.stand_aside()

    listener = rank_process.leader(link, commands, start, child.started, group, go_on)
    # the rig's first process waits for a step before it lets a child lead
    if start.rehearsal is not None:
        tell_of_first_step(link)
    return listener


def tell_of_first_step(link: Link) -> None:
    """Send one message to the rig's first process when an optimizer makes its first step here."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    is_told = False

    def tell(*_: Any) -> None:
        nonlocal is_told
        if not is_told:  # the hook is not removed, as torch iterates over the hooks it calls
            is_told = True
            link.send(Progress("start-up", 1))

    register_optimizer_step_post_hook(tell)


class Configured:
    """Runs in a spawned process instead of the program's function: apply the config, then train."""

    def __init__(self, act: Act, applied: AppliedConfig) -> None:
        self._act = act
        self._applied = applied

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the config, run the program's function and return what it returns."""
        seams = install(self._applied, is_late=True)
        try:
            return self._act(*args, **kwargs)
        finally:
            # A model that outlives its process group ends the process by SIGABRT (gloo's threads).
            seams.remove()
            gc.collect()


class RunChildren(Host):
    """Applies a config to the processes that a program starts under ``autotune run``.

    Forked processes begin as copies of one that has the config. Spawned processes and scripts begin
    without it. Workers of pools do not train, and are left as they are.
    """

    def __init__(self, applied: AppliedConfig, command: Sequence[str]) -> None:
        self._applied = applied
        self._command = command
        StartedSeam(self).install()

    def process_starts(self, starting: Starting, act: Act) -> Act | None:
        """Return what a process runs in place of its target; None leaves it as it is."""
        return None if starting.forks or starting.pools else Configured(act, self._applied)

    def script_starts(self, starting: Starting, args: Sequence[str]) -> Script:  # noqa: ARG002
        """Return the command that starts the script again as a rank, under the config."""
        return Script((sys.executable, *self._command, *args), {})


def main(*args: str) -> None:
    """Run the program with these arguments, as a rank next to the process that has started it.

    How the program ended is written to the rig's folder.
    """
    child = TypeAdapter(ChildStart).validate_json(os.environ.pop(CHILD))
    start = child.message
    listener, group = begin(child, None, is_late=False)
    config = run_program.RecordedConfig(start.applied.config if start.applied else {})
    program = replace(start.program, args=args)
    act = lambda: run_program.run(program, config, listener.seams.watched.flags.see_keywords)  # noqa: E731
    rank_process.run_and_tell(listener, act, group, Path(child.shared))


if __name__ == "__main__":
    main(*sys.argv[1:])
