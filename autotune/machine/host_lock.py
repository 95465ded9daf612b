"""Host lock: the cores and GPUs of a host on which one member of a shared study measures.

Two searches that measure on the same cores disturb each other, and what they publish would mislead
the other machines. So a member holds a lock for each of its cores and GPUs until its process ends.
A program without a GPU holds all cores of the host: even on cores of its own, it would share the
memory's bandwidth. Members with GPUs run side by side if each has cores of its own.

A lock is the name of an abstract Unix socket (unix(7)): the kernel gives a name to one process at a
time and takes it back in whatever way that process ends; all users of the host share the names;
there is no file that somebody could put there, link or leave. Locked files in /tmp were refused:
other users' files there cannot be opened to write (proc(5), ``protected_regular``), and each job of
a cluster may have a /tmp to itself (Slurm's ``job_container/tmpfs``, systemd's ``PrivateTmp``).

The names are those of a network namespace. Containers with networks of their own, such as
Docker's by default and pods of Kubernetes, do not see each other's locks: there, whoever starts
them gives them cores and GPUs of their own. A search of one machine alone neither takes nor heeds
the locks: it may run beside others, as ever, and warns of what disturbs it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from autotune.errors import UsageError
from autotune.machine.kernel_files import cpu_list, text_of

CPUS = Path("/sys/devices/system/cpu")
NAMES = "\0autotune/"  # a name that begins with a zero byte is abstract


@contextmanager
def held(gpus: Sequence[str]) -> Iterator[None]:
    """Hold this host, or some GPUs of it and the cores that this process may use.

    Args:
        gpus: UUIDs of the GPUs that the program may use; none for a program on the CPU.

    Raises:
        UsageError: Another member of a shared study measures here, or is about to.
    """
    with ExitStack() as locks:
        if sys.platform == "linux":  # elsewhere there are no such sockets
            for name, what in _wanted(gpus):
                locks.enter_context(_locked(name, what, shares=bool(gpus)))
        yield


def _wanted(gpus: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the names of all locks and what they stand for, always in the same order.

    Of two members that start at once, the one that gets the first lock they both want gets all.
    """
    online = cpu_list(text_of(CPUS / "online")) or set(range(os.cpu_count() or 1))
    cores = {core_of(cpu) for cpu in (os.sched_getaffinity(0) if gpus else online)}
    yield from ((f"core/{one}", f"core {one}") for one in sorted(cores))
    yield from ((f"gpu/{one}", f"GPU {one}") for one in sorted(gpus))


def core_of(cpu: int) -> int:
    """Return the first CPU of a CPU's core: hyperthreads of one core disturb each other most."""
    # Newer kernels name it core_cpus_list, too; those of RHEL 8 do not
    return min(cpu_list(text_of(CPUS / f"cpu{cpu}/topology/thread_siblings_list")), default=cpu)


@contextmanager
def _locked(name: str, what: str, *, shares: bool) -> Iterator[None]:
    address = f"{NAMES}{name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        try:
            lock.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise UsageError(_refusal(_holder(address), what, shares=shares)) from None
        lock.listen()  # so that others can ask whose it is
        yield


def _holder(address: str) -> int:
    """Return the process that holds a lock; 0 if it cannot be seen from here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking, suppress(OSError):
        asking.settimeout(0)
        asking.connect(address)
        peer = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        process, _user, _group = struct.unpack("3i", peer)
        return int(process)
    return 0


def _refusal(holder: int, what: str, *, shares: bool) -> str:
    """Return why this process may not measure here, and what to do.

    Args:
        holder: The process that measures; 0 if it cannot be seen from here.
        what: What both want, such as ``core 3``.
        shares: Whether members may measure here side by side.
    """
    who = f"process {holder}" if holder else "in another container"
    if shares:
        return (
            f"Another member of a shared study ({who}) has taken {what} of this machine. Give each "
            "its own GPU and cores: CUDA_VISIBLE_DEVICES=1 taskset -c 8-15 autotune search …"
        )
    end = f", or end it: kill {holder}" if holder else ""
    return (
        f"Another member of a shared study ({who}) has taken this machine to measure on it, and "
        f"without GPUs of their own only one may. Wait for it{end}"
    )
