"""Memory grows from step to step."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.results.advice.base import GROWTH, Advice, Readings, size
from autotune.results.wording import HOUR, estimated_duration

SOON_H = 7 * 24.0


def memory_growth(readings: Readings) -> Iterator[Advice]:
    """Say when memory will be full, if it grows steadily."""
    on_device = readings.device_growth > 0
    grown = readings.device_growth or readings.host_growth
    growth = readings.examination.growth
    if growth is None or not grown:
        return
    now = (growth.device_bytes if on_device else growth.host_bytes)[-1]
    left = readings.hardware.capacity_bytes(on_device=on_device) - now
    hours = left / grown * readings.step_s / HOUR
    if hours > SOON_H:
        return
    where = "GPU memory" if on_device else "memory of the host"
    yield Advice(
        GROWTH,
        f"The {where} grows with each step.",
        f"It grew by {size(grown)} a step, in stretches of "
        f"{growth.steps} steps. At this pace it is full in {estimated_duration(hours * HOUR)}.",
        "Look for a list, dict or cache that the loop or the data set adds to; workers copy the "
        "pages of Python objects that they read, which arrays and tensors avoid.",
    )
