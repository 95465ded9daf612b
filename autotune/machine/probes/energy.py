"""Energy of the CPUs from Linux's powercap counters (RAPL, on Intel and AMD CPUs).

Covered: whole CPU packages; https://docs.kernel.org/power/powercap/powercap.html.
Not covered: systems on which only root may read the counters, which is the default on most; memory
outside of the package; a counter that wraps more than once between two readings (at 200 W and the
usual range of 262 kJ: 20 minutes).
"""

from __future__ import annotations

import re
from pathlib import Path

from autotune.machine.kernel_files import text_of

POWERCAP = Path("/sys/class/powercap")


class CpuEnergy:
    """The energy that all CPU packages have used since this object was created.

    The parent process reads it while a rig is measured.
    """

    def __init__(self, powercap: Path = POWERCAP) -> None:
        # Zones below a package are parts of it, and the ``psys`` zone contains the packages
        zones = (z for z in powercap.glob("*") if re.fullmatch(r"intel-rapl:\d+", z.name))
        packages = sorted(zone for zone in zones if text_of(zone / "name").strip() != "psys")
        self._counters = [_Counter(zone) for zone in packages]

    def joules(self) -> float | None:
        """Return the energy used so far, or None if a package's counter cannot be read."""
        totals_uj = [counter.total_uj() for counter in self._counters]
        known_uj = [total_uj for total_uj in totals_uj if total_uj is not None]
        if not totals_uj or len(known_uj) < len(totals_uj):
            return None
        return sum(known_uj) / 1e6


class _Counter:
    """One package's energy counter, which wraps to 0 at the end of its range."""

    def __init__(self, zone: Path) -> None:
        self._file = zone / "energy_uj"
        self._range_uj = _read_int(zone / "max_energy_range_uj")
        self._last_uj = _read_int(self._file)
        self._total_uj = 0

    def total_uj(self) -> int | None:
        now_uj = _read_int(self._file)
        if now_uj is None or self._last_uj is None:
            return None
        used_uj = now_uj - self._last_uj
        if used_uj < 0:  # the counter has wrapped
            if self._range_uj is None:
                return None
            used_uj += self._range_uj
        self._last_uj = now_uj
        self._total_uj += used_uj
        return self._total_uj


def _read_int(path: Path) -> int | None:
    text = text_of(path).strip()
    return int(text) if text.isdecimal() else None
