"""Rank load: how one of several ranks spent its steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RankLoad:
    """How one of several ranks spent a mean step of its turns.

    Attributes:
        rank: Number of the rank, from 0.
        step_s: Duration of the step.
        wait_s: Part of ``step_s`` spent waiting for the next batch.
        communication_s: How long collectives were running, including the wait for other ranks. It
            is recorded in extra steps after the turns; None if that was not possible.
        queued_s: How long the thread that trains was ready to run and had no core, because others
            used it; recorded in the same steps.
    """

    rank: int
    step_s: float
    wait_s: float
    communication_s: float | None = None
    queued_s: float = 0.0

    @property
    def own_s(self) -> float | None:
        """Seconds of a step that the rank's work takes; None if unknown.

        Neither collectives nor waiting for a core belong to that: other programs on the machine
        would make a rank look slow that has no more to do than the others.
        """
        if self.communication_s is None:
            return None
        return max(0.0, self.step_s - self.communication_s - self.queued_s)
