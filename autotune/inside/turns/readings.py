"""Read what turns do to the machine, and what others take from it meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterable

from autotune.inside.compiled import CompileCounter, frames_compiled
from autotune.machine.probes.host_load import HostLoad
from autotune.machine.probes.torch_memory import TorchMemory
from autotune.measurement.batch_effect import BatchEffect
from autotune.measurement.memory import Memory
from autotune.measurement.turn import Taken, Turn


class Readings:
    """Reads memory, compilations and the load of the host before and after turns.

    ``LeadRank`` has one and calls it in the program's main thread, between two steps.
    """

    def __init__(self) -> None:
        self._memory = TorchMemory("cpu")
        self._compiled = CompileCounter()
        self._host_load = HostLoad(os.getppid())
        self._counters = self._host_load.read()

    def trains_on(self, device: str) -> None:
        """Read the memory of this type of device from here on."""
        self._memory = TorchMemory(device)

    def count_in(self, pids: Iterable[int]) -> None:
        """Set which further processes are the program's; see ``HostLoad.count_in``."""
        self._host_load.count_in(pids)

    def begin(self, *, resets_memory: bool) -> None:
        """Note what was read before turns.

        Args:
            resets_memory: Whether the peaks of memory begin here. It also empties the device's
                cache, for which the next turn pays.
        """
        if resets_memory:
            self._memory.reset()
        self._counters = self._host_load.read()

    def activity(self) -> int:
        """Return a number that grows while torch compiles or takes memory from the device."""
        return frames_compiled() + self._memory.segments_taken()

    def taken(
        self,
        turns: tuple[Turn, ...],
        steps: int,
        samples_per_epoch: int | None,
        effect: BatchEffect | None,
    ) -> Taken:
        """Return turns with what was read since ``begin()``."""
        compilation = self._compiled.read()
        self._compiled.reset()
        return Taken(
            turns,
            steps,
            samples_per_epoch,
            self._memory.read(Memory()),
            compilation=compilation,
            effect=effect,
            interference=self._host_load.read().since(self._counters),
        )
