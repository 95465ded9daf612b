"""Limit: where a step's time goes, and what could be gained if a part of it cost nothing.

A search that finds nothing may have looked in vain, or there may be nothing to find. The second is
said only where what could be gained was measured, and is little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.measurement.examination import StepBreakdown

# All that could be gained together; below, hardly anything but the model itself is left
LITTLE_GAIN = 0.10
FULL_PEAK = 0.60  # share of a GPU's published arithmetic that few trainings get beyond
FULL_COMPUTE = 0.90  # share of a step


@dataclass(frozen=True)
class Limit:
    """What a program's step consists of, and what is left to gain without changing its model.

    Attributes:
        shares: Parts of a step by name, which add up to 1: ``compute``, ``optimizer``, ``data``
            (waiting and copying), ``Python`` (calling operators, reading values, all else).
        peak_share: Achieved share of the GPU's published arithmetic; None if it is not known.
        bounds: Speedups if ``data``, ``Python`` or ``optimizer`` cost nothing, each by itself.
        compile_was_measured: Whether a config took part that compiles the model.
    """

    shares: Mapping[str, float]
    peak_share: float | None
    bounds: Mapping[str, float]
    compile_was_measured: bool

    @property
    def is_reached(self) -> bool:
        """Whether no setting can make the program much faster."""
        has_little = sum(bound - 1 for bound in self.bounds.values()) < LITTLE_GAIN
        is_at_peak = self.peak_share is not None and self.peak_share > FULL_PEAK
        computes = self.shares["compute"] > FULL_COMPUTE and self.compile_was_measured
        return has_little and (is_at_peak or computes)


def limit_of(
    breakdown: StepBreakdown,
    data_gain: float,
    peak_share: float | None,
    *,
    compile_was_measured: bool,
) -> Limit | None:
    """Return what is left to gain; None if no step was profiled.

    Args:
        data_gain: Speedup with data always ready.
    """
    split = breakdown.split
    if split is None or not split.step_s:
        return None
    data, optimizer = split.wait_s + split.transfer_s, split.optimizer_s
    python = split.sync_s + split.overhead_s
    # The calls are a part of computing on a CPU, and of a device's gaps between kernels
    python = max(python, breakdown.launch_share * split.step_s)
    parts = {"optimizer": optimizer, "data": data, "Python": python}
    shares = {name: seconds / split.step_s for name, seconds in parts.items()}
    beside = sum(shares.values())
    shares = {name: share / max(1.0, beside) for name, share in shares.items()}
    bounds = {name: share_gain(share) for name, share in shares.items()}
    bounds["data"] = max(bounds["data"], data_gain)
    shares = {"compute": max(0.0, 1 - beside), **shares}
    return Limit(shares, peak_share, bounds, compile_was_measured)


def data_gain(
    breakdown: StepBreakdown, samples_per_s: float, wait_share: float, *, has_workers: bool
) -> float:
    """Return the speedup with data always ready; at least 1.0; 1.0 if that was not measured.

    The two speeds were not measured at the same time. Without workers, loading takes nothing but
    the time that the program waits, so more than that cannot be gained.
    """
    ready = breakdown.synthetic_data_throughput
    gain = max(1.0, ready.estimate / samples_per_s) if ready is not None and samples_per_s else 1.0
    return gain if has_workers else min(gain, share_gain(wait_share))


def share_gain(share: float) -> float:
    """Return the speedup if a share of the time is taken away altogether; at most 20."""
    return 1 / (1 - min(share, 0.95))
