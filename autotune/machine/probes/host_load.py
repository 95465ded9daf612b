"""The kernel's counters of CPU use and contention, read between turns inside the rig.

Covered: Linux with or without PSI and cgroups (v1 and v2). On other systems these fields stay None.
What the program starts by other means than multiprocessing, such as a server that feeds it, is
known by its mount namespace, which the fence gives to the program. Not covered without such a
fence: until these processes end, they count as other users of the machine.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import psutil

from autotune.machine import cgroups
from autotune.machine.kernel_files import text_of
from autotune.measurement.readings import Interference

PRESSURE = (Path("/sys/fs/cgroup/cpu.pressure"), Path("/proc/pressure/cpu"))  # container, machine
LOOK_EVERY_S = 2.0  # for helpers: it reads an entry of each process of the machine
UNITS_S = {"throttled_usec": 1e-6, "throttled_time": 1e-9}  # of cpu.stat, by versions 2 and 1


@dataclass(frozen=True)
class Counters:
    """Totals of the kernel's counters at one moment; None where the system does not report one.

    Attributes:
        ours_s: CPU time of the program, its workers, the other ranks and autotune.
        steal_s: CPU time that the hypervisor gave to other guests.
        pressure_s: Time in which some task waited for a core (PSI).
        throttled_s: Time in which a CPU quota was used up, added over all cgroup levels.
        helpers_s: CPU time of each further process that the program has started, by its id.
    """

    at_s: float
    cores: int
    busy_s: float
    ours_s: float
    steal_s: float | None
    pressure_s: float | None
    throttled_s: float | None
    helpers_s: Mapping[int, float] = field(default_factory=dict)

    def since(self, before: Counters) -> Interference | None:
        """Return the interference since an earlier moment, or None if no time has passed."""
        elapsed_s = self.at_s - before.at_s
        if elapsed_s <= 0:
            return None
        all_cores_s = elapsed_s * self.cores
        both = self.helpers_s.keys() & before.helpers_s.keys()
        helped_s = sum(self.helpers_s[pid] - before.helpers_s[pid] for pid in both)
        foreign_s = (self.busy_s - before.busy_s) - (self.ours_s - before.ours_s) - helped_s
        return Interference(
            foreign_share=max(0.0, foreign_s / all_cores_s),
            steal_share=_share(self.steal_s, before.steal_s, all_cores_s),
            pressure_share=_share(self.pressure_s, before.pressure_s, elapsed_s),
            throttled_share=_share(self.throttled_s, before.throttled_s, elapsed_s),
        )


class HostLoad:
    """Reads the CPU counters of this process, its workers and the machine; a reading is cheap."""

    def __init__(
        self,
        tuner_pid: int,
        pressure: Iterable[Path] = PRESSURE,
        stats: Iterable[Path] | None = None,
    ) -> None:
        self._self = psutil.Process()
        self._tuner = _process(tuner_pid)
        self._cores = psutil.cpu_count() or 1
        self._pressure = [path for path in pressure if _pressure_s([path]) is not None]
        found = (group / "cpu.stat" for group in cgroups.cpu_quotas()) if stats is None else stats
        self._stats = [path for path in found if _throttled_s([path]) is not None]
        self._workers: dict[int, psutil.Process] = {}
        self._companions: dict[int, psutil.Process] = {}
        own, tuners = _mounts("self"), _mounts(tuner_pid)
        # What the whole machine sees tells nothing
        self._view = None if tuners in {None, own} else own
        self._helpers: dict[int, psutil.Process] = {}
        self._looked = -math.inf

    def count_in(self, pids: Iterable[int]) -> None:
        """Set which further processes count as ours, with their children: ranks and helpers."""
        known, self._companions = self._companions, {}
        for pid in pids:
            if (process := known.get(pid) or _process(pid)) is not None:
                self._companions[pid] = process

    def read(self) -> Counters:
        """Return the totals now.

        On a 2-core machine this takes about 0.1 ms, plus 0.05 ms for each worker.
        """
        machine = psutil.cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        # The kernel counts time of virtual machines that run here in user and nice as well.
        outside = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
        steal = getattr(machine, "steal", None)
        ours_s = self._ours_s()
        return Counters(
            at_s=monotonic(),
            cores=self._cores,
            busy_s=sum(machine) - idle - outside - (steal or 0.0),
            ours_s=ours_s,
            steal_s=steal,
            pressure_s=_pressure_s(self._pressure),
            throttled_s=_throttled_s(self._stats),
            helpers_s=self._helpers_s(),
        )

    def _ours_s(self) -> float:
        """Return our CPU time; workers that have ended are in their parent's ``children`` times."""
        living = {child.pid for child in multiprocessing.active_children() if child.pid}
        # active_children() has just reaped the workers that ended, so their time is in *own*.
        own = self._self.cpu_times()
        total = own.user + own.system + own.children_user + own.children_system
        # Handles are kept between readings, because creating one reads files of the process.
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
                # user, system and the same of its ended children: a rank's workers may be gone
                total += sum(process.cpu_times()[:4])
        return total

    def _helpers_s(self) -> dict[int, float]:
        if self._view is not None and monotonic() - self._looked >= LOOK_EVERY_S:
            self._looked = monotonic()
            tuner = () if self._tuner is None else (self._tuner.pid,)
            known = {self._self.pid, *tuner, *self._workers, *self._companions}
            for pid in {*psutil.pids()} - known - self._helpers.keys():
                if _mounts(pid) == self._view and (process := _process(pid)) is not None:
                    self._helpers[pid] = process
        found = {}
        for pid, process in self._helpers.items():
            if pid not in self._workers and pid not in self._companions:
                with suppress(psutil.Error):
                    found[pid] = sum(process.cpu_times()[:2])
        return found


def _mounts(pid: int | str) -> tuple[int, int] | None:
    """Return what tells a process's mount namespace from others; None if it cannot be read."""
    with suppress(OSError):
        seen = Path(f"/proc/{pid}/ns/mnt").stat()
        return seen.st_dev, seen.st_ino
    return None


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _share(after: float | None, before: float | None, whole_s: float) -> float | None:
    return None if after is None or before is None else max(0.0, (after - before) / whole_s)


def _pressure_s(paths: Iterable[Path]) -> float | None:
    """Return the seconds in which some task waited for a core, or None without PSI.

    This is the field ``total`` of the line ``some`` in the first readable file.
    """
    for line in (line for path in paths for line in text_of(path).splitlines()):
        kind, *fields = line.split()
        for one in fields:
            if kind == "some" and one.startswith("total="):
                return int(one.removeprefix("total=")) / 1e6
    return None


def _throttled_s(stats: Iterable[Path]) -> float | None:
    """Return the seconds in which a quota was used up; None if unknown.

    Those of all levels are added, because each throttles independently.
    """
    seconds = [
        int(value) * UNITS_S[name]
        for path in stats
        for name, _, value in (line.partition(" ") for line in text_of(path).splitlines())
        if name in UNITS_S
    ]
    return sum(seconds) if seconds else None


def queued_s(task: Path) -> float:
    """Return the seconds that a thread was ready to run and had no core (proc(5), schedstat)."""
    fields = text_of(task / "schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0
