"""Interference: which counters mean that something else took the program's time."""

from __future__ import annotations

from dataclasses import replace

from autotune.measurement.readings import (
    FOREIGN_SHARE,
    PRESSURE_SHARE,
    STEAL_SHARE,
    THROTTLED_SHARE,
    GpuReading,
    Interference,
)

OTHERS = "other programs used the CPU"
HYPERVISOR = "the hypervisor took the CPU away"
QUOTA = "the container's CPU quota was used up"


SHARED = "another process was on the GPU"
FOREIGN = Interference(foreign_share=FOREIGN_SHARE)


def test_what_was_disturbed_says_by_what() -> None:
    for interference, reasons in (
        (FOREIGN, (OTHERS,)),
        (replace(FOREIGN, pressure_share=PRESSURE_SHARE), (OTHERS,)),
        (replace(FOREIGN, pressure_share=0.0), ()),
        (Interference(steal_share=STEAL_SHARE), (HYPERVISOR,)),
        (Interference(throttled_share=THROTTLED_SHARE), (QUOTA,)),
        (Interference(1.0, 1.0, 1.0, 1.0, gpu=(SHARED,)), (OTHERS, HYPERVISOR, SHARED, QUOTA)),
    ):
        assert interference.reasons == reasons
        assert interference.by_others == tuple(one for one in reasons if one != QUOTA)


def test_a_gpu_that_is_slowed_down_or_shared_gives_its_reasons() -> None:
    reading = GpuReading(
        1.0,
        "GPU-0",
        slowdowns=("hardware slowdown", "hardware thermal slowdown"),
        foreign_processes=(4711, 4712),
    )
    assert reading.reasons == (
        "the GPU was slowed down (hardware slowdown)",
        "the GPU was slowed down (hardware thermal slowdown)",
        "another process was on the GPU",
    )
