"""The hooks by which the seams report to whoever measures; each hook does nothing by default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from autotune.inside.data.feed import Feed
from autotune.inside.hubs.backward import BackwardListener, BackwardPass
from autotune.inside.hubs.saving import SaveListener
from autotune.measurement.run_mode import Epochs
from autotune.program.rehearsal import RehearsalPlan


class BatchClock(Protocol):
    """Is told when the program requests a batch and when it has it, on the thread that trains."""

    def asked(self) -> None:
        """Note that the program requests its next batch."""

    def leave(self) -> None:
        """Note that it got the batch."""


@dataclass(frozen=True)
class Root:
    """An outermost module that owns parameters: a model as the program calls it.

    Attributes:
        parameters: Number of its parameters.
    """

    parameters: int


class Listener(BackwardListener, SaveListener):
    """Base class of all that follow a running program: ``StepTracker`` and ``ShortEpochs``.

    The seams call the hooks in the thread that does what the hook reports, which for most is the
    program's main thread; batches may be asked for in another. Each hook does nothing by default.

    Attributes:
        rehearsal: How short epochs are in a rehearsal; None outside of one.
        is_endless: Whether training continues beyond the program's epoch, also in the loop of a
            library's trainer.
        switched_at: Total number of steps when the config changed last.
        suspect: The epoch mode to try next if the present one may be why the program fails; None if
            it is not suspected.
    """

    rehearsal: RehearsalPlan | None = None
    is_endless: bool = False
    switched_at: int = 0
    suspect: Epochs | None = None

    def before_batch(self, feed: Feed) -> None:
        """The program asks a feed for its next batch, which is not fetched yet."""

    def after_batch(self, feed: Feed, batch: Any, samples: int, wait_s: float) -> None:
        """A feed is about to hand a batch to the program, which has waited for it *wait_s*."""

    def trains_on(self, feed: Feed) -> bool:  # noqa: ARG002
        """Return whether the feed drives optimizer steps, so that loader options apply to it."""
        return False

    def starts_over(self, feed: Feed) -> bool:  # noqa: ARG002
        """Return whether a training feed restarts when its data are used up, or ends its pass."""
        return False

    def cuts(self, feed: Feed) -> bool:  # noqa: ARG002
        """Return whether the feed ends its pass here, although its loader may have more batches.

        Like ``starts_over()``, it is not asked where training is endless.
        """
        return False

    def epoch_ended(self, feed: Feed) -> None:
        """A feed's data are used up, and it starts over instead of ending the program's loop."""

    def pass_ended(self, feed: Feed) -> None:
        """A feed's pass is over: the program's loop gets no more batches from it."""

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
