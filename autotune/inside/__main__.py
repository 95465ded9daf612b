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
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep, time
from typing import TYPE_CHECKING

import psutil

from autotune.inside import launch
from autotune.inside.group import Group, hide_launcher, join, rank_of, take_device
from autotune.inside.input_watch import watch_input
from autotune.wire import (
    AskedInput,
    Doubted,
    Ended,
    Link,
    LinkClosed,
    Rehearsed,
    Start,
    ToRig,
    decode,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.inside.borders import Borders
    from autotune.inside.short_epochs import ShortEpochs
    from autotune.program import Program
    from autotune.rehearsal import Seen

LAUNCHER_POLL_S = 0.5


def main(wire: int, shared: Path) -> int:
    """Run one rig, or one of its ranks; return the exit code of the program."""
    started = perf_counter()
    if os.isatty(0):  # it hangs up when the parent has gone
        signal.signal(signal.SIGHUP, lambda *_: _quit(1))
    if rank_of(os.environ):
        return _follow(shared)
    os.set_inheritable(wire, False)  # noqa: FBT003 - the library's own
    link = Link(socket.socket(fileno=wire))
    commands: queue.SimpleQueue[ToRig] = queue.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(link, commands), daemon=True)
    listener.start()
    start = commands.get()
    assert isinstance(start, Start), "the parent speaks first, and says Start"
    try:
        return _lead(link, commands, start, started)
    except LinkClosed:
        listener.join()  # it reads the same end, and ends the process
        return 1


def _lead(link: Link, commands: queue.SimpleQueue[ToRig], start: Start, started: float) -> int:
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
        listener = _listener(link, commands, start, started, group)
        listener.seams.guard_files(start, tell)
        ended = _run(listener, start, group)
        listener.program_ended(has_failed=bool(ended.exception))
    link.send(ended)
    _quit(ended.exit_code)
    return ended.exit_code


def _listener(
    link: Link, commands: queue.SimpleQueue[ToRig], start: Start, started: float, group: Group
) -> Borders | ShortEpochs:
    """Who looks after the program; imports torch, by now the parent's end is watched."""
    if start.rehearsal is None:
        from autotune.inside.driver import Driver

        return Driver(link, commands, start, started, _quit, group)
    assert start.setting is not None, "what is rehearsed is a setting"
    from autotune.inside.short_epochs import ShortEpochs

    def over(seen: Seen) -> None:
        link.send(Rehearsed(seen))
        if seen.ended != "by itself":
            commands.get()  # Close
            _quit()

    epochs = start.program.mode.epochs
    return ShortEpochs(start.setting, start.rehearsal, over, started, group, epochs)


def _follow(shared: Path) -> int:
    """Run the program as one of the other ranks; its last word is left in a file."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    group = join(os.environ)
    start = decode(group.store.get("start"))
    assert isinstance(start, Start), "the first rank hands on what the parent said"
    _group_for(start, group)
    own = replace(start, shadow_dir=str(Path(start.shadow_dir) / f"rank{group.rank}"))
    if start.bare:
        ended = _run_bare(own, group)
    else:
        follower = _follower(start, group)
        if start.setting is None or start.setting.distributes_itself:  # it writes as it likes
            follower.seams.guard_files(own)
        ended = _run(follower, start, group)
    part = shared / f"ended-{group.rank}.part"
    part.write_bytes(encode(ended))
    part.rename(shared / f"ended-{group.rank}")
    _quit(ended.exit_code)
    return ended.exit_code


def _follower(start: Start, group: Group) -> Borders | ShortEpochs:
    """Who looks after a rank that does what the first one does."""
    if start.rehearsal is None:
        from autotune.inside.follower import Follower

        return Follower(start.setting, group, _quit, start.program.mode.epochs)
    assert start.setting is not None, "what is rehearsed is a setting"
    from autotune.inside.short_epochs import ShortEpochs

    epochs = start.program.mode.epochs
    return ShortEpochs(start.setting, start.rehearsal, None, perf_counter(), group, epochs)


def _group_for(start: Start, group: Group | None = None) -> Group:
    """Join the other ranks; a program that knows nothing of them does not see the launcher."""
    group = group or join(os.environ)
    setting = start.setting
    if group.is_launched and setting is not None and not setting.distributes_itself:
        if setting.device == "cuda":
            take_device(group.local_rank, os.environ)
        hide_launcher(os.environ)
    return group


def _run(listener: Borders | ShortEpochs, start: Start, group: Group) -> Ended:
    """Run the program to its end under seams; return how it ended."""
    seams = listener.seams
    program = start.program
    config = launch.RecordedConfig(start.setting.config if start.setting else {})
    listener.config_reads = config.reads
    if start.setting is None:
        seams.install()
        seams.watch()
    else:
        seams.apply(start.setting)
        seams.install()
    if seams.distribution.has_ranks:
        open_places = [Path(place) for place in start.open_places]
        seams.silence(Path(start.shadow_dir) / f"rank{group.rank}", open_places)
        seams.distribution.agree()
    ended = _run_to_its_end(program, config, group, seams.flags.see_keywords)
    return replace(
        ended,
        steps=listener.steps,
        unseen=seams.by_hand.unseen(),
        steps_under_config=listener.steps - listener.switched_at,
        suspect=listener.suspect,
    )


def _run_bare(start: Start, group: Group, tell: Callable[[str], None] = lambda _: None) -> Ended:
    """Run the program to its end without seams: nothing but the fence's own is in its way."""
    from autotune.inside.seams import Seams

    Seams(None, None, group=group).guard_files(start, tell)
    return _run_to_its_end(start.program, launch.RecordedConfig({}), group)


def _run_to_its_end(
    program: Program,
    config: launch.RecordedConfig,
    group: Group,
    see_keywords: launch.SeeKeywords = lambda *_: None,
) -> Ended:
    """Run the program; return how it ended."""
    exception, trace, exit_code = "", "", 0
    try:
        launch.run(program, config, see_keywords)
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
        exception = f"SystemExit: {end.code}" if exit_code else ""
    except LinkClosed:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever ends the program is its answer
        exit_code = 1
        exception = "".join(traceback.format_exception_only(error)).strip()
        shown = traceback.format_exception(
            type(error), error, launch.own_frames(error.__traceback__)
        )
        trace = "".join(shown)
        (sys.__stderr__ or sys.stderr).write(trace)
    return Ended(0, exception, trace, exit_code, group.rank, time())


def _end_with(launcher: int) -> None:
    """End this rank when its launcher has gone, whatever way."""
    while os.getppid() == launcher:
        sleep(LAUNCHER_POLL_S)
    _quit(1)


def _listen(link: Link, commands: queue.SimpleQueue[ToRig]) -> None:
    """Read the parent's commands; when the parent has gone, whatever way, the rig goes too."""
    for message in link.messages():
        commands.put(message)  # type: ignore[arg-type]
    _quit(1)


def _quit(exit_code: int = 0) -> None:
    """End this process and all it started, at once: no code of the program runs any more."""
    try:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # the program may have put anything in the place of sys.stdout
        os._exit(exit_code)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
