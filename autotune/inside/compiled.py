"""Read what torch.compile did in this process, from torch's own counters.

The counters are not public API, so this module is the only place that reads them.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from autotune.measurement.compilation import Compilation


class CompileCounter:
    """Counts compilations since the last ``reset()``, or since the process started.

    ``LeadRank`` reads and resets it when it answers with turns, so each answer holds what was
    compiled since the answer before, the switch to the config included. It does so in the program's
    main thread, or in the timer thread if the window has run out of time.
    """

    def __init__(self) -> None:
        self._before = Compilation(0.0, 0, 0, 0)
        self._since_us = 0.0

    def reset(self) -> None:
        """Start counting from zero."""
        self._before = _totals(0.0)
        self._since_us = 1e6 * time.time()

    def read(self) -> Compilation | None:
        """Return what was compiled since the last reset; None if the process never compiled."""
        if not frames_compiled():
            return None
        now, before = _totals(self._since_us), self._before
        return Compilation(
            now.seconds - before.seconds,
            now.graphs - before.graphs,
            now.recompiles,
            now.graph_breaks - before.graph_breaks,
        )


def frames_compiled() -> int:
    """Return how many Python frames torch.compile has processed in this process so far.

    The number only grows, and 0 means that the process has not compiled anything. The meter
    compares two readings to see whether a warm-up still compiles.
    """
    dynamo = _dynamo_utils()
    return 0 if dynamo is None else int(dynamo.counters["frames"].get("total", 0))


def _totals(since_us: float) -> Compilation:
    """Return the totals of this process; only recompilations are limited to a period.

    torch sums up time, graphs and graph breaks, so ``read()`` takes differences of these. It keeps
    recompilations as a list with time stamps, which is filtered here.

    Args:
        since_us: Start of the period for recompilations, in microseconds of ``time.time()``.
    """
    dynamo = _dynamo_utils()
    if dynamo is None:
        return Compilation(0.0, 0, 0, 0)
    recompiled = [
        m
        for m in dynamo.get_compilation_metrics()
        if m.recompile_reason and (m.start_time_us or 0) >= since_us
    ]
    return Compilation(
        seconds=dynamo.calculate_time_spent()["total_wall_time"],
        graphs=int(dynamo.counters["stats"].get("unique_graphs", 0)),
        recompiles=len(recompiled),
        graph_breaks=sum(dynamo.counters["graph_break"].values()),
    )


def _dynamo_utils() -> Any:
    """Return torch's module of counters if the process has imported it, else None.

    Importing it takes seconds. A process that has compiled anything has imported it already.
    """
    return sys.modules.get("torch._dynamo.utils")
