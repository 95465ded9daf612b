"""The conditions of a machine, read from files like its kernel's, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.machine.conditions import Conditions, read
from tests.machine.test_cgroups import tree, write

GOOD = Conditions(cores=8, allowed=8, governors=("performance",), shm_bytes=8 << 30)


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """The files of a server with two NUMA nodes whose clocks are set to save power."""
    files = {
        "devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave\n",
        "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "7\n",
        "devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "5\n",
        "devices/system/node/node0/cpulist": "0-31\n",
        "devices/system/node/node1/cpulist": "32-63\n",
    }
    write(tmp_path / "sys", files)
    return tmp_path / "sys"


def test_governor_heat_and_nodes_are_read(sys: Path) -> None:
    found = read(sys)
    assert found.governors == ("powersave",)
    assert found.throttle_events == 12
    assert found.numa_nodes == ("0-31", "32-63")
    assert "powersave" in found.facts["governor"]
    said = " ".join(replace(found, cores=64, allowed=64).warnings)
    assert "cpupower frequency-set" in said
    assert "2 NUMA nodes" in said
    driver = sys / "devices/system/cpu/cpu0/cpufreq/scaling_driver"
    driver.write_text("intel_pstate\n")  # whose governor follows the load
    assert not any("governor" in warning for warning in read(sys).warnings)
    found = read(sys / "nothing", sys / "nothing")
    assert (found.governors, found.throttle_events, found.numa_nodes) == ((), None, ())


def test_the_group_that_sets_the_quota_is_named_with_how_often_it_bites(
    sys: Path, tmp_path: Path
) -> None:
    proc = tree(
        tmp_path / "place",
        "0::/slurm/job_7/step_0\n",
        "/ cg cgroup2 rw",
        {
            "cg/slurm/job_7/cpu.max": "150000 100000\n",
            "cg/slurm/job_7/cpu.stat": "nr_periods 200\nnr_throttled 50\nthrottled_usec 9\n",
            "cg/slurm/job_7/step_0/cpu.max": "max 100000\n",
        },
    )
    found = read(sys, proc)
    assert found.quota == 1.5
    assert found.throttled_share == 0.25
    said = " ".join(replace(found, allowed=8).warnings)
    assert "A CPU quota of 1.5 cores is below the 8 cores" in said
    assert "in 25% of its periods" in said


def test_a_good_machine_gets_no_warning_and_a_small_shm_does() -> None:
    assert not [*GOOD.warnings]
    (said,) = replace(GOOD, shm_bytes=64 << 20).warnings
    assert "64 MiB" in said
    assert "--shm-size" in said


def test_a_driver_that_is_older_than_torch_is_told() -> None:
    gpu = replace(GOOD, driver="535.54", driver_cuda=(12, 2), torch_cuda=(13, 0))
    (said,) = gpu.warnings
    assert "CUDA 13.0" in said
    assert "12.2" in said
    assert gpu.facts["driver"] == "535.54, up to CUDA 12.2"
    assert not [*replace(gpu, torch_cuda=(12, 8)).warnings], "minor versions are compatible"
