"""Counts the operators that a step calls, and measures what calling one costs the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WIDTH, LAYERS, ROUNDS = 2, 20, 15


class OperatorCount(TorchDispatchMode):
    """Counts operators while it is entered, whatever thread computes gradients.

    Views and other operators that compute nothing count as well: the host has to call them, too.
    Those of data loading do not.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0
        self._is_loading = False

    def asked(self) -> None:
        """Note that the program requests its next batch."""
        self._is_loading = True

    def leave(self) -> None:
        """Note that it got the batch."""
        self._is_loading = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the operator, and count it."""
        self.calls += not self._is_loading
        return func(*args, **(kwargs or {}))


def call_s(device: str) -> float:
    """Return the seconds that the host needs to call an operator with almost nothing to compute.

    The median over steps of a tiny model: its operators are counted in the same way, and its steps
    contain gradients and updates, as any training does. It has no module and no optimizer, so that
    nothing takes it for a part of the program, and it draws no random numbers. On a GPU it is the
    launch alone: nobody waits for the result.
    """
    weights = [torch.zeros(WIDTH, WIDTH, device=device, requires_grad=True) for _ in range(LAYERS)]
    biases = [torch.zeros(WIDTH, device=device, requires_grad=True) for _ in range(LAYERS)]
    parameters, given = [*weights, *biases], torch.zeros(1, WIDTH, device=device)

    def step() -> None:
        hidden = given
        for weight, bias in zip(weights, biases, strict=True):
            hidden = torch.nn.functional.linear(hidden, weight, bias)
        gradients = torch.autograd.grad(hidden.sum(), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(gradient, alpha=0.0)

    with torch.enable_grad():
        step()
        with OperatorCount() as counter:
            step()
        took = []
        for _ in range(ROUNDS):
            began = perf_counter()
            step()
            took.append(perf_counter() - began)
    return float(median(took) / counter.calls)
