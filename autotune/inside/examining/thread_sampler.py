"""Samples what a thread does: which lines it is in, whether it computes, and what it waits for.

The kernel tells whether a thread runs or in which system call it sleeps, and on which descriptor.
That is read while this thread holds Python's lock: a thread that runs nevertheless is in native
code, and one in Python code waits for the lock. Nothing is patched, so code in C is seen as well.

Covered: Linux on x86-64 and ARM64. Elsewhere all waiting counts as WAITING.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Self

import psutil

from autotune.inside.code.frames import OURS, Place, is_programs, stack
from autotune.measurement.examination import Cost

RUNNING = "running"
PERIOD_S = 0.002
SWITCH_S = 0.0005  # a thread in Python code gives way after this long, so that samples are in time
SETTLE_S = 100e-6
LOOK_S = 0.5
# Python code gives way earlier, so a longer stretch of computing kept the lock
LOCKED_S = 3 * (PERIOD_S + SWITCH_S)
# Numbers of system calls (asm/unistd.h): those on a descriptor, and those that wait for sockets
ON_DESCRIPTOR = {
    "x86_64": {0, 17, 19, 45, 47, 42, 295, 217},  # read pread readv recvfrom recvmsg connect …
    "aarch64": {63, 67, 65, 207, 212, 203, 69, 61},
}
POLLS = {"x86_64": {7, 23, 232, 270, 271, 281}, "aarch64": {72, 73, 22}}
ON_PATH = {"x86_64": {2, 4, 6, 257, 262, 332}, "aarch64": {56, 79, 291}}  # open, stat
NETWORK_FILES = ("nfs", "cifs", "smb", "9p", "ceph", "lustre", "gpfs", "beegfs", "fuse")


@dataclass
class Seen:
    """What was sampled.

    Attributes:
        computing_s: Seconds in which the thread used a core.
        blocked_s: Seconds in which it waited, but not for a core.
        native_s: Seconds of computing in which it ran without Python's lock.
        blocked: Seconds by what it waited for.
        places: Seconds by line of the program, calls included.
        within: Seconds by line of the program and innermost line.
    """

    computing_s: float = 0.0
    blocked_s: float = 0.0
    native_s: float = 0.0
    blocked: defaultdict[Cost, float] = field(default_factory=lambda: defaultdict(float))
    places: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    within: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    @property
    def total_s(self) -> float:
        """Seconds that were sampled."""
        return self.computing_s + self.blocked_s


class ThreadSampler:
    """Samples the thread that enters it, from another thread, until it leaves.

    Attributes:
        seen: What was sampled so far.
    """

    def __init__(self) -> None:
        self.seen = Seen()
        self._ident, self._tid = threading.get_ident(), threading.get_native_id()
        self._clock = time.pthread_getcpuclockid(self._ident)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._switch_s = sys.getswitchinterval()
        self._outermost: FrameType | None = None

    def __enter__(self) -> Self:
        self._outermost = sys._getframe(1)  # noqa: SLF001 - lines above it are not sampled
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._outermost = None
        sys.setswitchinterval(self._switch_s)

    def _run(self) -> None:
        task = Path(f"/proc/self/task/{self._tid}")
        state = _State(task / "syscall", self._clock)
        own = Path(f"/proc/self/task/{threading.get_native_id()}")
        last, cpu, queued = self._now(task)
        others_s, held_s, late_s = _others_s(cpu), 0.0, queued_s(own)
        while not self._is_over.wait(PERIOD_S):
            began = time.perf_counter()
            doing = state.read()
            frame = sys._current_frames().get(self._ident)  # noqa: SLF001
            now, used, in_queue = self._now(task)
            elapsed_s = now - last
            computing_s = min(elapsed_s, used - cpu)
            # Time in which it had no core, or waited for this thread, is neither
            lost_s = in_queue - queued + held_s
            blocked_s = max(0.0, elapsed_s - computing_s - lost_s)
            before_s, others_s = others_s, _others_s(used)
            was_late_s, late_s = late_s, queued_s(own)
            if blocked_s > computing_s and others_s - before_s > blocked_s / 2:
                # It waits for the other threads of an operator, which compute meanwhile
                self._note(frame, RUNNING, computing_s + blocked_s, 0.0)
            elif computing_s > LOCKED_S + late_s - was_late_s:  # native code that keeps the lock
                self._note(frame, RUNNING, computing_s, blocked_s)
            else:
                self._note(frame, doing, computing_s, blocked_s)
            last, cpu, queued = now, used, in_queue
            held_s = time.perf_counter() - began
        state.close()

    def _now(self, task: Path) -> tuple[float, float, float]:
        """Return wall time, the thread's CPU time and its time in the queue for a core."""
        return time.perf_counter(), time.clock_gettime(self._clock), queued_s(task)

    def _note(
        self, frame: FrameType | None, doing: str, computing_s: float, blocked_s: float
    ) -> None:
        seen = self.seen
        seen.computing_s += computing_s
        seen.blocked_s += blocked_s
        if doing.startswith(RUNNING):  # it goes on although this thread has Python's lock
            seen.native_s += computing_s
        if blocked_s > computing_s:
            seen.blocked[waits_for(doing)] += blocked_s
        if frame is not None:
            self._note_lines(frame, computing_s + blocked_s)

    def _note_lines(self, frame: FrameType, seconds: float) -> None:
        inside = takewhile(lambda f: f is not self._outermost, stack(frame))
        frames = [f for f in inside if not f.f_code.co_filename.startswith(OURS)]
        own = next((f for f in frames if is_programs(f.f_code)), None)
        where = _line(own) if own is not None else ""
        inner = _line(frames[0]) if frames and frames[0] is not own else ""
        self.seen.places[where] += seconds
        self.seen.within[where, inner] += seconds


