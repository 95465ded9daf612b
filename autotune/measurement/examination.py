"""Examination: what ``autotune doctor`` saw of a program that trains, besides its speed.

These are readings. What follows from them is decided in ``results/advice``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ItemsExamined:
    """What it takes to load items of the training loader in one process, without any worker.

    Attributes:
        items: How many items were loaded.
        item_s: Seconds for each, collating included.
        computing_share: Share of that time in which the thread computed, or was ready to; in the
            rest it waited: for a disk, a network, a lock, another process.
        where: The program's line that most of the time passes in, such as ``data.py:31``; empty if
            no line of the program is involved.
        within: The innermost line that most of the time of ``where`` passes in, in a library;
            empty if it is the program's line itself.
        opens: Files that Python opens to read, for each item.
    """

    items: int
    item_s: float
    computing_share: float
    where: str = ""
    within: str = ""
    opens: float = 0.0


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
    """All readings of a program; a part that could not be read is None.

    Attributes:
        items: What loading an item takes; None without a single DataLoader.
        operators: The operators of a step; None if they could not be counted.
        affinity: Cores of the processes.
        growth: Memory over the watched steps; None if the program ended too early.
    """

    items: ItemsExamined | None = None
    operators: Operators | None = None
    affinity: Affinity | None = None
    growth: MemoryGrowth | None = None
