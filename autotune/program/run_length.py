"""Run length: how long a program trains, as its trainer or one of its flags says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.program.flags import Flag

EPOCHS = frozenset(f"{before}epochs" for before in ("", "num_", "n_", "n", "max_", "num_train_"))
# Without "steps", "n_steps" and "num_steps", which often count the steps of something smaller
STEPS = frozenset(
    f"{before}_{word}"
    for word in ("steps", "iters", "iterations")
    for before in ("max", "total", "train", "max_train", "num_train", "training")
)


@dataclass(frozen=True)
class RunLength:
    """How long a program trains.

    Attributes:
        epochs: Number of epochs; None if unknown.
        where: Where that is said, such as ``--epochs 30``.
        steps: Number of optimizer steps, where the program counts them instead of epochs.
    """

    epochs: float | None = None
    where: str = ""
    steps: float | None = None

    @property
    def bounded_by_steps(self) -> str:
        """What fixes the number of steps, whatever a batch holds; empty if nothing was seen to."""
        return "" if self.steps is None else self.where

    def __str__(self) -> str:
        noun = "epoch" if self.epochs == 1 else "epochs"
        count = f"{self.epochs:g} {noun}" if self.steps is None else f"{self.steps:,.0f} steps"
        return f"{count} ({self.where})"


def told_by(flags: Iterable[Flag]) -> RunLength:
    """Return what the program's flags say; a flag for the steps counts more than one for epochs."""
    for flag in (numbers := [flag for flag in flags if flag.number]):
        if flag.words & STEPS:
            return RunLength(where=f"{flag.name} {flag.number}", steps=flag.number)
    for flag in numbers:
        if flag.words & EPOCHS:
            return RunLength(flag.number, f"{flag.name} {flag.number}")
    return RunLength()
