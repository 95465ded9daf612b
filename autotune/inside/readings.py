"""Read what turns do to the machine, what torch.compile did, and what others take meanwhile.

torch's counters of compilations are not public API, so this module is the only place that reads
them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autotune.machine.probes.host_load import HostLoad
from autotune.machine.probes.torch_memory import TorchMemory
from autotune.measurement.readings import Compilation, Memory
from autotune.measurement.turn import Taken, Turn
from autotune.program.applied_config import AppliedConfig


class Readings:
    """Reads memory, compilations and the load of the host before and after turns.

    Each answer holds what was compiled since the answer before, the switch to the config included.
    """

    def __init__(self) -> None:
        self._memory = TorchMemory("cpu")
        self._alone: AppliedConfig | None = None  # whose peaks of memory are recorded
        self.host_load = HostLoad(os.getppid())
        self._counters = self.host_load.read()
        self._compiled = Compilation(0.0, 0, 0, 0)  # until the answer before
        self._answered_us = 0.0

    def trains_on(self, device: str) -> None:
        """Read the memory of this type of device from here on."""
        self._memory = TorchMemory(device)

    def begin(self, configs: Sequence[AppliedConfig]) -> None:
        """Note what was read before turns of these configs.

        Peaks of memory begin with the stay of a config that is alone, not with each of its calls,
        as they empty the device's cache, for which the next turn pays.
        """
        alone = configs[0] if len(configs) == 1 else None
        self._memory.begin(resets=alone is not None and alone != self._alone)
        self._alone = alone
        self._counters = self.host_load.read()

    def activity(self) -> int:
        """Return a number that grows while torch compiles or takes memory from the device."""
        return frames_compiled() + self._memory.bytes_taken()

    def taken(self, turns: tuple[Turn, ...], steps: int, samples_per_epoch: int | None) -> Taken:
        """Return turns with what was read since ``begin()``."""
        return Taken(
            turns,
            steps,
            samples_per_epoch,
            self._memory.read(Memory()),
            compilation=self._compilation() if frames_compiled() else None,
            interference=self.host_load.read().since(self._counters),
        )

    def _compilation(self) -> Compilation:
        """Return what was compiled since the answer before.

        torch keeps totals, but recompilations as a list with time stamps.
        """
        dynamo, before = _dynamo_utils(), self._compiled
        recompiled = [
            m
            for m in dynamo.get_compilation_metrics()
            if _is_again(m) and (m.start_time_us or 0) >= self._answered_us
        ]
        now = Compilation(
            seconds=dynamo.calculate_time_spent()["total_wall_time"],
            graphs=int(dynamo.counters["stats"].get("unique_graphs", 0)),
            recompiles=len(recompiled),
            graph_breaks=sum(dynamo.counters["graph_break"].values()),
        )
        self._compiled, self._answered_us = now, 1e6 * time.time()
        return replace(
            now,
            seconds=now.seconds - before.seconds,
            graphs=now.graphs - before.graphs,
            graph_breaks=now.graph_breaks - before.graph_breaks,
        )


def frames_compiled() -> int:
    """Return how many Python frames torch.compile has processed in this process so far.

    The number only grows, and 0 means that the process has not compiled anything.
    """
    dynamo = _dynamo_utils()
    return 0 if dynamo is None else int(dynamo.counters["frames"].get("total", 0))


def _is_again(metrics: Any) -> bool:
    """Return whether a compilation is of a frame that was compiled before."""
    if hasattr(metrics, "recompile_reason"):
        return bool(metrics.recompile_reason)
    # torch 2.6 has the ids of the frame and of its compilation alone: 0/1
    return not str(metrics.compile_id).endswith("/0")


def _dynamo_utils() -> Any:
    """Return torch's counters if something was compiled; importing them takes seconds."""
    return sys.modules.get("torch._dynamo.utils")
