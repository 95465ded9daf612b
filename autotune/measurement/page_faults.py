"""Page faults of the program as written, in turns and alone.

Configs that take turns share a heap. Its layout decides how much of a step's memory is mapped anew:
a step of mnist had from none to twice the page faults that it has alone. The other configs keep
what they free, so they have none in either case. So only the program as written is put right: it
counts with the page faults that it has in a process in which no other config has trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.measurement.turn import Played, Turn, played

# Of its own page faults, that the program as written must have more than a config that keeps its
# memory, for both together to tell what one costs: fewer are lost in the noise of the steps
TELLING = 0.5
MOST = 0.5  # of a turn's seconds that are taken for those of page faults


@dataclass
class PageFaults:
    """What is known of them; filled while a search runs.

    Attributes:
        own: How many a step has alone; None before that was seen.
        each_s: Seconds of one; None before that was seen.
    """

    own: float | None = None
    each_s: float | None = None
    _returned: Played | None = None
    _kept: Played | None = None

    def see_alone(self, turns: Sequence[Turn]) -> None:
        """Note turns of the program as written in a process in which no other config has trained.

        Steps in which it did something besides training do not count.
        """
        counted = [part for turn in turns if turn.faults and (part := played(turn)) is not None]
        if counted:
            self.own = sum(one.faults for one in counted) / sum(one.steps for one in counted)

    def compare(self, returned: Played, kept: Played) -> None:
        """Note one round of the program as written and of a config that only keeps its memory."""
        self._returned = returned if self._returned is None else self._returned + returned
        self._kept = kept if self._kept is None else self._kept + kept
        more, longer_s = (
            getattr(self._returned, of) / self._returned.steps
            - getattr(self._kept, of) / self._kept.steps
            for of in ("faults", "seconds")
        )
        if self.own and more >= TELLING * self.own:
            self.each_s = max(0.0, longer_s) / more

    def as_alone(self, one: Played, most_s: float) -> Played:
        """Return a turn of the program as written with the page faults that it has alone.

        Args:
            one: The turn.
            most_s: Seconds of a page fault alone. Threads may have theirs at the same time, so one
                takes no longer.
        """
        if self.own is None:
            return one
        each_s = most_s if self.each_s is None else min(self.each_s, most_s)
        more_s = (self.own * one.steps - one.faults) * each_s
        return one.later(max(more_s, -MOST * one.seconds))
