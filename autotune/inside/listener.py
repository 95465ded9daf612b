"""Listener: what the seams tell to whoever measures; every hook is a no-op here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from autotune.inside.data.feed import Feed
from autotune.measurement.run_mode import Epochs
from autotune.program.rehearsal import RehearsalPlan


@dataclass(frozen=True)
class Root:
    """An outermost module that owns parameters."""

    parameters: int


class Listener:
    """Hooks that the seams call; a listener overrides those it means.

    Attributes:
        rehearsal: How short epochs are, where what follows them is to run; None where nothing is
            rehearsed.
        is_endless: A training epoch goes on for as long as it is wanted, also one that a trainer
            of a library counts.
        switched_at: Steps that had been made when the config changed last.
        suspect: How epochs would have to end if these here are why the program fails now.
    """

    rehearsal: RehearsalPlan | None = None
    is_endless: bool = False
    switched_at: int = 0
    suspect: Epochs | None = None

    def before_batch(self, feed: Feed) -> None:
        """The program asks a feed for its next batch."""

    def after_batch(self, feed: Feed, samples: int, wait_s: float) -> None:
        """A feed is about to hand a batch to the program, after waiting ``wait_s`` for it."""

    def trains_on(self, feed: Feed) -> bool:  # noqa: ARG002
        """Tell whether the feed drives optimizer steps, so that options of a config are for it."""
        return False

    def starts_over(self, feed: Feed) -> bool:  # noqa: ARG002
        """Tell whether a feed that trains begins anew where its data end; else its pass ends."""
        return False

    def cuts(self, feed: Feed) -> bool:  # noqa: ARG002
        """Tell whether the feed ends here, though its loader may have more."""
        return False

    def epoch_ended(self, feed: Feed) -> None:
        """A feed starts over where its data ended."""

    def pass_ended(self, feed: Feed) -> None:
        """A feed has no more batches for the program."""

    def forward_called(self, root: Root, args: tuple[Any, ...]) -> None:
        """The program calls an outermost module that owns parameters."""

    def loss_seen(self, loss: torch.Tensor) -> None:
        """The program calls ``backward()`` on a tensor."""

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has made a step."""

    def stepped_by_hand(self) -> None:
        """Weights have changed after a backward pass, and no optimizer has made the step."""
