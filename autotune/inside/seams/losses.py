"""The seam that looks at losses during the untouched steps: do they go together with other batches.

Covered: losses that compare the samples of one batch with each other, and those that are no sum of
means, each named with the line that computes gradients. Not covered: what modules with parameters
do before they return, unless samples are numbered as classes of one batch.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import torch

from autotune.inside.code.frames import own_place
from autotune.inside.code.loss_graph import compared, read
from autotune.inside.data.feed import first_tensor, tensors_in
from autotune.inside.seams.base import Patches, Seam, outermost

SEEN = 2  # backward passes: one alone may be a coincidence


class LossesSeam(Seam):
    """Looks at each loss where the program computes its gradients; changes nothing.

    Attributes:
        in_batch: By what a loss compares samples of one batch, and where; empty where none does.
        curve: What makes a loss no sum of means, and where; empty where nothing does.
    """

    def __init__(self) -> None:
        self._outputs: set[Any] = set()
        self._samples: int | None = None
        self._compared: Counter[str] = Counter()
        self._curves: Counter[str] = Counter()
        self._patches = Patches()

    @property
    def in_batch(self) -> str:
        """What was seen of comparisons within a batch."""
        return self._usual(self._compared)

    @property
    def curve(self) -> str:
        """What was seen of losses that are no sum of means."""
        return self._usual(self._curves)

    def install(self) -> None:
        """Begin to look."""
        original = torch.autograd.backward
        seam = self

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            with suppress(AttributeError, RuntimeError):  # a graph of another make tells nothing
                seam._look([tensors] if isinstance(tensors, torch.Tensor) else list(tensors))
            original(tensors, *args, **kwargs)

        self._patches.replace(torch.autograd, "backward", outermost(backward, original))

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._patches.undo()
        self._outputs.clear()

    def returned(self, inputs: tuple[Any, ...], output: Any) -> None:
        """A model of the program's has returned; what is computed from there on is the loss."""
        tensor = first_tensor(inputs)
        self._samples = len(tensor) if tensor is not None else None
        self._outputs |= {t.grad_fn for t in tensors_in(output) if t.grad_fn and t.numel() > 1}

    def _look(self, losses: list[torch.Tensor]) -> None:
        for loss in losses:
            for counter, found in (
                (self._compared, compared(loss, self._outputs, self._samples)),
                (self._curves, read(loss, self._samples).curve),
            ):
                if found:
                    counter[f"{found} ({own_place() or ''!s})"] += 1
        self._outputs.clear()

    def _usual(self, counter: Counter[str]) -> str:
        (found, times), *_ = counter.most_common(1) or [("", 0)]
        return found if times >= SEEN else ""
