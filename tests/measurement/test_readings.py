"""Interference: which counters mean that something else took the program's time."""

from __future__ import annotations

import pytest

from autotune.measurement.readings import (
    FOREIGN_SHARE,
    PRESSURE_SHARE,
    STEAL_SHARE,
    THROTTLED_SHARE,
    GpuReading,
    Interference,
)

OTHERS = "other processes used the CPU"
HYPERVISOR = "the hypervisor took the CPU away"
QUOTA = "the container's CPU quota was used up"


@pytest.mark.parametrize(
    ("interference", "reasons"),
    [
        (Interference(foreign_share=FOREIGN_SHARE), (OTHERS,)),
        (
            Interference(foreign_share=FOREIGN_SHARE, pressure_share=PRESSURE_SHARE),
            (OTHERS,),
        ),
        (Interference(steal_share=STEAL_SHARE), (HYPERVISOR,)),
        (Interference(throttled_share=THROTTLED_SHARE), (QUOTA,)),
        (
            Interference(gpu=("another process was on the GPU",)),
            ("another process was on the GPU",),
        ),
        (
            Interference(1.0, 1.0, 1.0, 1.0, gpu=("the GPU was slowed down (sync boost)",)),
            (OTHERS, HYPERVISOR, QUOTA, "the GPU was slowed down (sync boost)"),
        ),
    ],
    ids=["others", "others under pressure", "steal", "quota", "gpu", "all at once"],
)
def test_what_was_disturbed_says_by_what(
    interference: Interference, reasons: tuple[str, ...]
) -> None:
    assert interference.reasons == reasons


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
