"""Time pilots: small, fixed pieces of work that show the machine's pace while the program waits."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from time import perf_counter, process_time, sleep, thread_time

import numpy as np

from autotune.measurement.pilot import Pilot

MOST_S = 0.3  # how long a program that goes on computing is waited for
GAP_S = 0.02  # for threads of the program that spin for a while after their work
BUSY_S = 0.005  # CPU time besides that of the pilots, from which the program is not quiet
VAIN = 2  # readings of a config without a quiet moment, after which no more than a gap is waited
PILOTS = 3  # their median counts
LOOPS = 30_000  # about 2 ms of the interpreter
# About 2 ms of numpy on each core. It holds no lock of the interpreter and runs on the thread that
# calls it, so the work does not depend on the program's number of threads. Many short operations of
# torch differed by 20-30 % from time to time on an idle machine, this by 5-10 %.
ELEMENTS, CALLS = 50_000, 8  # 0.8 MB for each core
WAIT_S = 2.0  # for the threads of a pilot; more means that one of them has failed


class Pilots:
    """Times pilots on one core and on all cores.

    ``LeadRank`` makes one when it measures for the first time, and calls ``read()`` on the main
    thread, before and after each window, while the program stands still. Its threads wait at a
    barrier in between. A forked process has no such threads and makes new ones.

    Args:
        cores: How many cores the program may use, one thread for each.
        own_s: Reads the CPU seconds that this process has used so far.
        others_s: The same of the program's other processes. Their counters have ticks of 10 ms, so
            they must stand still from before the gap until after the last pilot.
    """

    def __init__(
        self,
        cores: int,
        own_s: Callable[[], float] = process_time,
        others_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._cores = max(1, cores)
        self._own_s = own_s
        self._others_s = others_s
        self._vain: Counter[Hashable] = Counter()  # readings without timings, by config
        self._pid = 0
        self._failed_in = 0
        self._gate = threading.Barrier(1)
        self._times: list[tuple[float, float]] = []
        self._used_s = 0.0  # CPU time of the last pilots, on all threads
        self._threads: list[threading.Thread] = []

    def read(
        self, is_quiet: Callable[[], bool] = lambda: True, config: Hashable = None
    ) -> tuple[Pilot, ...]:
        """Return ``PILOTS`` timings, taken while nothing else of the program computes.

        A worker that fills its buffers, or a thread of the program, would take time from the
        pilots, and the config would look faster for it. So a program that goes on computing gets no
        timings. If a pilot fails, for example because the system allows no more threads, this
        process takes none from then on.

        Args:
            is_quiet: Whether the program's workers are idle, as far as that can be seen without
                their use of the CPU.
            config: What the program runs under. Where a config never rests, less and less time is
                spent on waiting for it.
        """
        if self._failed_in == os.getpid():
            return ()
        try:
            if self._pid != os.getpid():
                self._start()
            return self._patiently(is_quiet, config)
        except (threading.BrokenBarrierError, RuntimeError, MemoryError):
            self.give_up()
            return ()
        except BaseException:  # a signal handler of the program has raised
            self.give_up()
            raise

    def _patiently(self, is_quiet: Callable[[], bool], config: Hashable) -> tuple[Pilot, ...]:
        until = perf_counter() + (MOST_S if self._vain[config] < VAIN else 0.0)
        while not (timings := self._undisturbed(is_quiet)):
            if perf_counter() > until:
                self._vain[config] += 1
                return ()
        self._vain[config] = 0
        return timings

    def _undisturbed(self, is_quiet: Callable[[], bool]) -> tuple[Pilot, ...]:
        """Return timings, or none if the program used the CPU in the gap before or meanwhile."""
        own_s, others_s = self._own_s(), self._others_s()
        sleep(GAP_S)
        if self._own_s() - own_s >= BUSY_S or not is_quiet():
            return ()
        self._used_s = 0.0
        timings = tuple(self._time() for _ in range(PILOTS))
        was_alone = self._own_s() - own_s - self._used_s < BUSY_S
        return timings if was_alone and self._others_s() == others_s else ()

    def give_up(self) -> None:
        """Take no more pilots in this process, and end the threads."""
        self._failed_in = os.getpid()
        self._gate.abort()
        if self._pid == os.getpid():
            for thread in self._threads:
                thread.join(WAIT_S)

    def _start(self) -> None:
        self._gate = threading.Barrier(self._cores + 1)
        self._times = [(0.0, 0.0)] * self._cores
        self._threads = []
        for number in range(self._cores):
            thread = threading.Thread(target=self._work, args=(number, self._gate), daemon=True)
            thread.start()
            self._threads.append(thread)
        self._all_cores()  # the first time also starts the threads
        self._pid = os.getpid()

    def _time(self) -> Pilot:
        began, cpu = perf_counter(), thread_time()
        number = 1
        for _ in range(LOOPS):
            number = (number * 1103515245 + 12345) & 0x7FFFFFFF
        one_core_s, one_core_cpu_s = perf_counter() - began, thread_time() - cpu
        all_cores_s, all_cores_cpu_s = self._all_cores()
        self._used_s += one_core_cpu_s + sum(cpu_s for _, cpu_s in self._times)
        return Pilot(one_core_s, all_cores_s, one_core_cpu_s, all_cores_cpu_s)

    def _all_cores(self) -> tuple[float, float]:
        self._gate.wait(WAIT_S)  # all begin
        self._gate.wait(WAIT_S)  # all are done
        return max(self._times)

    def _work(self, number: int, gate: threading.Barrier) -> None:
        with suppress(threading.BrokenBarrierError):  # the pilots were given up
            try:
                values = np.linspace(0.1, 1.0, ELEMENTS)
                out = np.empty_like(values)
                while True:
                    gate.wait()
                    began, cpu = perf_counter(), thread_time()
                    for _ in range(CALLS):
                        np.sin(values, out=out)
                    self._times[number] = (perf_counter() - began, thread_time() - cpu)
                    gate.wait()
            except MemoryError:
                gate.abort()
