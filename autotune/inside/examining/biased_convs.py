"""Finds convolutions whose bias has no effect, because a normalization layer subtracts it again.

Seen on the tensors of a step: the output of the convolution is the input of the norm. BatchNorm in
training mode and InstanceNorm subtract the mean of each channel, and with it any bias. GroupNorm
and LayerNorm do not: their means are taken over several channels.

Not covered: functional calls, transposed convolutions, norms after another layer that only
scales, compiled models.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.conv import _ConvNd as ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm as InstanceNorm
from torch.utils.hooks import RemovableHandle

from autotune.measurement.examination import BiasedConvs

ROUNDS = 7
MOST_S = 1.5  # for timing all layers
MAX_NAMED = 3


@dataclass(frozen=True)
class _Conv:
    """A convolution with the input that it got."""

    name: str
    module: ConvNd
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    def kind(self) -> tuple[Any, ...]:
        """What is equal for convolutions that take equally long."""
        m = self.module
        return (self.shape, self.dtype, m.weight.shape, m.stride, m.padding, m.dilation, m.groups)


class ConvWatch:
    """Hooks on convolutions and norms for some steps; the examiner installs and removes them."""

    def __init__(self, roots: Sequence[nn.Module]) -> None:
        self._roots = roots
        self._hooks: list[RemovableHandle] = []
        self._outputs: list[tuple[ref[torch.Tensor], int, _Conv]] = []
        self._found: dict[int, _Conv] = {}

    def install(self) -> None:
        """Hang hooks on the modules."""
        for root in self._roots:
            for name, module in root.named_modules():
                if isinstance(module, ConvNd) and module.bias is not None and _can_time(module):
                    self._hooks.append(module.register_forward_hook(self._noting(name)))
                elif isinstance(module, NormBase):
                    self._hooks.append(module.register_forward_pre_hook(self._look))

    def remove(self) -> None:
        """Take the hooks off again."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._outputs.clear()

    def found(self) -> BiasedConvs | None:
        """Return the convolutions and what their biases cost; None if there are none."""
        convs = [*self._found.values()]
        if not convs:
            return None
        names = tuple(conv.name or type(conv.module).__name__ for conv in convs[:MAX_NAMED])
        return BiasedConvs(names, len(convs), _biases_s(convs))

    def _noting(self, name: str) -> Any:
        def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, torch.Tensor) and isinstance(module, ConvNd) and inputs:
                given = inputs[0]
                conv = _Conv(name, module, given.shape, given.dtype, given.device)
                self._outputs.append((ref(output), output._version, conv))  # noqa: SLF001

        return note

    def _look(self, norm: nn.Module, inputs: tuple[Any, ...]) -> None:
        subtracts = norm.training or (
            isinstance(norm, InstanceNorm) and not norm.track_running_stats
        )
        if not subtracts or not inputs:
            return
        for output, version, conv in self._outputs:
            # Another version was changed in place between the two, as by an in-place ReLU
            tensor = output()
            if tensor is not None and tensor is inputs[0] and tensor._version == version:  # noqa: SLF001
                self._found[id(conv.module)] = conv


def _can_time(module: ConvNd) -> bool:
    """Return whether the layer can be called without its bias; transposed ones cannot."""
    return type(module)._conv_forward is not ConvNd._conv_forward  # noqa: SLF001


def _biases_s(convs: Sequence[_Conv]) -> float:
    """Return the seconds that a step spends on the biases of convolutions.

    Each kind is run forward and backward with its bias and without, in turns.
    """
    counts: dict[tuple[Any, ...], list[_Conv]] = {}
    for conv in convs:
        counts.setdefault(conv.kind, []).append(conv)
    total, until = 0.0, perf_counter() + MOST_S
    for alike in counts.values():
        if perf_counter() > until:
            break
        with suppress(RuntimeError):  # such as out of memory: then its share is not known
            total += len(alike) * _bias_s(alike[0])
    return total


def _bias_s(conv: _Conv) -> float:
    module = conv.module
    with torch.enable_grad():
        x = torch.randn(conv.shape, dtype=conv.dtype, device=conv.device, requires_grad=True)
        weight = module.weight.detach().to(conv.dtype).requires_grad_()
        assert module.bias is not None, "only such convolutions are watched"
        bias = module.bias.detach().to(conv.dtype).requires_grad_()
        took: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * ROUNDS + 2):
            has_bias = number % 2 == 0
            began = perf_counter()
            out = module._conv_forward(x, weight, bias if has_bias else None)  # noqa: SLF001
            out.backward(torch.ones_like(out))
            if conv.device.type != "cpu":
                torch.accelerator.synchronize()
            if number >= 2:
                took[has_bias].append(perf_counter() - began)
    return max(0.0, median(took[True]) - median(took[False]))
