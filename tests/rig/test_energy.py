"""Energy of the CPUs, from folders made like Linux's powercap."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.rig.resource_monitor import CpuEnergy

RANGE_UJ = 262_143_328_850  # max_energy_range_uj of many of Intel's packages


def put(powercap: Path, zone: str, energy_uj: int, name: str = "package-0") -> None:
    folder = powercap / zone
    folder.mkdir(exist_ok=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")


def test_a_counter_that_starts_again_goes_on_counting(tmp_path: Path) -> None:
    put(tmp_path, "intel-rapl:0", RANGE_UJ - 4_000_000)
    energy = CpuEnergy(tmp_path)
    for now_uj, joules in ((1_000_000, 5.0), (3_000_000, 7.0), (RANGE_UJ - 1, 262_147.32885)):
        put(tmp_path, "intel-rapl:0", now_uj)
        assert energy.joules() == pytest.approx(joules)
    put(tmp_path, "intel-rapl:0", 2_999_999)
    assert energy.joules() == pytest.approx(262_150.32885)


def test_parts_of_a_package_and_the_platform_around_it_do_not_count_again(tmp_path: Path) -> None:
    others = {
        "intel-rapl": "",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "dram",
        "intel-rapl:1": "psys",
        "intel-rapl-mmio:0": "package-0",
    }
    for energy_uj in (0, 7_000_000):
        put(tmp_path, "intel-rapl:0", energy_uj)
        put(tmp_path, "intel-rapl:10", energy_uj, "package-10")
        for zone, name in others.items():
            put(tmp_path, zone, energy_uj, name)
        if not energy_uj:
            energy = CpuEnergy(tmp_path)
    assert energy.joules() == pytest.approx(14.0)


def test_energy_is_unknown_where_a_counter_is_missing_or_starts_again_at_an_unknown_end(
    tmp_path: Path,
) -> None:
    assert CpuEnergy(tmp_path).joules() is None
    put(tmp_path, "intel-rapl:0", 5_000_000)
    (tmp_path / "intel-rapl:0" / "max_energy_range_uj").unlink()
    energy = CpuEnergy(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("1000000\n")
    assert energy.joules() is None
    # Permissions do not stop root, and tests may run as root: a folder cannot be read by anyone.
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    (tmp_path / "intel-rapl:0" / "energy_uj").mkdir()
    assert CpuEnergy(tmp_path).joules() is None
