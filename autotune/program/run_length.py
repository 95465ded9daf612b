"""Run length: how long a program trains, as its trainer or its own code says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunLength:
    """How long a program trains.

    Attributes:
        epochs: Number of epochs; None if unknown.
        where: Where that is said, such as ``train.py:57: for epoch in range(epochs)``.
        steps: Number of optimizer steps, where the program counts them instead of epochs.
        batches: Batches after which the program leaves each training pass; None if it leaves none
            early, or that is unknown.
        unknown: Why the number of epochs cannot be told although the code was read, as a clause;
            empty if nothing speaks against what a flag says.
    """

    epochs: float | None = None
    where: str = ""
    steps: float | None = None
    batches: float | None = None
    unknown: str = ""

    def __str__(self) -> str:
        noun = "epoch" if self.epochs == 1 else "epochs"
        count = f"{self.epochs:g} {noun}" if self.steps is None else f"{self.steps:,.0f} steps"
        return f"{count} ({self.where})"
