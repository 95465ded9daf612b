"""Shared answers: what several machines that searched one study say together, and what others say.

Machines of one CPU, GPU, driver and torch form a group and share one answer. ``MachineClaim`` is
one machine's part of that answer; ``GroupAnswer`` is the whole answer of another group.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.measurement.interval import Interval
from autotune.program.config import Config
from autotune.results.finding import Finding


@dataclass(frozen=True)
class MachineClaim:
    """What the processes of one machine say of the candidate.

    Attributes:
        host: The machine's name.
        processes: Those of this machine that the claim rests on; pairs of them count once.
        ratio: Speedup over the program as written, of this machine's processes alone.
        is_here: Whether it is the machine whose result this is.
    """

    host: str
    processes: int
    ratio: Interval
    is_here: bool = False


@dataclass(frozen=True)
class GroupAnswer:
    """What machines of another kind found in the same study.

    Attributes:
        group: Fingerprint of such machines.
        machine: CPU and GPU in a few words.
        config: The recommended one; None if none is.
        speedup: Of ``config``; None if none is recommended.
        machines: Hosts whose processes the answer rests on, sorted.
    """

    group: str
    machine: str
    finding: Finding
    config: Config | None = None
    speedup: Interval | None = None
    machines: tuple[str, ...] = ()
