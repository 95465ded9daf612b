"""Processes that a program forks: autotune stays silent in them, and notices one that trains.

A forked process has copies of the seams, of the connection to the parent and of the listener's
state. It must neither write to the connection nor wait at a step for commands, which nobody sends
it. Loader workers are such processes. So are the trainers of Hogwild and A3C, whose first process
only waits for them: such a program cannot be measured by the steps of its first process.

Covered: ``os.fork`` and all that builds on it, such as ``multiprocessing`` with the start method
``fork``. Not covered: the start methods ``spawn`` and ``forkserver``, whose processes import the
program afresh, without seams.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from weakref import WeakMethod

import psutil

PID = struct.Struct("=q")
PATIENCE_S = 3.0  # for the process that starts others, which may be about to make a step as well
POLL_S = 0.1
TRAINS_IN_FORKS = "ForkTrainingError"  # what is said in ``Ended``, which ``rig.failures`` knows


class ForkGuard:
    """Tells forked processes from the rig's own process, and hears from those that train.

    A pipe that forked processes inherit connects the two.

    Args:
        forked: Called first in every forked process, right after the fork.

    Attributes:
        is_child: Whether this process was forked, or trains while another one is measured.
        trainer: Id of the last forked process that reported a step; None if none has.
    """

    def __init__(self, forked: Callable[[], None]) -> None:
        self.is_child = False
        self.trainer: int | None = None
        self._forked = WeakMethod(forked)  # register_at_fork() cannot be undone
        self._has_told = False
        self._reading, self._writing = os.pipe()  # inherited by fork, closed by exec (PEP 446)
        enter = WeakMethod(self._enter_child)
        os.register_at_fork(after_in_child=lambda: (act := enter()) and act())

    def __del__(self) -> None:
        for end in (self._reading, self._writing):
            with suppress(OSError):
                os.close(end)

    def stand_aside(self) -> None:
        """Treat this process like a fork: another process is measured in its place."""
        self.is_child = self._has_told = True

    def tell_step(self) -> None:
        """Report, once per forked process, that an optimizer has made a step in it."""
        if not self._has_told:
            self._has_told = True
            with suppress(OSError):
                os.write(self._writing, PID.pack(os.getpid()))

    def wait_for_trainer(
        self, has_stepped: Callable[[], bool], is_waiting: Callable[[], bool] = lambda: False
    ) -> int | None:
        """Return the id of a forked process that trains instead of this one.

        A report counts only if the forked process is still alive after ``PATIENCE_S``, or as soon
        as this process does nothing but wait. None as soon as this process makes a step.
        """
        while not has_stepped():
            pid: int = PID.unpack(os.read(self._reading, PID.size))[0]
            self.trainer = pid
            until = monotonic() + PATIENCE_S
            while not has_stepped() and _is_alive(pid):
                if monotonic() > until or is_waiting():
                    return pid
                sleep(POLL_S)
        return None

    def _enter_child(self) -> None:
        self.is_child = True
        self._has_told = False
        if (forked := self._forked()) is not None:
            forked()


def _is_alive(pid: int) -> bool:
    """Return whether a process is running; a zombie, which has ended but was not joined, is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
