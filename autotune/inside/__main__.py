"""``python -m autotune.inside WIRE SHARED``: a rig. Hears from the parent, then runs the program.

WIRE is the number of a socket that this process inherits; SHARED is a folder that it shares with
the parent and with the other ranks.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from autotune.inside import run_program
from autotune.inside.input_watch import watch_input
from autotune.inside.ranks import rank_process
from autotune.inside.ranks.group import Group, hide_launcher, join, rank_of, take_device
from autotune.inside.ranks.rank_process import end_with_starter, listen, quit_process
from autotune.rig.wire import (
    AskedInput,
    Doubted,
    Ended,
    Link,
    LinkClosed,
    Start,
    ToRig,
    decode,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.inside.short_epochs import ShortEpochs
    from autotune.inside.step_tracker import StepTracker


def main(wire: int, shared: Path) -> int:
    """Run one rig, or one of its ranks; return the exit code of the program."""
    started = perf_counter()
    if os.isatty(0):  # it hangs up when the parent has gone
        signal.signal(signal.SIGHUP, lambda *_: quit_process(1))
    if rank_of(os.environ):
        return _follow(shared)
    os.set_inheritable(wire, False)  # noqa: FBT003 - the library's own
    link = Link(socket.socket(fileno=wire))
    commands: queue.SimpleQueue[ToRig] = queue.SimpleQueue()
    listener = threading.Thread(target=listen, args=(link, commands), daemon=True)
    listener.start()
    start = commands.get()
    assert isinstance(start, Start), "the parent speaks first, and says Start"
    try:
        return _lead(link, commands, start, started, shared)
    except LinkClosed:
        listener.join()  # it reads the same end, and ends the process
        return 1


def _lead(
    link: Link, commands: queue.SimpleQueue[ToRig], start: Start, started: float, shared: Path
) -> int:
    """Run the program as the process that talks to the parent."""
    group = _group_for(start)
    if group.is_launched:
        group.store.set("start", encode(start).decode())

    def tell(sentence: str) -> None:
        link.send(Doubted(sentence))

    if start.bare:
        ended = _run_bare(start, group, tell)
    else:
        watch_input(lambda prompt: link.send(AskedInput(prompt)))
        listener = rank_process.leader(link, commands, start, started, group)
        listener.seams.guard_files(start, tell)
        from autotune.inside.ranks.children import Children

        children = Children(link, commands, start, started, listener, shared)
        if not group.is_launched:
            children.install()
        ended = _run(listener, start, group)
        has_failed = bool(ended.exception)
        children.finish(has_failed=has_failed)
        listener.program_ended(has_failed=has_failed)
    link.send(ended)
    quit_process(ended.exit_code)


def _follow(shared: Path) -> int:
    """Run the program as one of the other ranks; its last word is left in a file."""
    end_with_starter()
    group = join(os.environ)
    start = decode(group.store.get("start"))
    assert isinstance(start, Start), "the first rank hands on what the parent said"
    _group_for(start, group)
    if start.bare:
        ended = _run_bare(rank_process.own_files(start, group.rank), group)
    else:
        follower = rank_process.follower(start, group)
        if start.setting is None or start.setting.distributes_itself:  # it writes as it likes
            follower.seams.guard_files(rank_process.own_files(start, group.rank))
        ended = _run(follower, start, group)
    rank_process.tell(ended, shared)
    quit_process(ended.exit_code)


def _group_for(start: Start, group: Group | None = None) -> Group:
    """Join the other ranks; a program that knows nothing of them does not see the launcher."""
    group = group or join(os.environ)
    setting = start.setting
    if group.is_launched and setting is not None and not setting.distributes_itself:
        if setting.device == "cuda":
            take_device(group.local_rank, os.environ)
        hide_launcher(os.environ)
    return group


def _run(listener: StepTracker | ShortEpochs, start: Start, group: Group) -> Ended:
    """Run the program to its end under seams; return how it ended."""
    seams = listener.seams
    config = run_program.RecordedConfig(start.setting.config if start.setting else {})
    listener.config_reads = config.reads
    if start.setting is None:
        seams.install()
        seams.watch()
    else:
        listener.steering.apply(start.setting)
        seams.install()
    if seams.distribution.has_ranks:
        open_places = [Path(place) for place in start.open_places]
        seams.silence(Path(start.shadow_dir) / f"rank{group.rank}", open_places)
        seams.distribution.agree()
    return rank_process.run(
        listener, lambda: run_program.run(start.program, config, seams.flags.see_keywords), group
    )


def _run_bare(start: Start, group: Group, tell: Callable[[str], None] = lambda _: None) -> Ended:
    """Run the program to its end without seams: nothing but the fence's own is in its way."""
    from autotune.inside.seams import SeamSet

    SeamSet(None, None, group=group).guard_files(start, tell)
    config = run_program.RecordedConfig({})
    return rank_process.run(None, lambda: run_program.run(start.program, config), group)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
