"""The seam at the parts of a step; installed for a few steps, to tell where their time goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from enum import StrEnum
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autotune.inside.seams.base import Patches, Seam
from autotune.inside.seams.optimizer import OptimizerSeam
from autotune.measurement.measurement import StepParts

SYNCS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__")


class Part(StrEnum):
    """What the program is at."""

    WAIT = "wait"
    TRANSFER = "transfer"
    COMPUTE = "compute"
    OPTIMIZER = "optimizer"
    SYNC = "sync"
    OVERHEAD = "overhead"


class PartsClock:
    """Gives every moment of the main thread to exactly one part.

    The ground part changes in the course of a step: overhead until the model is called, compute
    until the end of backward, optimizer until the end of its step. Calls that are parts of their
    own interrupt it. On a GPU an event is recorded at each change, and what counts is the time
    between events on the device: while it still works on what is queued, the host waits for free.
    """

    def __init__(self, *, with_events: bool) -> None:
        self._with_events = with_events
        self._ground = Part.OVERHEAD
        self._calls: list[Part] = []
        self._is_running = False
        self._now = Part.OVERHEAD
        self._since = 0.0
        self._host: dict[Part, float] = {}
        self._marks: list[tuple[Part, torch.cuda.Event]] = []
        self._steps: list[dict[Part, float]] = []
        self._kept_marks: list[list[tuple[Part, torch.cuda.Event]]] = []

    @property
    def steps(self) -> int:
        """Whole steps that were kept."""
        return len(self._steps)

    def start(self) -> None:
        """Begin a step."""
        self._ground, self._calls = Part.OVERHEAD, []
        self._host, self._marks = defaultdict(float), []
        self._is_running = True
        self._since = perf_counter()
        self._change()

    def stop(self, *, keep: bool) -> None:
        """End the step, and count it or not."""
        self._change()
        self._is_running = False
        if keep:
            self._steps.append(self._host)
            self._kept_marks.append(self._marks)

    def asked(self) -> None:
        """The program asks for its next batch; what the one before was for is over."""
        self.ground(Part.OVERHEAD)
        self.enter(Part.WAIT)

    def ground(self, part: Part) -> None:
        """Say what the step is at from here on, between calls of their own."""
        if self._ground is not part:
            self._ground = part
            self._change()

    def enter(self, part: Part) -> None:
        """A call begins that is a part of its own; all that a loader does here is waiting."""
        is_loading = Part.WAIT in self._calls
        self._calls.append(Part.WAIT if is_loading else part)
        self._change()

    def leave(self) -> None:
        """The call has ended."""
        if self._calls:
            self._calls.pop()
            self._change()

    def split(self) -> StepParts | None:
        """Return the mean step, None when none was kept."""
        if not self._steps:
            return None
        host = _mean(self._steps)
        launch_s = None
        times = host
        if self._with_events:
            torch.cuda.synchronize()
            times = _mean([_on_device(marks) for marks in self._kept_marks])
            launch_s = host[Part.COMPUTE] + host[Part.OPTIMIZER]
        return StepParts(
            wait_s=times[Part.WAIT],
            transfer_s=times[Part.TRANSFER],
            compute_s=times[Part.COMPUTE],
            optimizer_s=times[Part.OPTIMIZER],
            sync_s=times[Part.SYNC],
            overhead_s=times[Part.OVERHEAD],
            steps=len(self._steps),
            launch_s=launch_s,
        )

    def _change(self) -> None:
        if not self._is_running:
            return
        now = perf_counter()
        self._host[self._now] += now - self._since
        self._now = self._calls[-1] if self._calls else self._ground
        self._since = now
        if self._with_events:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((self._now, event))


class PartsSeam(Seam):
    """Tells a clock which part of its step the program is at.

    Args:
        clock: What counts the time.
        roots: The outermost modules that are trained.
        optimizer_seam: Tells when an optimizer steps.
    """

    def __init__(
        self, clock: PartsClock, roots: Iterable[nn.Module], optimizer_seam: OptimizerSeam
    ) -> None:
        self._clock = clock
        self._optimizer_seam = optimizer_seam
        self._classes = {type(root) for root in roots}
        self._patches = Patches()

    def install(self) -> None:
        """Begin to tell."""
        clock = self._clock
        for cls in self._classes:
            self._patches.replace(cls, "__call__", _as_model(cls.__call__, clock))
        backward = torch.Tensor.backward
        self._patches.replace(torch.Tensor, "backward", _as_backward(backward, clock))
        self._time(Optimizer, "zero_grad", Part.OPTIMIZER)
        for name in ("to", "cuda"):
            original = getattr(torch.Tensor, name)
            self._patches.replace(torch.Tensor, name, _as_transfer(original, clock))
        for name in SYNCS:
            original = getattr(torch.Tensor, name)
            self._patches.replace(torch.Tensor, name, _as_sync(original, clock))
        self._time(torch.cuda, "synchronize", Part.SYNC)
        self._optimizer_seam.watch(
            lambda: clock.ground(Part.OPTIMIZER), lambda: clock.ground(Part.OVERHEAD)
        )

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._optimizer_seam.unwatch()
        self._patches.undo()

    def _time(self, owner: Any, name: str, part: Part) -> None:
        original, clock = getattr(owner, name), self._clock

        def timed(*args: Any, **kwargs: Any) -> Any:
            clock.enter(part)
            try:
                return original(*args, **kwargs)
            finally:
                clock.leave()

        self._patches.replace(owner, name, timed)


def _as_model(original: Callable[..., Any], clock: PartsClock) -> Callable[..., Any]:
    """Training: compute from here to the end of backward. Else: compute for the call alone."""

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            clock.ground(Part.COMPUTE)
            return original(module, *args, **kwargs)
        clock.enter(Part.COMPUTE)
        try:
            return original(module, *args, **kwargs)
        finally:
            clock.leave()

    return call


def _as_backward(original: Callable[..., Any], clock: PartsClock) -> Callable[..., Any]:
    def backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        clock.ground(Part.COMPUTE)
        original(tensor, *args, **kwargs)
        clock.ground(Part.OPTIMIZER)

    return backward


def _as_transfer(original: Callable[..., Any], clock: PartsClock) -> Callable[..., Any]:
    def move(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not _moves(tensor, original.__name__, args, kwargs):
            return original(tensor, *args, **kwargs)
        clock.enter(Part.TRANSFER)
        try:
            return original(tensor, *args, **kwargs)
        finally:
            clock.leave()

    return move


def _as_sync(original: Callable[..., Any], clock: PartsClock) -> Callable[..., Any]:
    """Nothing waits for a tensor on the CPU; optimizers read their step counts from such."""

    def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.device.type == "cpu":
            return original(tensor, *args, **kwargs)
        clock.enter(Part.SYNC)
        try:
            return original(tensor, *args, **kwargs)
        finally:
            clock.leave()

    return read


def _moves(tensor: torch.Tensor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether ``to`` or ``cuda`` takes a tensor to another kind of device."""
    if name == "cuda":
        return tensor.device.type != "cuda"
    target = kwargs.get("device", kwargs.get("other", args[0] if args else None))
    match target:
        case torch.Tensor():
            kind = target.device.type
        case torch.device():
            kind = target.type
        case str():
            kind = target.partition(":")[0]
        case int() if not isinstance(target, bool):
            kind = "cuda"
        case _:
            return False
    return kind != tensor.device.type


def _on_device(marks: list[tuple[Part, torch.cuda.Event]]) -> dict[Part, float]:
    times: dict[Part, float] = defaultdict(float)
    for (part, begin), (_, end) in pairwise(marks):
        times[part] += begin.elapsed_time(end) / 1000
    return times


def _mean(steps: list[dict[Part, float]]) -> dict[Part, float]:
    return {part: sum(step.get(part, 0.0) for step in steps) / len(steps) for part in Part}
