"""Detects losses that change their meaning if the batch is split or grows.

Covered: losses that compare the samples of one batch with each other (contrastive losses), and
losses that are not a sum of means over samples. Each is reported with the program's line that
computes gradients.

Not covered: comparisons within modules that have parameters, unless the loss numbers the samples of
the batch as classes.
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

SEEN = 2  # backward passes in which a finding must occur: a single one may be a coincidence


class LossesSeam(Seam):
    """Reads the autograd graph of each loss when the program computes gradients; changes nothing.

    ``SeamSet`` installs it in an observed program and removes it after three steps. The forward
    seam calls ``returned()`` after each model call. Everything runs on the thread that trains.

    Attributes:
        in_batch: By what a loss compares samples of one batch, and where; empty if none does.
        curve: Why a loss is not a sum of means over samples, and where; empty if all are.
    """

    def __init__(self) -> None:
        self._outputs: set[Any] = set()
        self._samples: int | None = None
        self._compared: Counter[str] = Counter()
        self._curves: Counter[str] = Counter()
        self._patches = Patches()

    @property
    def in_batch(self) -> str:
        """The most frequent comparison of samples within a batch; empty if none was seen twice."""
        return self._usual(self._compared)

    @property
    def curve(self) -> str:
        """The most frequent reason why a loss is not a sum of means; empty if not seen twice."""
        return self._usual(self._curves)

    def install(self) -> None:
        """Wrap ``torch.autograd.backward``, which ``Tensor.backward()`` calls, too."""
        original = torch.autograd.backward
        seam = self

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            # Nodes of custom autograd functions and compiled code lack the attributes that are read
            # here. Such a loss is not judged, and training goes on.
            with suppress(AttributeError, RuntimeError):
                seam._look([tensors] if isinstance(tensors, torch.Tensor) else list(tensors))
            original(tensors, *args, **kwargs)

        self._patches.replace(torch.autograd, "backward", outermost(backward, original))

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._patches.undo()
        self._outputs.clear()

    def returned(self, inputs: tuple[Any, ...], output: Any) -> None:
        """Note a model's output: operations after it belong to the loss.

        Args:
            inputs: The model's positional arguments. The first tensor's length is taken for the
                number of samples in the batch.
            output: What the model returned; tensors are found in nested containers.
        """
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
