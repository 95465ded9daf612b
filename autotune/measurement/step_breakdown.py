"""Step breakdown: where the time of a step goes, and what could be reached without a part of it."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.measurement.interval import Interval


@dataclass(frozen=True)
class StepParts:
    """Where the time of a step goes: mean seconds per step for each part, which add up to the step.

    On a CPU each part is wall time of the main thread. On a GPU, transfer, compute and optimizer
    are device time between CUDA events, including gaps between kernels. The time in which the
    device is idle is attributed first to waiting for data, then to sync calls, and the rest is
    overhead.

    Attributes:
        wait_s: Waiting for the next batch.
        transfer_s: Moving tensors from one device to another.
        compute_s: From the model's call to the end of backward.
        optimizer_s: From the end of backward to the end of the optimizer's step (including gradient
            clipping and unscaling), and zeroing gradients.
        sync_s: Calls that wait for the device, such as ``.item()``.
        overhead_s: Everything else: Python, launching kernels, logging.
        steps: Number of steps that were analysed.
        launch_s: On a GPU, the host time for launching compute and optimizer. If it is as long as
            these parts, the kernels are too small for the device. None on a CPU.
    """

    wait_s: float
    transfer_s: float
    compute_s: float
    optimizer_s: float
    sync_s: float
    overhead_s: float
    steps: int
    launch_s: float | None = None

    @property
    def parts(self) -> dict[str, float]:
        """The parts by the names shown to users, in the order of a step."""
        return {
            "data wait": self.wait_s,
            "host to device": self.transfer_s,
            "compute": self.compute_s,
            "optimizer": self.optimizer_s,
            "sync calls": self.sync_s,
            "Python and launch": self.overhead_s,
        }

    @property
    def step_s(self) -> float:
        """Duration of the whole step."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class StepBreakdown:
    """Where the time of a step goes, and the throughput with one part taken out of it.

    Attributes:
        split: The parts of a step; None if the program ended before enough steps were seen.
        synthetic_data_throughput: Samples/s when one cached batch is used over and over; None
            without a DataLoader.
        loader_throughput: Samples/s of the training loader alone; None without exactly one
            DataLoader.
        flops_per_step: By torch's FlopCounterMode, which counts matrix products, convolutions and
            attention only. None where it cannot count, such as in compiled models.
    """

    split: StepParts | None = None
    synthetic_data_throughput: Interval | None = None
    loader_throughput: Interval | None = None
    flops_per_step: float | None = None
