"""Turns: configs alternate within the running program, a few steps at a time.

The parent sends a schedule ahead, so between two steps nothing waits for it. A switch happens at
the boundary between two steps, and its seconds lie between two edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.inside.turns.edges import Edges
from autotune.measurement.turn import Turn
from autotune.program.applied_config import AppliedConfig
from autotune.rig.wire import TakeTurns, TookTurns


class Turns:
    """Carries out one schedule.

    ``LeadRank`` makes one for the message ``TakeTurns`` at a boundary between two steps, calls
    ``step()`` at the end of each further step in the program's main thread, and sends ``answer()``
    when ``is_done`` is set.

    Args:
        asked: The configs in play, and their turns.
        switch: Applies a config to the program.
        edges: Marks moments on the device that computes.

    Attributes:
        is_done: Whether all turns were taken.
    """

    clock = None  # the parts of steps are not timed

    def __init__(
        self, asked: TakeTurns, switch: Callable[[AppliedConfig], None], edges: Edges
    ) -> None:
        self._configs = asked.configs
        self._schedule = iter(asked.schedule)
        self._switch, self._edges = switch, edges
        self._taken: list[_Taken] = []
        self.is_done = False
        self._end = edges.mark()
        self._next()

    def _next(self) -> None:
        planned = next(self._schedule, None)
        if planned is None:
            self.is_done = True
            return
        self._switch(self._configs[planned.config])
        self._taken.append(_Taken(planned.config, planned.steps, self._end, self._edges.mark()))

    def step(self, samples: int, wait_s: float) -> None:  # noqa: ARG002 - what all tasks are told
        """Note the end of a step; at the end of a turn, switch to the next config."""
        self._end = self._edges.mark()
        turn = self._taken[-1]
        turn.ends.append(self._end)
        turn.samples.append(samples)
        if len(turn.ends) >= turn.steps:
            self._next()

    def disturb(self) -> None:
        """Note that the program does something besides training in the present step."""
        self._taken[-1].disturb()

    def resume(self, begin_s: float) -> None:  # noqa: ARG002 - what all tasks are told
        """Note that an epoch has ended and another begun within the present turn."""
        self._taken[-1].disturb()

    def close(self) -> None:
        """Drop a turn that is not whole, because the program ends."""
        self._taken = [turn for turn in self._taken if len(turn.ends) == turn.steps]

    def answer(self, number: int) -> TookTurns:
        """Return the message to the parent; *number* is that of its question."""
        self._edges.settle()
        return TookTurns(tuple(turn.told(self._edges) for turn in self._taken), number)


class _Taken:
    """A turn that is being taken: the marks of its edges."""

    def __init__(self, config: int, steps: int, before: Any, begin: Any) -> None:
        self.config, self.steps = config, steps
        self.before, self.begin = before, begin
        self.ends: list[Any] = []
        self.samples: list[int] = []
        self._disturbed: set[int] = set()

    def disturb(self) -> None:
        """Note that the present step is not training alone."""
        self._disturbed.add(len(self.ends))

    def told(self, edges: Edges) -> Turn:
        """Return it in seconds."""
        marks = [self.begin, *self.ends]
        return Turn(
            self.config,
            tuple(map(edges.seconds_between, marks, self.ends)),
            tuple(self.samples),
            edges.seconds_between(self.before, self.begin),
            tuple(sorted(self._disturbed)),
        )
