"""What every process of a rig does, whoever started it: listen, run what trains, tell how it ended.

A rig's first process talks to the parent. Other ranks, and processes that the program starts
itself, leave their last word in a file of the rig's folder.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep, time
from typing import TYPE_CHECKING, NoReturn

import psutil

from autotune.inside import run_program
from autotune.inside.ranks.group import Group
from autotune.rig.wire import Ended, Link, LinkClosed, Rehearsed, Start, ToRig, encode

if TYPE_CHECKING:
    from autotune.inside.short_epochs import ShortEpochs
    from autotune.inside.step_tracker import StepTracker
    from autotune.program.rehearsal import Seen

STARTER_POLL_S = 0.5


def leader(
    link: Link,
    commands: queue.SimpleQueue[ToRig],
    start: Start,
    started: float,
    group: Group,
    close: Callable[[], None] | None = None,
) -> StepTracker | ShortEpochs:
    """Return who looks after the program and talks to the parent; imports torch.

    Args:
        link: To the parent, or to the rig's process that hands its messages on.
        commands: What comes over the link, read by another thread.
        start: What the parent said first.
        started: When the rig's first process began, by ``perf_counter``.
        group: The processes that train together.
        close: Called when the parent has no more to ask; by default the process ends at once.
    """
    close = close or quit_process
    if start.rehearsal is None:
        from autotune.inside.lead_rank import LeadRank

        return LeadRank(link, commands, start, started, close, group)
    assert start.setting is not None, "what is rehearsed is a setting"
    from autotune.inside.short_epochs import ShortEpochs

    def over(seen: Seen) -> None:
        link.send(Rehearsed(seen))
        if seen.ended != "by itself":
            commands.get()  # Close
            close()

    epochs = start.program.mode.epochs
    return ShortEpochs(start.setting, start.rehearsal, over, started, group, epochs)


def follower(start: Start, group: Group) -> StepTracker | ShortEpochs:
    """Return who looks after a rank that does what the first one does."""
    if start.rehearsal is None:
        from autotune.inside.ranks.follower_rank import FollowerRank

        return FollowerRank(start.setting, group, quit_process, start.program.mode.epochs)
    assert start.setting is not None, "what is rehearsed is a setting"
    from autotune.inside.short_epochs import ShortEpochs

    epochs = start.program.mode.epochs
    return ShortEpochs(start.setting, start.rehearsal, None, perf_counter(), group, epochs)


def own_files(start: Start, rank: int) -> Start:
    """Return what the guard of a rank's files is told: its shadow files are its own."""
    return replace(start, shadow_dir=str(Path(start.shadow_dir) / f"rank{rank}"))


def run(
    listener: StepTracker | ShortEpochs | None, act: Callable[[], object], group: Group
) -> Ended:
    """Run what trains to its end; return how it ended. Nobody listens without seams."""
    return _ended(listener, act, group)[0]


def run_and_tell(
    listener: StepTracker | ShortEpochs, act: Callable[[], object], group: Group, shared: Path
) -> None:
    """Run what trains to its end and leave a last word; what it raises passes through.

    Args:
        listener: Who looks after it.
        act: What trains.
        group: The processes that train together.
        shared: The folder of the rig.
    """
    ended, error = _ended(listener, act, group)
    with suppress(LinkClosed):
        listener.program_ended(has_failed=error is not None)
    tell(ended, shared)
    if error is not None:
        raise error


def tell(ended: Ended, shared: Path) -> None:
    """Leave the last word of a rank that does not talk to the parent."""
    part = shared / f"ended-{ended.rank}.part"
    with suppress(OSError):  # the rig's folder has gone, and with it who wanted to know
        part.write_bytes(encode(ended))
        part.rename(shared / f"ended-{ended.rank}")


def _ended(
    listener: StepTracker | ShortEpochs | None, act: Callable[[], object], group: Group
) -> tuple[Ended, BaseException | None]:
    exception, trace, exit_code = "", "", 0
    raised: BaseException | None = None
    try:
        act()
        _wait_as_python_does()
    except SystemExit as end:
        raised = end
        exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
        exception = f"SystemExit: {end.code}" if exit_code else ""
    except LinkClosed:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever ends the program is its answer
        raised = error
        exit_code = 1
        exception = "".join(traceback.format_exception_only(error)).strip()
        shown = traceback.format_exception(
            type(error), error, run_program.own_frames(error.__traceback__)
        )
        trace = "".join(shown)
        (sys.__stderr__ or sys.stderr).write(trace)
    ended = Ended(0, exception, trace, exit_code, group.rank, time())
    if listener is not None:
        ended = replace(
            ended,
            steps=listener.steps,
            unseen=listener.seams.by_hand.unseen(),
            steps_under_config=listener.steps - listener.switched_at,
            suspect=listener.suspect,
        )
    return ended, raised


def _wait_as_python_does() -> None:
    """Wait for the threads and processes that a program leaves to the end of the interpreter.

    Many start their training as their last line. Daemons are not waited for, there as here.
    """
    own = {threading.main_thread(), threading.current_thread()}
    for thread in set(threading.enumerate()) - own:
        if not thread.daemon:
            thread.join()
    for process in multiprocessing.active_children():
        if not process.daemon:
            process.join()


def end_with(starter: int) -> None:
    """End this process when the one that started it has gone, whatever way."""
    while os.getppid() == starter:
        sleep(STARTER_POLL_S)
    quit_process(1)


def end_with_starter() -> None:
    """Watch, from a thread, over the process that started this one."""
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()


def listen(link: Link, commands: queue.SimpleQueue[ToRig]) -> None:
    """Read the parent's commands; when the parent has gone, whatever way, the rig goes too."""
    for message in link.messages():
        commands.put(message)  # type: ignore[arg-type]
    quit_process(1)


def quit_process(exit_code: int = 0) -> NoReturn:
    """End this process and all it started, at once: no code of the program runs any more."""
    try:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # the program may have put anything in the place of sys.stdout
        os._exit(exit_code)
