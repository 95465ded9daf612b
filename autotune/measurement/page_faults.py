"""Page faults of configs that return what they free, in turns and alone.

Configs that take turns share a heap. Its layout decides how much of a step's memory is mapped anew:
a step of mnist had from none to twice the page faults that it has alone. A config that keeps what
it frees has none in either case. Any other, as the program as written, is put right: it counts with
the page faults that it has in a process in which no other config has trained.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from autotune.measurement.turn import Played, Turn, played

# Of its own page faults, that the program as written must have more than the same that keeps its
# memory, for both together to tell what one costs: fewer are lost in the noise of the steps
TELLING = 0.5
MOST = 0.5  # of a turn's seconds that it may be put right by


@dataclass
class PageFaults:
    """What is known of them; filled while a search runs.

    Attributes:
        alone: How many a step of a config has alone, where that was seen.
        each_s: Seconds of one; None before that was seen.
    """

    alone: dict[Hashable, float] = field(default_factory=dict)
    each_s: float | None = None
    _returned: Played | None = None
    _kept: Played | None = None

    def see_alone(self, config: Hashable, turns: Sequence[Turn]) -> None:
        """Note turns of a config in a process in which no other one has trained.

        Steps in which it did something besides training do not count.
        """
        counted = [part for turn in turns if turn.faults and (part := played(turn)) is not None]
        if counted:
            faults = sum(one.faults for one in counted)
            self.alone[config] = faults / sum(one.steps for one in counted)

    def compare(self, config: Hashable, returned: Played, kept: Played) -> None:
        """Note one round of a config that returns its memory, and of the same that keeps it."""
        self._returned = returned if self._returned is None else self._returned + returned
        self._kept = kept if self._kept is None else self._kept + kept
        more, longer_s = (
            getattr(self._returned, of) / self._returned.steps
            - getattr(self._kept, of) / self._kept.steps
            for of in ("faults", "seconds")
        )
        own = self.alone.get(config)
        if own and more >= TELLING * own:
            self.each_s = max(0.0, longer_s) / more

    def as_alone(self, config: Hashable, one: Played, most_s: float) -> Played:
        """Return a turn of a config with the page faults that it has alone, if these are known.

        One takes *most_s* at most, because threads may have theirs at the same time.
        """
        if config not in self.alone:
            return one
        each_s = most_s if self.each_s is None else min(self.each_s, most_s)
        more_s = (self.alone[config] * one.steps - one.faults) * each_s
        bound_s = MOST * one.seconds
        more_s = max(-bound_s, min(more_s, bound_s))
        return replace(one, cost=one.cost + more_s, seconds=one.seconds + more_s)
