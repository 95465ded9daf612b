"""The host is busy calling operators that are too small for the device."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.results.advice.base import Advice, Gain, Readings, ms, share_gain

MIN_SHARE = 0.4  # of a step; calling operators takes some percent of any program
FULL_LAUNCH = 0.8  # on a GPU: launching takes this part of what the kernels take


def launch_bound(readings: Readings) -> Iterator[Advice]:
    """Say that calling operators takes most of a step."""
    found = readings.examination.operators
    if found is None or not readings.step_s:
        return
    share = min(1.0, found.per_step * found.call_s / readings.step_s)
    split = readings.breakdown.split
    device_s = 0.0 if split is None else split.compute_s + split.optimizer_s
    if split is not None and split.launch_s is not None and split.launch_s < FULL_LAUNCH * device_s:
        return  # the host launches while the device computes, and is ahead of it
    if share < MIN_SHARE:
        return
    yield Advice(
        "launch-bound",
        "The operators of a step are so small that calling them takes most of the time.",
        f"A step calls {found.per_step:,} operators, and each call costs the host about "
        f"{1e6 * found.call_s:.1f} µs: {share:.0%} of a step of {ms(readings.step_s)}.",
        "Make batches larger, compile the model (torch.compile), and use fused or foreach "
        "optimizers; autotune search tries all of them.",
        gain=Gain(share_gain(share), "if the calls cost nothing"),
    )
