"""Examination: what ``autotune doctor`` saw of a program that trains, besides its speed.

These are readings. What follows from them is decided in ``results/advice``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cost(StrEnum):
    """What the thread that loads an item does at a moment.

    Attributes:
        PYTHON: It executes bytecode.
        NATIVE: It computes within a function that is written in C, such as a decoder.
        FILES: It opens, reads or closes a file whose content is in memory already.
        DISK: It waits for a local disk.
        NETWORK: It waits for another machine.
        WAITING: It sleeps, or waits for a lock or for another process.
    """

    PYTHON = "Python code"
    NATIVE = "native code"
    FILES = "file access"
    DISK = "the disk"
    NETWORK = "the network"
    WAITING = "waiting"


@dataclass(frozen=True)
class ItemsExamined:
    """What it takes to load items of the training loader in one process, without any worker.

    Attributes:
        items: How many items were loaded.
        item_s: Seconds for each, collating included.
        shares: Share of that time by what the thread does; the shares add up to 1.
        where: The program's line that most of the time passes in, such as ``data.py:31``; empty if
            no line of the program is involved.
        where_share: The share of the time that passes there, calls included.
        within: The innermost line that most of the time of ``where`` passes in, in a library;
            empty if it is the program's own line.
        opens: Files opened for each item.
        bytes_per_open: Bytes read for each file that is opened; 0.0 if none is.
        disk_bytes: Bytes that came from a disk for each item.
        item_bytes: Memory of the tensors of an item.
        is_random: Whether an item differs if it is loaded again; None if that was not tried.
        len_items: Items in the data set; None if it has no length.
    """

    items: int
    item_s: float
    shares: dict[Cost, float]
    where: str = ""
    where_share: float = 0.0
    within: str = ""
    opens: float = 0.0
    bytes_per_open: float = 0.0
    disk_bytes: float = 0.0
    item_bytes: float = 0.0
    is_random: bool | None = None
    len_items: int | None = None


@dataclass(frozen=True)
class HostReads:
    """Values of tensors that a line of the program reads on the host, such as ``loss.item()``.

    Attributes:
        method: The method, such as ``item``.
        where: The line, such as ``train.py:41``.
        per_step: How often a step reads there.
        step_s: Seconds of a step that pass there; on a GPU, waiting for it is included.
    """

    method: str
    where: str
    per_step: float
    step_s: float


@dataclass(frozen=True)
class KeptGraphs:
    """Autograd graphs that are still alive although their step is over.

    Attributes:
        kept: How many of the watched steps' graphs were alive at the end.
        steps: How many steps were watched.
        where: The line that computes the gradients, such as ``train.py:41``.
    """

    kept: int
    steps: int
    where: str


@dataclass(frozen=True)
class Operators:
    """The operators that one step calls.

    Attributes:
        per_step: How many, in forward, backward and the optimizer.
        call_s: Seconds that the host needs to call one that has almost nothing to compute.
    """

    per_step: int
    call_s: float


@dataclass(frozen=True)
class BiasedConvs:
    """Convolutions whose bias a normalization layer subtracts again.

    Attributes:
        names: Names of the layers in the model, with the class of the norm: ``stem.conv``.
        layers: How many there are.
        step_s: Seconds of a step that their biases take, measured on the shapes of a step.
    """

    names: tuple[str, ...]
    layers: int
    step_s: float


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
        steps: Steps in each stretch.
        host_bytes: Memory of the process and its children that they do not share.
        device_bytes: Memory allocated on the device; empty without one.
    """

    steps: int
    host_bytes: tuple[int, ...]
    device_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Examination:
    """All readings of a program; a part that could not be read is None or empty.

    Attributes:
        items: What loading an item takes; None without a single DataLoader.
        host_reads: Where tensors are read on the host, the most expensive line first.
        kept_graphs: Graphs that stay alive; None if no backward pass was seen.
        operators: The operators of a step; None if they could not be counted.
        biased_convs: Convolutions with a bias that has no effect; None if there are none.
        affinity: Cores of the processes.
        growth: Memory over the watched steps; None if the program ended too early.
        steps: Steps that were watched.
        step_s: Mean seconds of such a step, which is slower than one that nobody watches.
    """

    items: ItemsExamined | None = None
    host_reads: tuple[HostReads, ...] = ()
    kept_graphs: KeptGraphs | None = None
    operators: Operators | None = None
    biased_convs: BiasedConvs | None = None
    affinity: Affinity | None = None
    growth: MemoryGrowth | None = None
    steps: int = 0
    step_s: float = 0.0
