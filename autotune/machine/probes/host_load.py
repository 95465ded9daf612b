"""What the kernel's counters say about a stretch of time; runs inside the rig, between blocks.

Covered: Linux with or without PSI and cgroups (v1 and v2). Elsewhere fields stay None.
Not covered: helper processes that the program starts by other means than multiprocessing; until
they end they count as foreign.
"""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import psutil

from autotune.machine import cgroups
from autotune.machine.cgroups import Throttling
from autotune.measurement.interference import Interference

PRESSURE = (Path("/sys/fs/cgroup/cpu.pressure"), Path("/proc/pressure/cpu"))  # container, machine


@dataclass(frozen=True)
class Counters:
    """Totals at one moment, in seconds of CPU time; None where nothing reports them."""

    at_s: float
    cores: int
    busy_s: float
    ours_s: float
    steal_s: float | None
    pressure_s: float | None
    throttled_s: float | None
    switches: int

    def since(self, before: Counters) -> Interference | None:
        """Return what happened since an earlier moment, None for no time at all."""
        elapsed_s = self.at_s - before.at_s
        if elapsed_s <= 0:
            return None
        all_cores_s = elapsed_s * self.cores
        foreign_s = (self.busy_s - before.busy_s) - (self.ours_s - before.ours_s)
        return Interference(
            foreign_share=max(0.0, foreign_s / all_cores_s),
            steal_share=_share(self.steal_s, before.steal_s, all_cores_s),
            pressure_share=_share(self.pressure_s, before.pressure_s, elapsed_s),
            throttled_share=_share(self.throttled_s, before.throttled_s, elapsed_s),
            switches_per_s=(self.switches - before.switches) / elapsed_s,
        )


class HostLoad:
    """Reads the counters of this process, its workers, and the machine.

    Args:
        tuner_pid: The process that measures; its work is ours too.
        pressure: PSI files of the CPU, tried in order.
        throttling: Files that say how long CPU quotas were used up, which add up; by default those
            of all control groups that hold this process and have a quota.
    """

    def __init__(
        self,
        tuner_pid: int,
        pressure: Iterable[Path] = PRESSURE,
        throttling: Iterable[Throttling] | None = None,
    ) -> None:
        self._self = psutil.Process()
        self._tuner = _process(tuner_pid)
        self._cores = psutil.cpu_count() or 1
        self._pressure = [path for path in pressure if _pressure_s([path]) is not None]
        sources = cgroups.throttling() if throttling is None else throttling
        self._throttling = [s for s in sources if _throttled_s([s]) is not None]
        self._workers: dict[int, psutil.Process] = {}
        self._companions: dict[int, psutil.Process] = {}

    def count_in(self, pids: Iterable[int]) -> None:
        """Say which processes are ours besides: those of other ranks, with their workers."""
        known, self._companions = self._companions, {}
        for pid in pids:
            if (process := known.get(pid) or _process(pid)) is not None:
                self._companions[pid] = process

    def read(self) -> Counters:
        """Return the totals now; takes about 0.1 ms and 0.05 ms per worker on a 2-core machine."""
        machine = psutil.cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        # what a hypervisor's guests of our own use is in user and nice already
        outside = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
        steal = getattr(machine, "steal", None)
        return Counters(
            at_s=monotonic(),
            cores=self._cores,
            busy_s=sum(machine) - idle - outside - (steal or 0.0),
            ours_s=self._ours_s(),
            steal_s=steal,
            pressure_s=_pressure_s(self._pressure),
            throttled_s=_throttled_s(self._throttling),
            switches=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        )

    def _ours_s(self) -> float:
        """CPU time of the living, and of ended children through their parent."""
        living = {child.pid for child in multiprocessing.active_children() if child.pid}
        own = self._self.cpu_times()  # after the ended were reaped by the line above
        total = own.user + own.system + own.children_user + own.children_system
        for pid in living - self._workers.keys():
            if (process := _process(pid)) is not None:
                self._workers[pid] = process
        for pid in self._workers.keys() - living:
            del self._workers[pid]
        for process in (self._tuner, *self._workers.values()):
            if process is not None:
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    total += times.user + times.system
        for process in self._companions.values():
            with suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])  # with those of its ended children
        return total


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _share(after: float | None, before: float | None, whole_s: float) -> float | None:
    return None if after is None or before is None else max(0.0, (after - before) / whole_s)


def _pressure_s(paths: Iterable[Path]) -> float | None:
    """Seconds in which some task waited for a core: the ``total`` of the line ``some``."""
    for line in (line for path in paths for line in _lines(path)):
        kind, *fields = line.split()
        for field in fields:
            if kind == "some" and field.startswith("total="):
                return int(field.removeprefix("total=")) / 1e6
    return None


def _throttled_s(sources: Iterable[Throttling]) -> float | None:
    """Seconds in which some quota was used up, over all levels; None where nothing counts them."""
    seconds = [
        int(value) * source.unit_s
        for source in sources
        for name, _, value in (line.partition(" ") for line in _lines(source.path))
        if name == source.key
    ]
    return sum(seconds) if seconds else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:  # also where PSI was switched off at boot: the file is there, reading it fails
        return []
