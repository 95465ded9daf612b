"""Workers of loaders that rest while another config has its turn.

They are stopped by SIGSTOP, so that they load nothing ahead at another config's expense, and their
buffers are as they were when their turn comes again. A stopped process handles no signal but
SIGKILL and SIGCONT: it cannot end when it is asked to, nor see that its parent has died. So all are
woken before this process ends, and each dies with the thread that started it (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Resting:
    """The workers that are stopped now, by their iterator.

    One belongs to the loader seam. It is used on the thread that iterates; ``wake_all`` may be
    called at the end of the process.
    """

    def __init__(self) -> None:
        self._stopped: dict[int, list[int]] = {}
        atexit.register(self.wake_all)

    def stop(self, iterator: Iterator[Any]) -> None:
        """Stop the workers of an iterator; without workers nothing happens."""
        pids = [worker.pid for worker in getattr(iterator, "_workers", ()) if worker.is_alive()]
        if pids:
            self._stopped[id(iterator)] = pids
            _signal(pids, signal.SIGSTOP)

    def wake(self, iterator: Iterator[Any]) -> None:
        """Let the workers of an iterator go on."""
        _signal(self._stopped.pop(id(iterator), []), signal.SIGCONT)

    def wake_all(self) -> None:
        """Let all workers go on, because their iterators are to end."""
        for pids in self._stopped.values():
            _signal(pids, signal.SIGCONT)
        self._stopped.clear()


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def die_with_parent(is_worker: Callable[[], bool]) -> None:
    """Have the kernel kill forked workers when the thread that forked them ends.

    Only for workers that the main thread starts: another thread may end before its workers do.

    Args:
        is_worker: Asked in each forked process whether it is a worker of a loader.
    """
    main = threading.main_thread().ident
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def in_child() -> None:
        if threading.get_ident() == main and is_worker():
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    os.register_at_fork(after_in_child=in_child)
