"""Starting a process in a session of its own, and ending it with all that it started."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import psutil

from autotune.program.program import LaunchPlan
from autotune.rig import terminal

REAP_S = 2.0


def start(
    plan: LaunchPlan, log: Path, own_terminal: terminal.Terminal | None = None
) -> subprocess.Popen[bytes]:
    """Start a process; a Ctrl-C in our terminal does not reach it.

    Args:
        plan: What is started.
        log: Where its output goes; its input is empty.
        own_terminal: A terminal for its input and output instead, which writes the log itself.
    """
    with log.open("ab") as output:
        variables = terminal.variables(os.environ) if own_terminal is not None else {}
        return subprocess.Popen(
            plan.argv,
            cwd=plan.cwd,
            env={**os.environ, **variables, **plan.env},
            stdin=own_terminal.theirs if own_terminal else subprocess.DEVNULL,
            stdout=own_terminal.theirs if own_terminal else output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=plan.pass_fds,
        )


def end_tree(
    process: subprocess.Popen[bytes],
    grace_s: float = 1.0,
    mark: tuple[str, str] | None = None,
    mounts: OwnMounts | None = None,
) -> None:
    """End a process that ``start()`` started, its descendants, and what is left of its session.

    Descendants are listed before anything is signalled: a dead parent hides its children. Only ids
    from that list, from the session that we opened, and of processes that carry our mark are
    touched, never names. torchrun opens a session for each rank: what a dead rank leaves behind is
    found by the mark alone.

    Args:
        process: What ``start()`` returned.
        grace_s: How long it may take to end by itself.
        mark: An environment variable, with its value, that nothing else has.
        mounts: The mount namespace that it had to itself: a daemon may leave its session and its
            environment, but not that. None without one.
    """
    tree = _descendants(process.pid)
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # the kernel may hold it for longer
                process.wait(REAP_S)
    _kill([*tree, *_session_members(process.pid), *_marked(mark), *_seeing(mounts)])


class OwnMounts:
    """The mount namespace that a process has to itself.

    It is held open: the kernel gives the number of a namespace that nobody holds to the next one,
    which may be another search's, or a container's.
    """

    @classmethod
    def of(cls, pid: int) -> OwnMounts | None:
        """Return a process's mount namespace; None if it is ours, or cannot be seen."""
        try:
            held = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
        except OSError:
            return None
        mounts = cls(held)
        if mounts.hold(os.getpid()):
            mounts.close()
            return None
        return mounts

    def __init__(self, held: int) -> None:
        self._held = held

    def hold(self, pid: int) -> bool:
        """Whether a process lies in this namespace."""
        try:
            return os.path.samestat(os.stat(f"/proc/{pid}/ns/mnt"), os.fstat(self._held))  # noqa: PTH116
        except OSError:
            return False

    def close(self) -> None:
        """Let the kernel have the namespace back."""
        os.close(self._held)


def _seeing(mounts: OwnMounts | None) -> list[psutil.Process]:
    if mounts is None:
        return []
    return [process for process in psutil.process_iter() if mounts.hold(process.pid)]


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _session_members(session: int) -> list[psutil.Process]:
    members = []
    for candidate in psutil.process_iter():
        try:
            if candidate.pid != session and os.getsid(candidate.pid) == session:
                members.append(candidate)
        except (ProcessLookupError, PermissionError):
            continue
    return members


def _marked(mark: tuple[str, str] | None) -> list[psutil.Process]:
    if mark is None:
        return []
    name, value = mark
    marked = []
    for candidate in psutil.process_iter():
        try:
            if candidate.environ().get(name) == value:
                marked.append(candidate)
        except psutil.Error:  # of other users, or gone
            continue
    return marked


def _kill(processes: Iterable[psutil.Process]) -> None:
    living = []
    for process in processes:
        try:
            process.kill()
            living.append(process)
        except psutil.NoSuchProcess:
            continue
    until = monotonic() + REAP_S
    while any(map(_is_running, living)) and monotonic() < until:
        sleep(0.01)


def _is_running(process: psutil.Process) -> bool:
    """A zombie has ended; only its own parent can take it off the list."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
