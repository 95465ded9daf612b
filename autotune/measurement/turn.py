"""Turn: a few whole steps under one config, and its place in a schedule."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlannedTurn:
    """A turn that is to be taken.

    Attributes:
        config: Number of its config among those in play.
        steps: Whole steps that it lasts.
    """

    config: int
    steps: int


@dataclass(frozen=True)
class Turn:
    """A turn that was taken.

    Attributes:
        config: Number of its config among those in play.
        seconds: Of each step, from the end of the one before, or of the switch.
        samples: Of each step.
        switch_s: Seconds of the switch from the config before; they belong to no config.
        disturbed: Places of the steps in which the program did something besides training.
    """

    config: int
    seconds: tuple[float, ...]
    samples: tuple[int, ...]
    switch_s: float
    disturbed: tuple[int, ...] = ()
