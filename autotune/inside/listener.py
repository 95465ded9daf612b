"""The hooks by which the seams report to whoever measures; each hook does nothing by default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from autotune.inside.data.feed import FeedListener
from autotune.inside.hubs.backward import BackwardListener, BackwardPass
from autotune.inside.hubs.saving import SaveListener
from autotune.measurement.outcome import Epochs
from autotune.program.rehearsal import RehearsalPlan


@dataclass(frozen=True)
class Root:
    """An outermost module with parameters, by their number: a model as the program calls it."""

    parameters: int


class Listener(FeedListener, BackwardListener, SaveListener):
    """Base class of all that follow a running program: ``StepTracker`` and ``ShortEpochs``.

    The hooks run in the thread that does what they report, which for most is the main thread.

    Attributes:
        rehearsal: How short epochs are in a rehearsal; None outside of one.
        switched_at: Total number of steps when the config changed last.
        suspect: The epoch mode to try next if the present one may be why the program fails.
    """

    rehearsal: RehearsalPlan | None = None
    switched_at: int = 0
    suspect: Epochs | None = None

    def forward_called(self, root: Root, args: tuple[Any, ...]) -> None:
        """The program calls an outermost module: *root*, the same object in each call."""

    def before_backward(self, call: BackwardPass) -> None:
        """Report each tensor that the program differentiates as a loss."""
        tensors = [call.tensors] if isinstance(call.tensors, torch.Tensor) else call.tensors
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):  # torch also takes edges of its graph
                self.loss_seen(tensor)

    def loss_seen(self, loss: torch.Tensor) -> None:
        """The program calls ``backward()`` on a tensor, which is normally the loss."""

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has made a step."""

    def stepped_by_hand(self) -> None:
        """The program has changed weights after a backward pass, without an optimizer."""
