"""Start a process in a new session, and end it together with everything that it started.

A training program starts loader workers, ranks, trackers and daemons, which may leave its process
group, its session, or both. Only processes that are provably the program's are signalled: by id,
session, environment or mount namespace, never by name.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import psutil

from autotune.files.access import log_file
from autotune.machine.process_tree import descendants
from autotune.program.program import LaunchPlan
from autotune.program.sharing_options import VARIABLE
from autotune.rig import terminal

REAP_S = 2.0  # the wait for a killed process; the kernel may hold it longer, as during disk access


def never() -> bool:
    """Say that there is time to wait."""
    return False


def start(
    plan: LaunchPlan, log: Path, own_terminal: terminal.Terminal | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a new session, so that Ctrl-C in autotune's terminal does not reach it.

    SIGUSR1, by which a batch system asks all processes of a job to leave, does not end it: it is
    blocked here, and a rig ignores it from then on. autotune gets it, and ends the rig in time.
    """
    with log_file(log) as output, _blocked(signal.SIGUSR1):
        variables = {}
        if own_terminal is not None:  # TERM stays the user's, in which the program is known to work
            size = {"COLUMNS": str(terminal.COLUMNS), "LINES": str(terminal.ROWS)}
            variables = {"TERM": os.environ.get("TERM") or "xterm", **size}
        return subprocess.Popen(
            plan.argv,
            cwd=plan.cwd,
            env={**_environment(), **variables, **plan.env},
            stdin=own_terminal.theirs if own_terminal else subprocess.DEVNULL,
            stdout=own_terminal.theirs if own_terminal else output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=plan.pass_fds,
        )


def _environment() -> dict[str, str]:
    """Return this process's variables without the one that may hold the shared study's password."""
    return {name: value for name, value in os.environ.items() if name != VARIABLE}


@contextmanager
def _blocked(number: int) -> Iterator[None]:
    """Block a signal of this thread; what is started meanwhile has it blocked, too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_tree(
    process: subprocess.Popen[bytes],
    grace_s: float = 1.0,
    mark: tuple[str, str] | None = None,
    mounts: OwnMounts | None = None,
    is_urgent: Callable[[], bool] = never,
) -> None:
    """End a process that ``start()`` started, together with everything that it started.

    Waits for nothing once *is_urgent*: then all of it is killed, and may not have ended yet.

    The process itself gets SIGTERM and some time; everything else is killed. Descendants are listed
    first, because the kernel gives the children of a dead process another parent. Processes that
    are no longer descendants are found by their session, mark or mount namespace. A launcher opens
    a session for each rank, so what a dead rank leaves behind is found only by the mark. A daemon
    can leave its session and clear its environment, but cannot leave its mount namespace.
    """
    tree = descendants(process.pid)
    if process.poll() is None:
        process.terminate()
        if exit_code(process, grace_s, is_urgent) is None:
            process.kill()
            exit_code(process, REAP_S, is_urgent)  # the kernel may hold it for longer
    _kill([*tree, *_left(process.pid, mark, mounts)], is_urgent)


def exit_code(
    process: subprocess.Popen[bytes], patience_s: float, is_urgent: Callable[[], bool]
) -> int | None:
    """Wait for the end of a process and return its exit code; None if it does not come in time."""
    until = monotonic() + patience_s
    while (code := process.poll()) is None and monotonic() < until and not is_urgent():
        sleep(0.02)
    return code


class OwnMounts:
    """A mount namespace of the program's, by which its processes are found.

    An open file keeps the namespace in existence until ``close()``. Without it the kernel would
    reuse the namespace's number for the next one, which may belong to another search or to a
    container, whose processes would then be killed.
    """

    @classmethod
    def of(cls, pid: int) -> OwnMounts | None:
        """Return the mount namespace of a process.

        None if the process shares autotune's namespace, in which all processes of the machine
        would match, or if its namespace cannot be read.
        """
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
        """Tell whether a process is in this namespace; False if it has ended or is hidden."""
        try:
            return os.path.samestat(os.stat(f"/proc/{pid}/ns/mnt"), os.fstat(self._held))  # noqa: PTH116
        except OSError:
            return False

    def close(self) -> None:
        """Stop holding the namespace, so that the kernel may reuse its number."""
        os.close(self._held)


def _left(
    session: int, mark: tuple[str, str] | None, mounts: OwnMounts | None
) -> Iterator[psutil.Process]:
    """Yield the processes of a session, of an environment's mark, and of a mount namespace."""
    for one in psutil.process_iter():
        # It may belong to another user, or have ended meanwhile
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            is_member = one.pid != session and os.getsid(one.pid) == session
            is_seeing = mounts is not None and mounts.hold(one.pid)
            if is_member or is_seeing or (mark and one.environ().get(mark[0]) == mark[1]):
                yield one


def _kill(processes: Iterable[psutil.Process], is_urgent: Callable[[], bool]) -> None:
    """Kill processes and wait up to ``REAP_S`` until none of them runs."""
    living = []
    for process in processes:
        try:
            process.kill()
            living.append(process)
        except psutil.NoSuchProcess:
            continue
    until = monotonic() + REAP_S
    while living and monotonic() < until and not is_urgent():
        sleep(0.01)
        # A zombie counts as ended: its entry stays until its parent reaps it, which may be never,
        # and which may be autotune, as the first process of a container
        for process in [*living]:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
            with suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    continue
            living.remove(process)