class _State:
    """Reads what the kernel says of a thread, without giving Python's lock away.

    Python's own functions release the lock while they read, and the sampled thread would go on.
    """

    def __init__(self, path: Path, clock: int) -> None:
        self._clock = clock
        self._libc = ctypes.PyDLL(None)
        self._buffer = ctypes.create_string_buffer(256)
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            self._descriptor = -1

    def read(self) -> str:
        """Return the content of the file now; empty if it cannot be read.

        A thread that has just given the lock away is not asleep yet, and may have to wait for a
        core until it is. It counts as running only if it uses a core meanwhile.
        """
        began, used = time.perf_counter(), time.clock_gettime(self._clock)
        while (text := self._now()).startswith(RUNNING):
            if (spun_s := time.perf_counter() - began) > SETTLE_S:
                is_running = time.clock_gettime(self._clock) - used > spun_s / 2
                return text if is_running else ""
        return text

    def _now(self) -> str:
        got = self._libc.pread(self._descriptor, self._buffer, 255, ctypes.c_long(0))
        return self._buffer.raw[:got].decode() if got > 0 else ""

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


def queued_s(task: Path) -> float:
    """Return the seconds that a thread was ready to run and had no core (proc(5), schedstat)."""
    fields = _text(task / "schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def _others_s(sampled_s: float) -> float:
    """Return the CPU seconds of all threads but the sampled one and this one."""
    return time.process_time() - sampled_s - time.thread_time()


def waits_for(doing: str) -> Cost:
    """Return what a thread waits for.

    Args:
        doing: The content of its file ``syscall`` (proc(5)): ``running``, or the number of a system
            call with its arguments; -1 if it waits outside of one, as for a page of a mapped file.
    """
    words, machine = doing.split(), platform.machine()
    number = int(words[0]) if words and words[0].lstrip("-").isdigit() else None
    if number == -1:
        return Cost.DISK
    if number in ON_PATH.get(machine, ()):
        return Cost.DISK
    if number in ON_DESCRIPTOR.get(machine, ()) and len(words) > 1:
        return _kind_of(int(words[1], 16))
    if number in POLLS.get(machine, ()) and _has_connections():
        return Cost.NETWORK
    return Cost.WAITING


def _kind_of(descriptor: int) -> Cost:
    try:
        target = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        device = os.fstat(descriptor).st_dev
    except OSError:
        return Cost.WAITING
    if target.startswith("socket:"):
        return Cost.NETWORK
    if not target.startswith("/"):  # a pipe, from another process
        return Cost.WAITING
    kind = _file_systems().get(device, "")
    return Cost.NETWORK if kind.startswith(NETWORK_FILES) else Cost.DISK


@cache
def _file_systems() -> Mapping[int, str]:
    """Return the kinds of the mounted file systems by device number (proc(5), mountinfo)."""
    found = {}
    for line in _text(Path("/proc/self/mountinfo")).splitlines():
        here, _, there = line.partition(" - ")
        major, _, minor = here.split()[2].partition(":")
        found[os.makedev(int(major), int(minor))] = there.split()[0]
    return found


def _has_connections() -> bool:
    """Return whether this process has a connection to another machine; asked a few times a second.

    The answer takes milliseconds, in which the sampled thread would wait.
    """
    return _connections(int(time.monotonic() / LOOK_S))


@lru_cache(maxsize=1)
def _connections(_moment: int) -> bool:
    with suppress(psutil.Error, OSError):
        return bool(psutil.Process().net_connections(kind="inet"))
    return False


def _line(frame: FrameType) -> str:
    return str(Place(frame.f_code.co_filename, frame.f_lineno))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
