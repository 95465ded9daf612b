"""Detect that the program has left its training loaders.

Between two epochs a program may evaluate or save for minutes, which must not look like a hang to
the parent. A program may also never come back, because it trains on with other loaders.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from autotune.rig.wire import Phase

# Steps with other loaders between two epochs can be part of the same training. Only if they
# exceed both limits and the length of the epoch do they count as another stage of training.
MAX_STEPS, LONGEST_S = 200, 10.0


class Absence:
    """Knows whether the program is away from its training loaders, and for how long.

    ``LeadRank`` calls ``begin()`` and ``end()`` in the program's main thread, where epochs end and
    where training continues. LeadRank's background thread that sends signs of life calls ``tell()``
    every few seconds, so that short absences cost nothing.
    """

    def __init__(self) -> None:
        self._since: tuple[int, float] | None = None  # steps and time at an epoch's end
        self._told: Phase = "turns"

    @property
    def phase(self) -> Phase:
        """The phase that the parent should assume while it receives no messages."""
        return "turns" if self._since is None else "between epochs"

    def tell(self, say: Callable[[Phase], None]) -> None:
        """Call *say* with the phase if it has changed since the last call.

        An absence that begins and ends between two calls is never reported.
        """
        if (phase := self.phase) != self._told:
            self._told = phase
            say(phase)

    def begin(self, steps: int) -> None:
        """Note that an epoch has ended, after *steps* optimizer steps in total."""
        self._since = steps, perf_counter()

    def end(self) -> None:
        """Note that the program trains with its training loaders again."""
        self._since = None

    def is_another_stage(self, steps: int, epoch_steps: int) -> bool:
        """Return whether the program has gone on to another stage of training, with other loaders.

        That is the case if its last epoch ended more than ``LONGEST_S`` seconds ago and it has made
        more steps since than both ``MAX_STEPS`` and the steps of that epoch. A search does not tune
        such a stage.

        Args:
            steps: Optimizer steps that the program has made in total.
            epoch_steps: Optimizer steps of the last epoch.
        """
        if self._since is None:
            return False
        since_steps, since_s = self._since
        is_long = perf_counter() - since_s > LONGEST_S
        return is_long and steps - since_steps > max(MAX_STEPS, epoch_steps)
