"""Record what a program's first steps learn, so that two runs compare.

Both run under equal conditions (``seams/equal_conditions.py``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import nn

from autotune.inside.data.feed import first_tensor
from autotune.measurement.training_trace import TracedStep, TrainingTrace

MAX_STEPS = 64
MAX_VALUES = 24  # that are read of the weights after each step, and of the buffers
SEED = 20_230_401
UNITS = 8  # in the last place, by which a weight is shaken: sums round by more than their terms
REDUCED = {"high": 2.0**-10, "medium": 2.0**-8}  # what fp32 products round to: TF32, bfloat16


class TrainingRecorder:
    """Traces the first steps; a rehearsal calls it on the program's main thread.

    Args:
        models: Returns the outermost modules that were called.
        shakes: Move each weight by some units in its last place before the first step, in
            directions that are drawn with this seed; 0 leaves them.
        is_alone: Whether no other rank trains. The losses of several are those of their shares.
    """

    def __init__(
        self,
        models: Callable[[], Mapping[nn.Module, object]],
        *,
        shakes: int,
        is_alone: bool = True,
    ) -> None:
        self._models = models
        self._shakes = shakes
        self._is_alone = is_alone
        self._steps: list[TracedStep] = []
        self._rounding = 0.0
        self._losses: list[float] = []
        self._fed: int | None = None
        self._weights: list[tuple[torch.Tensor, int]] | None = None
        self._buffers: list[tuple[torch.Tensor, int]] = []

    @property
    def trace(self) -> TrainingTrace:
        """What was recorded so far."""
        return TrainingTrace(tuple(self._steps), self._rounding)

    def forward_called(self, args: tuple[Any, ...]) -> None:
        """Note what goes into a model; before the first call, shake the weights if asked to."""
        if len(self._steps) >= MAX_STEPS or not torch.is_grad_enabled():
            return
        if not self._rounding:
            self._begin(first_tensor(args))
        if self._is_alone and (fed := first_tensor(args)) is not None:
            whole = fed.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            self._fed = zlib.crc32(whole.numpy().tobytes(), self._fed or 0)

    def loss_seen(self, loss: torch.Tensor) -> None:
        """Note a tensor on which ``backward()`` is called."""
        if self._is_alone and loss.numel() == 1 and len(self._steps) < MAX_STEPS:
            self._losses.append(float(loss.detach()))

    def stepped(self, optimizer: torch.optim.Optimizer | None, epoch: int) -> None:
        """Note that a step has been made.

        Args:
            optimizer: Which made it; None for a step by hand.
            epoch: Number of the pass over the training data.
        """
        if len(self._steps) >= MAX_STEPS:
            return
        if self._weights is None:
            self._choose(optimizer)
        rate = None if optimizer is None else optimizer.param_groups[0].get("lr")
        self._steps.append(
            TracedStep(
                sum(self._losses) / len(self._losses) if self._losses else None,
                self._fed,
                None if rate is None else float(rate),
                epoch,
                _read(self._weights or []),
                _read(self._buffers),
            )
        )
        self._losses, self._fed = [], None

    def _begin(self, fed: torch.Tensor | None) -> None:
        device = "cpu" if fed is None else fed.device.type
        self._rounding = _rounding(device)
        if not self._shakes:
            return
        dice = torch.Generator().manual_seed(SEED + self._shakes)
        with torch.no_grad():
            for model in self._models():
                for weight in model.parameters():
                    _shake(weight, self._rounding, dice)

    def _choose(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Choose the weights and buffers to read, spread over all of them."""
        models = list(self._models())
        weights = [w for model in models for w in model.parameters() if w.requires_grad]
        if not weights and optimizer is not None:
            weights = [w for group in optimizer.param_groups for w in group["params"]]
        buffers = [b for m in models for b in m.buffers() if b.is_floating_point()]
        self._weights = _spread(weights)
        self._buffers = _spread(buffers)


def _rounding(device: str) -> float:
    """Return the size of one unit in the last place, relative, of what matrix products compute."""
    if torch.is_autocast_enabled(device):
        return torch.finfo(torch.get_autocast_dtype(device)).eps
    if torch.get_default_dtype() is torch.float32:
        precision = torch.get_float32_matmul_precision()
        return REDUCED.get(precision, torch.finfo(torch.float32).eps)
    return torch.finfo(torch.get_default_dtype()).eps


def _shake(weight: torch.Tensor, rounding: float, dice: torch.Generator) -> None:
    if type(weight) not in {torch.Tensor, nn.Parameter} or not weight.is_floating_point():
        return
    signs = torch.randint(0, 2, weight.shape, generator=dice).to(weight.device) * 2 - 1
    moved = UNITS * max(rounding, torch.finfo(weight.dtype).eps)
    weight.mul_(1 + moved * signs.to(weight.dtype))


def _spread(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    """Return places in tensors, at most ``MAX_VALUES``, the same number of each."""
    plain = [t for t in tensors if type(t) in {torch.Tensor, nn.Parameter} and t.numel()]
    if len(plain) > MAX_VALUES:
        plain = [plain[n * len(plain) // MAX_VALUES] for n in range(MAX_VALUES)]
    each = max(1, MAX_VALUES // max(1, len(plain)))
    return [
        (t, n * t.numel() // min(each, t.numel()))
        for t in plain
        for n in range(min(each, t.numel()))
    ]


def _read(places: list[tuple[torch.Tensor, int]]) -> tuple[float, ...]:
    """Return the values at some places; indexed as the program sees them, however they are laid."""
    with torch.no_grad():
        return tuple(float(t[_index(n, t.shape)]) for t, n in places)


def _index(number: int, shape: torch.Size) -> tuple[int, ...]:
    return tuple(int(i) for i in numpy.unravel_index(number, tuple(shape))) if shape else ()
