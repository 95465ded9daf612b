"""Processes that the program forks: the seams rest in them, and one that trains is noticed.

A forked process has a copy of everything: of the seams, of the wire, of where the program stands.
It must neither speak on the wire nor wait at a border for commands that nobody sends it. Loader
workers are such processes, and so are the trainers of Hogwild and A3C, whose first process only
waits for them: such a program cannot be measured at its borders.

Covered: ``os.fork`` and all that builds on it, ``multiprocessing`` with its start method ``fork``
among them. Not covered: the methods ``spawn`` and ``forkserver``, whose processes import the
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
PATIENCE_S = 3.0  # the process that forks may be about to train as well
POLL_S = 0.1


class ForkTrainingError(RuntimeError):
    """The program trains in processes that it forks itself."""


class ForkGuard:
    """Tells a forked process from the one that the rig is, and hears from those that train.

    Args:
        forked: Called first of all in each process that is forked off.

    Attributes:
        is_child: This process was forked off.
        trainer: The last forked process that said it trains.
    """

    def __init__(self, forked: Callable[[], None]) -> None:
        self.is_child = False
        self.trainer: int | None = None
        self._forked = WeakMethod(forked)  # what is registered below stays for good
        self._has_told = False
        self._reading, self._writing = os.pipe()  # handed on by fork, closed by exec (PEP 446)
        enter = WeakMethod(self._enter_child)
        os.register_at_fork(after_in_child=lambda: (act := enter()) and act())

    def __del__(self) -> None:
        for end in (self._reading, self._writing):
            with suppress(OSError):
                os.close(end)

    def stand_aside(self) -> None:
        """Take this process for one that nobody listens to: another one trains in its place."""
        self.is_child = self._has_told = True

    def tell_step(self) -> None:
        """Say, once in each forked process, that an optimizer has stepped in it."""
        if not self._has_told:
            self._has_told = True
            with suppress(OSError):
                os.write(self._writing, PID.pack(os.getpid()))

    def wait_for_trainer(
        self, has_stepped: Callable[[], bool], is_waiting: Callable[[], bool] = lambda: False
    ) -> int | None:
        """Wait until a forked process trains in place of this one, and return its id.

        Args:
            has_stepped: Tells whether this process has made a step itself.
            is_waiting: Tells whether it does nothing but wait for others: then it is not given
                time to step as well.

        Returns:
            None as soon as this process is known to train itself.
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
    """Tell whether a process runs; one that has ended and was not joined does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
