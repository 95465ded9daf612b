"""What every process of a rig does: read commands, run the program, report how it ended.

A rig's first process talks to the parent. The other ranks, and processes that the program starts
itself, write how they ended to a file in the rig's folder.
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

from autotune.files import access
from autotune.inside import run_program
from autotune.inside.ranks.group import Group
from autotune.machine.probes.torch_memory import is_device_full
from autotune.machine.process_tree import descendants
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
    """Return the listener of the rank that talks to the parent; imports torch.

    Args:
        started: When the rig's first process began, by ``perf_counter``.
        close: Called when the parent needs nothing more; by default the process ends at once.
    """
    close = close or quit_process
    if start.rehearsal is None:
        from autotune.inside.processes.lead_rank import LeadRank

        return LeadRank(link, commands, start, started, close, group).tracker

    def over(seen: Seen) -> None:
        link.send(Rehearsed(seen))
        if seen.ended != "by itself":
            commands.get()  # the parent answers with Close once it has read the result
            close()

    return _rehearsal(start, over, started, group)


def follower(start: Start, group: Group) -> StepTracker | ShortEpochs:
    """Return the listener of a rank that follows rank 0: that of a ``FollowerRank``."""
    if start.rehearsal is not None:
        return _rehearsal(start, None, perf_counter(), group)
    from autotune.inside.processes.follower_rank import FollowerRank

    return FollowerRank(start.applied, group, quit_process, start.program.mode.epochs).tracker


def _rehearsal(
    start: Start, over: Callable[[Seen], None] | None, started: float, group: Group
) -> ShortEpochs:
    from autotune.inside.short_epochs import ShortEpochs

    assert start.applied is not None, "a rehearsal runs a config"
    assert start.rehearsal is not None, "of a plan"
    return ShortEpochs(start.applied, start.rehearsal, over, started, group)


def run_and_tell(
    listener: StepTracker | ShortEpochs, act: Callable[[], object], group: Group, shared: Path
) -> None:
    """Run the program to its end and write how it ended to the rig's folder.

    The program's exception is raised again.
    """
    ended, error = run(listener, act, group)
    with suppress(LinkClosed):
        listener.program_ended(has_failed=error is not None)
    # before the exception is raised again, because the process ends with it
    tell(ended, shared)
    if error is not None:
        raise error


def tell(ended: Ended, shared: Path) -> None:
    """Write how a rank ended to the rig's folder, for a rank that does not talk to the parent."""
    part = shared / f"ended-{ended.rank}.part"
    with suppress(OSError):  # the rig and its folder may be gone already
        part.write_bytes(encode(ended))
        part.rename(shared / f"ended-{ended.rank}")


def run(
    listener: StepTracker | ShortEpochs | None, act: Callable[[], object], group: Group
) -> tuple[Ended, BaseException | None]:
    """Run the program to its end; return how it ended, and the exception that ended it, if any.

    Without seams there is no listener.
    """
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
    except BaseException as error:  # noqa: BLE001 - all that ends a program is reported
        raised = error
        exit_code = 1
        exception = "".join(traceback.format_exception_only(error)).strip()
        shown = traceback.format_exception(
            type(error), error, run_program.own_frames(error.__traceback__)
        )
        trace = "".join(shown)
        (sys.__stderr__ or sys.stderr).write(trace)
    is_full = bool(exception) and is_device_full()
    ended = Ended(
        0,
        _bounded(exception),
        _bounded(trace),
        exit_code,
        group.rank,
        time(),
        is_device_full=is_full,
    )
    if listener is not None:
        ended = replace(
            ended,
            steps=listener.steps,
            unseen=listener.seams.steps.by_hand.unseen(),
            steps_under_config=listener.steps - listener.switched_at,
            suspect=listener.suspect,
        )
    return ended, raised


def _bounded(text: str) -> str:
    """Return a text, or its begin and end where it has more than a last message may."""
    half = access.MOST_LEFT_BYTES // 16
    return text if len(text) <= 2 * half else f"{text[:half]}\n[…]\n{text[-half:]}"


def _wait_as_python_does() -> None:
    """Wait for threads and processes, as Python does: many programs train in such a thread."""
    own = {threading.main_thread(), threading.current_thread()}
    for thread in set(threading.enumerate()) - own:
        if not thread.daemon:
            thread.join()
    for process in multiprocessing.active_children():
        if not process.daemon:
            process.join()


def end_with_starter() -> None:
    """Start a thread that ends this process when the process that started it has ended."""
    starter = os.getppid()

    def end() -> None:
        while os.getppid() == starter:
            sleep(STARTER_POLL_S)
        quit_process(1)

    threading.Thread(target=end, daemon=True).start()


def listen(link: Link, commands: queue.SimpleQueue[ToRig]) -> None:
    """Read the parent's commands on a thread; end the process when the connection closes.

    A parent that was killed closes the connection too, so no rig outlives its parent.
    """
    for message in link.messages():
        commands.put(message)  # type: ignore[arg-type]
    quit_process(1)


def quit_process(exit_code: int = 0) -> NoReturn:
    """End this process and all processes below it, at once.

    No more code of the program runs: neither exit handlers nor ``finally`` blocks.
    """
    try:
        for child in descendants():
            with suppress(psutil.NoSuchProcess):
                child.kill()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # the program may have replaced sys.stdout by an object that raises
        os._exit(exit_code)
