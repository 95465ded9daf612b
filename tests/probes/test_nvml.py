"""Device memory by the driver's own count, over recorded readings."""

from __future__ import annotations

from autotune.measurement import Memory
from autotune.probes.nvml import NvmlMemory
from tests.made import A100, GIB, H100
from tests.readings import NvmlReadings


def used(probe: NvmlMemory) -> int | None:
    return probe.read(Memory()).device_used_bytes


def test_the_peak_over_all_samples_is_kept() -> None:
    probe = NvmlMemory((A100.uuid,), NvmlReadings((A100,), [3 * GIB, 9 * GIB, 5 * GIB]))
    for _ in range(3):
        probe.sample()
    assert used(probe) == 9 * GIB


def test_the_gpus_of_the_program_are_summed_up_and_no_others() -> None:
    gpus = (A100, H100)
    probe = NvmlMemory((A100.uuid, H100.uuid), NvmlReadings(gpus, [2 * GIB, 3 * GIB]))
    probe.sample()
    assert used(probe) == 5 * GIB
    probe = NvmlMemory((H100.uuid,), NvmlReadings(gpus, [2 * GIB, 3 * GIB]))
    probe.sample()
    assert used(probe) == 2 * GIB


def test_a_new_window_forgets_the_peak_of_the_last_one() -> None:
    probe = NvmlMemory((A100.uuid,), NvmlReadings((A100,), [9 * GIB, 5 * GIB]))
    probe.sample()
    probe.reset()
    assert used(probe) is None
    probe.sample()
    assert used(probe) == 5 * GIB


def test_without_a_sample_memory_is_unknown_and_not_zero() -> None:
    assert used(NvmlMemory((A100.uuid,), NvmlReadings((A100,)))) is None


def test_without_gpus_the_driver_is_not_asked() -> None:
    readings = NvmlReadings((A100,), [GIB])
    probe = NvmlMemory((), readings)
    probe.sample()
    assert used(probe) is None
    assert readings.is_shut_down


def test_an_absent_driver_leaves_memory_unknown() -> None:
    probe = NvmlMemory((A100.uuid,), NvmlReadings(library=False))
    probe.reset()
    probe.sample()
    assert used(probe) is None


def test_a_gpu_that_the_driver_does_not_know_leaves_memory_unknown() -> None:
    probe = NvmlMemory((H100.uuid,), NvmlReadings((A100,)))
    probe.sample()
    assert used(probe) is None


def test_a_driver_that_stops_answering_ends_the_probe_and_keeps_what_it_saw() -> None:
    readings = NvmlReadings((A100,), [4 * GIB])
    probe = NvmlMemory((A100.uuid,), readings)
    probe.sample()
    readings.fails_at = "nvmlDeviceGetMemoryInfo"
    probe.sample()
    readings.fails_at = ""
    probe.reset()
    probe.sample()
    assert used(probe) is None


def test_the_other_probes_figures_are_left_alone() -> None:
    probe = NvmlMemory((A100.uuid,), NvmlReadings((A100,), [GIB]))
    probe.sample()
    before = Memory(device_allocated_bytes=1, device_reserved_bytes=2, host_bytes=3)
    assert probe.read(before) == Memory(1, 2, GIB, 3)
