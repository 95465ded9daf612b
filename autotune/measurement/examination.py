"""Examination: what is seen of a program besides its speed: where a step's time goes, and more.

These are readings. What follows from them is decided in ``results/advice``.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.measurement.interval import Interval

# Calling operators takes some percent of any program's step; from this share on it limits one
LAUNCH_BOUND_SHARE = 0.4
FULL_LAUNCH = 0.8  # on a GPU: launching takes this part of what the kernels take


@dataclass(frozen=True)
class StepParts:
    """Where the time of a step goes: mean seconds per step for each part, which add up to the step.

    On a CPU each part is wall time of the main thread. On a GPU, transfer, compute and optimizer
    are device time between CUDA events, including gaps between kernels. The time in which the
    device is idle is attributed first to waiting for data, then to sync calls, and the rest is
    overhead.

    Attributes:
        compute_s: From the model's call to the end of backward.
        optimizer_s: From the end of backward to the end of the optimizer's step (including gradient
            clipping and unscaling), and zeroing gradients.
        sync_s: Calls that wait for the device, such as ``.item()``.
        overhead_s: Everything else: Python, launching kernels, logging.
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
class Operators:
    """The operators that one step calls.

    Seconds are those in which nobody else has the core that the thread wants.

    Attributes:
        call_s: Seconds that the host needs to call one that has almost nothing to compute, while
            the loader's workers rest.
        step_s: Seconds of the steps of which they are a part.
        call_while_loading_s: The seconds of such a call while the workers load; None without any.
    """

    per_step: int
    call_s: float
    step_s: float
    call_while_loading_s: float | None = None


@dataclass(frozen=True)
class Padding:
    """What fills up the training loader's batches because samples differ in length.

    Attributes:
        share: Of all tokens of the batches, those that fill up, 0 to 1.
        sorted_share: Tokens of the same samples in batches of like length, filled up to the longest
            one of each batch, as a share of the tokens now.
        largest_share: Tokens of the largest of those batches, as a share of the largest one now.
        seen_in: What told it, such as ``attention_mask``.
    """

    share: float
    sorted_share: float
    largest_share: float
    seen_in: str


@dataclass(frozen=True)
class Batches:
    """What the training loader delivers.

    Attributes:
        count: Batches that were seen.
        shapes: How many different shapes they have; tensors of a batch count together.
        padding: None if no tensor shows the lengths of samples.
    """

    count: int
    shapes: int
    padding: Padding | None = None


@dataclass(frozen=True)
class StepBreakdown:
    """Where the time of a step goes, and the throughput with one part taken out of it.

    Attributes:
        split: The parts of a step; None if the program ended before enough steps were seen.
        synthetic_data_throughput: Samples/s when one cached batch is used over and over; None
            without a DataLoader.
        loader_throughput: Samples/s of the training loader alone; None without exactly one
            DataLoader.
        flops_per_step: Of products, convolutions and attention, by torch's FlopCounterMode, but for
            those of nn.DataParallel's threads. None where it cannot count, as if compiled.
        without_anomaly_throughput: Samples/s with autograd's anomaly detection off; None if the
            program does not turn it on.
        operators: None where they cannot be counted, as if compiled.
        batches: None without exactly one DataLoader.
    """

    split: StepParts | None = None
    synthetic_data_throughput: Interval | None = None
    loader_throughput: Interval | None = None
    flops_per_step: float | None = None
    without_anomaly_throughput: Interval | None = None
    operators: Operators | None = None
    batches: Batches | None = None

    @property
    def launch_share(self) -> float:
        """Share of a step that calling its operators takes, 0 to 1.

        0.0 where that is not known, or where a GPU computes meanwhile: the host is then ahead of
        it. Where it is not, launching takes about as long as the kernels.
        """
        split, found = self.split, self.operators
        if found is None or not found.step_s:
            return 0.0
        if split is not None and split.launch_s is not None:
            device_s = split.compute_s + split.optimizer_s
            if split.launch_s < FULL_LAUNCH * device_s:
                return 0.0
        return min(1.0, found.per_step * found.call_s / found.step_s)


@dataclass(frozen=True)
class ItemsExamined:
    """What it takes to load items of the training loader in one process, without any worker.

    Attributes:
        item_s: Seconds for each, collating included.
        computing_share: Share of that time in which the thread computed, or was ready to; in the
            rest it waited, as for a disk, a network, a lock.
        where: The program's line that most of the time passes in, such as ``data.py:31``.
        within: A library's innermost line that most of that time passes in.
        opens: Files that Python opens to read, for each item.
    """

    items: int
    item_s: float
    computing_share: float
    where: str = ""
    within: str = ""
    opens: float = 0.0


@dataclass(frozen=True)
class Affinity:
    """The cores that the program's processes may use.

    Attributes:
        allowed: Cores that autotune itself may use.
        main: Cores of the training process: those of its main thread, and of threads that a
            library has bound to others.
        workers: For each worker process of its loaders, the cores that it may use.
    """

    allowed: tuple[int, ...]
    main: tuple[int, ...]
    workers: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class MemoryGrowth:
    """Memory at the ends of equal stretches of steps, the first of them after a warm-up.

    Attributes:
        host_bytes: Memory of the process and its children that they do not share.
        device_bytes: Memory allocated on the device; empty without one.
    """

    steps: int
    host_bytes: tuple[int, ...]
    device_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Examination:
    """All readings of a program; a part that could not be read is None."""

    items: ItemsExamined | None = None
    affinity: Affinity | None = None
    growth: MemoryGrowth | None = None
