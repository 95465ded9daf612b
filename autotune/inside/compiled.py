"""What torch.compile did in this process: read from its own counters."""

from __future__ import annotations

import sys
import time
from typing import Any

from autotune.measurement.measurement import Compilation


class CompileCounter:
    """Counts from the last ``reset()`` on, at first from the start of the process."""

    def __init__(self) -> None:
        self._before = Compilation(0.0, 0, 0, 0)
        self._since_us = 0.0

    def reset(self) -> None:
        """Begin to count anew."""
        self._before = _totals(0.0)
        self._since_us = 1e6 * time.time()

    def read(self) -> Compilation | None:
        """Return what was compiled, None in a process that compiles nothing."""
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
    """Return the frames that torch.compile has taken in this process so far."""
    dynamo = _dynamo_utils()
    return 0 if dynamo is None else int(dynamo.counters["frames"].get("total", 0))


def _totals(since_us: float) -> Compilation:
    """What the process compiled so far; recompilations since a moment of ``time.time()``."""
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
    """Importing it takes seconds: a process that does not compile has not."""
    return sys.modules.get("torch._dynamo.utils")
