"""Counts the operators that a step calls, and measures what calling one costs the host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from time import perf_counter, thread_time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.machine.probes.host_load import queued_s

WIDTH, LAYERS = 2, 20
TIMED_S = 0.1  # some 200 steps, on 2 cores


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


class Stopwatch:
    """Seconds of the calling thread, but for those in which others had the core that it wanted."""

    def __init__(self) -> None:
        self._task = Path(f"/proc/self/task/{threading.get_native_id()}")
        self._began_s, self._queued_s = perf_counter(), queued_s(self._task)

    def read(self) -> tuple[float, float]:
        """Return the seconds so far: without waiting for a core, and all of them."""
        every_s = perf_counter() - self._began_s
        return every_s - (queued_s(self._task) - self._queued_s), every_s


def call_s(device: str, between: Callable[[], object] = lambda: None) -> float:
    """Return the seconds that the host needs to call an operator with almost nothing to compute.

    The mean over steps of a tiny model: its operators are counted in the same way, and its steps
    contain gradients and updates, as any training does. It has no module and no optimizer, so that
    nothing takes it for a part of the program, and it draws no random numbers. On a GPU it is the
    launch alone: nobody waits for the result meanwhile.

    Args:
        between: Called between steps, which it does not count for.
    """
    weights = [torch.zeros(WIDTH, WIDTH, device=device, requires_grad=True) for _ in range(LAYERS)]
    biases = [torch.zeros(WIDTH, device=device, requires_grad=True) for _ in range(LAYERS)]
    # On a GPU, gradients are launched by another thread, for which this one waits
    clock = thread_time if device == "cpu" else perf_counter
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
        took, began = list[float](), perf_counter()
        while len(took) < 2 or perf_counter() - began < TIMED_S:
            between()
            if device == "cuda":  # else its queue is full at some time, and the host waits
                torch.cuda.synchronize()
            began_s = clock()
            step()
            took.append(clock() - began_s)
    return float(fmean(took) / counter.calls)
