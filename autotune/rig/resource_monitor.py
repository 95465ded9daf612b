"""ResourceMonitor: memory, GPU and energy readings of a rig, taken by the parent process.

A rig times its steps itself. The parent samples everything that can be read from outside: the
memory of the whole process tree, GPU clocks and throttling, and energy counters. So the program
spends no time on these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

from autotune.machine.kernel_files import text_of
from autotune.machine.probes.nvml import GpuWatch, NvmlMemory
from autotune.machine.process_tree import HostMemory
from autotune.measurement.readings import Interference
from autotune.measurement.turn import Taken
from autotune.rig.processes import never

MEMORY_EVERY_S = 1.0
# Reading PSS costs 10-25 ms per process, on a core that the program may need, and holds up what the
# process maps meanwhile. A dozen loader workers would be slowed by their measurement alone, so they
# are read less often than every second.
MEMORY_SHARE = 0.05  # of the time that it may cost
MEMORY_RARELY_S = 15.0  # not less often than this, even if a reading was held up
DEVICE_EVERY_S = 0.5
MIN_POWER_S = 0.4  # the counter that NVML reads changes some ten times a second
SETTLE_S = 3.0  # time for the driver to free the memory of a process that ended
HELD_BYTES = 64 << 20  # less than this is the driver's bookkeeping, which grows and shrinks
POWERCAP = Path("/sys/class/powercap")


class ResourceMonitor:
    """Samples memory, GPUs and energy while a rig works."""

    def __init__(
        self, pid: int, gpu_uuids: tuple[str, ...], used_before: Mapping[str, int]
    ) -> None:
        self._pid = pid
        self._used_before = used_before
        self._cpu = CpuEnergy()
        self._cpu_readings: list[tuple[float, float]] = []
        self._device_at = 0.0
        self.watch(gpu_uuids)

    def watch(self, gpu_uuids: tuple[str, ...]) -> None:
        """Read these GPUs from here on, and forget what was read.

        Once a program trains, these are the GPUs that it uses, and none for one on the CPU: what
        others do on another GPU neither disturbs it nor is its memory or power.
        """
        self._gpu_memory = NvmlMemory(gpu_uuids, self._pid)
        self._memory: tuple[HostMemory | NvmlMemory, ...]
        self._memory = (HostMemory(self._pid), self._gpu_memory)
        self._gpus = GpuWatch(gpu_uuids, self._pid)
        self._due = [0.0] * len(self._memory)  # when each of these probes is read next

    def reset(self) -> None:
        """Forget all readings, because a new measurement begins."""
        for probe in self._memory:
            probe.reset()
        self._gpus.reset()
        self._cpu_readings.clear()

    def sample(self) -> None:
        """Read the probes whose interval has passed; cheap enough to call many times a second."""
        now = monotonic()
        for number, probe in enumerate(self._memory):
            if (began := monotonic()) >= self._due[number]:
                probe.sample()
                cost_s = monotonic() - began
                wait_s = min(MEMORY_RARELY_S, cost_s / MEMORY_SHARE)
                self._due[number] = began + max(MEMORY_EVERY_S, wait_s)
        if now - self._device_at >= DEVICE_EVERY_S:
            self._device_at = now
            self._gpus.sample(now)
            joules = self._cpu.joules()
            if joules is not None:
                self._cpu_readings.append((now, joules))

    def complete(self, taken: Taken, device: str) -> Taken:
        """Return turns with memory, power and what disturbed a GPU meanwhile.

        Call it while the rig waits for the next command: memory is sampled once more, with all that
        the program holds.
        """
        memory = taken.memory
        for probe in self._memory:
            probe.sample()
            memory = probe.read(memory)
        readings = self._gpus.readings
        reasons = tuple(dict.fromkeys(why for reading in readings for why in reading.reasons))
        seen = taken.interference
        if reasons:
            seen = replace(seen or Interference(), gpu=reasons)
        power_w = self._power_w(device)
        return replace(taken, memory=memory, interference=seen, power_w=power_w)

    def held_bytes(self, is_urgent: Callable[[], bool] = never) -> int:
        """Return how much memory of one GPU did not come back after the rig ended, in bytes.

        Waits up to ``SETTLE_S`` for it, unless *is_urgent*. Returns 0 if at most ``HELD_BYTES`` are
        missing, or if the driver does not tell. A larger number usually means that a process
        survived, and that the next rigs have less memory than the first.
        """
        until = monotonic() + SETTLE_S
        while True:
            used = self._gpu_memory.used_bytes()
            known = used.keys() & self._used_before.keys()
            held = max((used[uuid] - self._used_before[uuid] for uuid in known), default=0)
            if held <= HELD_BYTES:
                return 0
            if monotonic() > until or is_urgent():
                return held
            sleep(0.1)

    def _power_w(self, device: str) -> float | None:
        # Partial sums would understate the power: one GPU without a counter leaves it unknown.
        if device == "cpu":
            return mean_power_w(self._cpu_readings)
        by_gpu: dict[str, list[tuple[float, float]]] = {}
        for reading in self._gpus.readings:
            readings = by_gpu.setdefault(reading.uuid, [])
            if reading.energy_j is not None:
                readings.append((reading.at_s, reading.energy_j))
        powers = [mean_power_w(readings) for readings in by_gpu.values()]
        known = [power for power in powers if power is not None]
        return sum(known) if known and len(known) == len(powers) else None


def mean_power_w(readings: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean power in watts, from readings of an energy counter; None from too few."""
    if len(readings) < 2 or readings[-1][0] - readings[0][0] < MIN_POWER_S:
        return None
    return (readings[-1][1] - readings[0][1]) / (readings[-1][0] - readings[0][0])


class CpuEnergy:
    """The energy that all CPU packages have used since this object was created.

    Read from Linux's powercap counters (RAPL, on Intel and AMD CPUs):
    https://docs.kernel.org/power/powercap/powercap.html. Not covered: systems on which only root
    may read the counters, which is the default on most; memory outside of the package; a counter
    that wraps more than once between two readings (at 200 W and the usual range of 262 kJ: 20
    minutes).
    """

    def __init__(self, powercap: Path = POWERCAP) -> None:
        # Zones below a package are parts of it, and the ``psys`` zone contains the packages
        zones = (z for z in powercap.glob("*") if re.fullmatch(r"intel-rapl:\d+", z.name))
        packages = sorted(zone for zone in zones if text_of(zone / "name").strip() != "psys")
        self._last_uj = {zone: _read_int(zone / "energy_uj") for zone in packages}
        self._total_uj = 0

    def joules(self) -> float | None:
        """Return the energy used so far, or None if a package's counter cannot be read."""
        if not self._last_uj:
            return None
        for zone, last_uj in self._last_uj.items():
            now_uj, range_uj = (
                _read_int(zone / name) for name in ("energy_uj", "max_energy_range_uj")
            )
            has_wrapped = now_uj is not None and last_uj is not None and now_uj < last_uj
            if now_uj is None or last_uj is None or (has_wrapped and range_uj is None):
                return None
            self._total_uj += now_uj - last_uj + (range_uj or 0) * has_wrapped
            self._last_uj[zone] = now_uj
        return self._total_uj / 1e6


def _read_int(path: Path) -> int | None:
    text = text_of(path).strip()
    return int(text) if text.isdecimal() else None
