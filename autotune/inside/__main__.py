"""``python -m autotune.inside WIRE SHARED``: the entry point of a rig process.

A rig is one live copy of the user's program, which the parent starts, measures and ends. WIRE is
the number of a socket that this process inherits and that leads to the parent. SHARED is a folder
that the parent and all ranks of the rig can access.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from autotune.inside import run_program
from autotune.inside.input_watch import watch_input
from autotune.inside.processes import rank_process
from autotune.inside.processes.rank_process import end_with_starter, listen, quit_process
from autotune.inside.ranks.group import Group, join, rank_of, stand_alone
from autotune.program.program import ProgramKind
from autotune.rig.wire import AskedInput, Ended, Link, LinkClosed, Start, ToRig, decode, encode

if TYPE_CHECKING:
    from autotune.inside.seams.sources import SourcesSeam
    from autotune.inside.short_epochs import ShortEpochs
    from autotune.inside.step_tracker import StepTracker


def main(wire: int, shared: Path) -> int:
    """Run one rig process: wait for the parent's ``Start`` message, then run the program.

    The first process of the rig talks to the parent: a daemon thread reads the parent's commands,
    and the program runs on the main thread. Every other rank gets ``Start`` from the first rank.

    Returns:
        1 if the parent has gone. Otherwise the call does not return: the process exits with the
        program's exit code.
    """
    started = perf_counter()
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:  # the parent answers it (processes.py)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    if os.isatty(0):  # the terminal that the parent opened sends SIGHUP when the parent has gone
        signal.signal(signal.SIGHUP, lambda *_: quit_process(1))
    if rank_of(os.environ):
        return _follow(shared)
    os.set_inheritable(wire, False)  # noqa: FBT003 - the library's own
    link = Link(socket.socket(fileno=wire))
    commands: queue.SimpleQueue[ToRig] = queue.SimpleQueue()
    listener = threading.Thread(target=listen, args=(link, commands), daemon=True)
    listener.start()
    start = commands.get()
    assert isinstance(start, Start), "the parent's first message is Start"
    try:
        return _lead(link, commands, start, started, shared)
    except LinkClosed:
        # The listener thread sees the closed link too, and ends the process with all its children.
        listener.join()
        return 1


def _lead(
    link: Link, commands: queue.SimpleQueue[ToRig], start: Start, started: float, shared: Path
) -> int:
    """Run the program in the rig's first process, which talks to the parent; do not return."""
    group = _group_for(start)
    if group.is_launched:
        group.store.set("start", encode(start).decode())

    if start.bare:
        ended = _run_bare(start, group)
    else:
        watch_input(lambda prompt: link.send(AskedInput(prompt)))
        listener = rank_process.leader(link, commands, start, started, group)
        listener.seams.fence.guard_files(start)
        from autotune.inside.processes.children import Children

        sources = _sources(start, shared)
        children = Children(link, commands, start, started, listener, shared)
        # Under a launcher all ranks are known from the start. Without one, processes that the
        # program starts may be the ones that train.
        if not group.is_launched:
            children.install()
        if start.program.kind is ProgramKind.SCRIPT:  # no loader reads it
            sources.tell(start.program.source)
        ended = _run(listener, start, group)
        has_failed = bool(ended.exception)
        children.finish(has_failed=has_failed)
        listener.program_ended(has_failed=has_failed)
    link.send(ended)
    quit_process(ended.exit_code)


def _sources(start: Start, shared: Path) -> SourcesSeam:
    from autotune.inside.seams.sources import SourcesSeam

    sources = SourcesSeam(shared, (*start.open_places, start.shadow_dir))
    sources.install()
    return sources


def _follow(shared: Path) -> int:
    """Run the program as one of the other ranks; do not return.

    Only the first rank has a connection to the parent, so the last message goes into *shared*.
    """
    end_with_starter()
    group = join(os.environ)
    start = decode(group.store.get("start"))
    assert isinstance(start, Start), "the first rank passes on the parent's Start"
    _group_for(start, group)
    own_files = replace(start, shadow_dir=str(Path(start.shadow_dir) / f"rank{group.rank}"))
    if start.bare:
        ended = _run_bare(own_files, group)
    else:
        follower = rank_process.follower(start, group)
        _sources(own_files, shared)
        # Other programs know nothing of ranks: `seams.fence.silence` in _run handles their files.
        if start.applied is None or start.applied.traits.distributes_itself:
            follower.seams.fence.guard_files(own_files)
        ended = _run(follower, start, group)
    rank_process.tell(ended, shared)
    quit_process(ended.exit_code)


def _group_for(start: Start, group: Group | None = None) -> Group:
    """Return the group of ranks, and hide the launcher from a program written for one process.

    Such a program might act on torchrun's environment variables; others need them.
    """
    group = group or join(os.environ)
    applied = start.applied
    if group.is_launched and applied is not None and not applied.traits.distributes_itself:
        stand_alone(group, applied.traits)
    return group


def _run(listener: StepTracker | ShortEpochs, start: Start, group: Group) -> Ended:
    """Run the program to its end with the seams installed; return how it ended."""
    seams = listener.seams
    config = run_program.RecordedConfig(start.applied.config if start.applied else {})
    listener.config_reads = config.reads
    if start.applied is None:
        seams.install()
        seams.watch()
    else:
        listener.steering.apply(start.applied)
        seams.install()
    if seams.model.distribution.has_ranks:
        open_places = [Path(place) for place in start.open_places]
        seams.fence.silence(Path(start.shadow_dir) / f"rank{group.rank}", open_places)
        seams.model.distribution.agree()
    act = lambda: run_program.run(start.program, config, seams.watched.flags.see_keywords)  # noqa: E731
    return rank_process.run(listener, act, group)[0]


def _run_bare(start: Start, group: Group) -> Ended:
    """Run the program to its end with the file guard alone; return how it ended.

    The search uses such a run to see whether the program also fails without autotune's seams.
    """
    from autotune.inside.seam_set import SeamSet

    SeamSet(None, None, group=group).fence.guard_files(start)
    config = run_program.RecordedConfig({})
    return rank_process.run(None, lambda: run_program.run(start.program, config), group)[0]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
