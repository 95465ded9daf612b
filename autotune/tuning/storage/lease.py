"""Lease: which process works on a run.

Neither the wall clock nor process ids tell processes apart: a clock is set, and ids are used again.
Not covered: two machines whose host names are equal by mistake.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from autotune.errors import RunDirectoryError


@dataclass(frozen=True)
class Lease:
    """The process that works on a run.

    Attributes:
        boot: The kernel's name for the time since it started; the host's where it has none.
        container: The kernel's name for the processes that can be seen from it.
        started_ticks: When it began, in clock ticks since the kernel started.
    """

    host: str
    boot: str
    container: str
    pid: int
    started_ticks: int

    @classmethod
    def of_this_process(cls) -> Self:
        """Return the lease that this process may hold."""
        host = boot = socket.gethostname()
        container = ""
        with suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        with suppress(OSError):
            container = str(Path("/proc/self/ns/pid").readlink())
        return cls(host, boot, container, os.getpid(), started_ticks(os.getpid()) or 0)

    def check(self, held: Lease | None, *, force: bool) -> None:
        """Check that this process may work on a run after the process of *held*.

        Raises:
            RunDirectoryError: when that one works on it, or cannot be seen from here and the run is
                not taken over by *force*.
        """
        if held is None or held == self:
            return
        is_seen = (held.boot, held.container) == (self.boot, self.container)
        has_restarted = held.host == self.host and held.boot != self.boot
        if has_restarted or (is_seen and started_ticks(held.pid) != held.started_ticks):
            return
        holder = f"Another autotune (process {held.pid} on {held.host}) works on this run."
        if is_seen:
            raise RunDirectoryError(f"{holder} Wait for it, or end it: kill {held.pid}")
        if not force:
            raise RunDirectoryError(
                f"{holder} Wait for it or end it; if that machine or container is gone, take "
                "the run over: autotune resume --force"
            )


def started_ticks(pid: int) -> int | None:
    """Return when a living process began; None if there is none, or it has ended and waits."""
    with suppress(OSError, IndexError, ValueError):
        # proc(5): state and starttime are its fields 3 and 22; a name may contain parentheses
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in {b"Z", b"X"} else int(fields[19])
    return None
