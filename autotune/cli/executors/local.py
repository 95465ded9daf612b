"""``local``: one worker per group of GPUs of this machine, each with cores of its own.

Members that share cores or GPUs would measure each other. So each gets its GPUs by
CUDA_VISIBLE_DEVICES, and whole physical cores by its CPU affinity; where that does not come out,
the request is refused. Without GPUs one worker measures at a time: cores of one machine share its
memory and caches.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from autotune.cli.executors.base import Executor, Submission
from autotune.errors import UsageError
from autotune.machine import host_lock
from autotune.machine.hardware import Hardware, detect

Thing = TypeVar("Thing")


class Local(Executor):
    """Starts members on this machine."""

    name: ClassVar[str] = "local"
    usage: ClassVar[str] = "local"

    def __init__(self, options: str, hardware: Hardware | None = None) -> None:
        """Take no options; *hardware* is this machine's, None to look."""
        super().__init__(options)
        self._hardware = hardware
        self._members: dict[str, subprocess.Popen[bytes]] = {}

    def submit(self, line: Sequence[str], count: int) -> Submission:
        for number, (cores, gpus) in enumerate(self._shares(count), 1):
            log = Path(f"autotune-worker-{number}.log")
            variables = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
            try:
                member = _start_on(cores, line, {**os.environ, **variables}, log)
            except OSError as error:
                raise UsageError(
                    f"'{error.filename}' cannot be opened: {error.strerror}."
                ) from None
            self._members[f"process {member.pid} ({log})"] = member
        pids = " ".join(str(one.pid) for one in self._members.values())
        return Submission(
            tuple(self._members), f"'kill -USR1 {pids}' lets them finish their turn and leave."
        )

    def unfinished(self) -> list[str]:
        return [handle for handle, member in self._members.items() if member.poll() is None]

    def _shares(self, count: int) -> list[tuple[set[int], tuple[str, ...]]]:
        """Return the cores and the GPUs of each member."""
        gpus = tuple(gpu.uuid for gpu in (self._hardware or detect()).gpus)
        cores = physical_cores(os.sched_getaffinity(0))
        if count > max(1, len(gpus)):
            raise UsageError(
                f"{count} workers on this machine need {count} GPUs, one each; it has {len(gpus)}."
            )
        if count > len(cores):
            raise UsageError(
                f"{count} workers on this machine need {count} cores, one each; it has "
                f"{len(cores)} that this command may use."
            )
        return [
            (set().union(*_part(cores, n, count)), tuple(_part(gpus, n, count)))
            for n in range(count)
        ]


def physical_cores(allowed: set[int]) -> list[set[int]]:
    """Return the allowed CPUs by physical core; neighbours in that order mostly share a socket."""
    found: dict[int, set[int]] = {}
    for cpu in sorted(allowed):
        found.setdefault(host_lock.core_of(cpu), set()).add(cpu)
    return [*found.values()]


def _part(things: Sequence[Thing], number: int, count: int) -> Sequence[Thing]:
    """Return one of *count* equal runs of things; what does not divide is used by none."""
    size = len(things) // count
    return things[number * size : (number + 1) * size]


def _start_on(
    cores: set[int], line: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start a line that may use some cores only: a process inherits them from who starts it."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        with log.open("ab") as output:
            return subprocess.Popen(
                line,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C does not reach it
            )
    finally:
        os.sched_setaffinity(0, own)
