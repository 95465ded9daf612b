"""Absence: the program has left its training loaders, between two epochs or for another stage."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from autotune.rig.wire import Phase

# Beyond both, and as many steps as the epoch had, other loaders are those of another stage.
MAX_STEPS, LONGEST_S = 200, 10.0


class Absence:
    """Knows whether the program is away, and for how long.

    The driver tells it, in the thread that trains, where epochs end and training goes on; the
    driver's thread that gives signs of life asks it.
    """

    def __init__(self) -> None:
        self._since: tuple[int, float] | None = None  # steps made, and when
        self._told: Phase = "warm-up"

    @property
    def phase(self) -> Phase:
        """What the parent is to take a silence for."""
        return "warm-up" if self._since is None else "between epochs"

    def tell(self, say: Callable[[Phase], None]) -> None:
        """Say the phase where it is another one than was said; of short absences nothing is."""
        if (phase := self.phase) != self._told:
            self._told = phase
            say(phase)

    def begin(self, steps: int) -> None:
        """An epoch has ended, after so many steps in all."""
        self._since = steps, perf_counter()

    def end(self) -> None:
        """Training goes on."""
        self._since = None

    def is_another_stage(self, steps: int, epoch_steps: int) -> bool:
        """Tell whether the program trains on with other loaders, for longer than an epoch took.

        Args:
            steps: That the program has made in all.
            epoch_steps: Those of the epoch before.
        """
        if self._since is None:
            return False
        since_steps, since_s = self._since
        is_long = perf_counter() - since_s > LONGEST_S
        return is_long and steps - since_steps > max(MAX_STEPS, epoch_steps)
