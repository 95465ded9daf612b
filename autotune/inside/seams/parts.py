"""Measures how much time of a step each of its parts takes: loading, transfer, compute, and others.

The seam is installed for a few steps only, because it slows down each patched call.

Not covered: work on other threads, and waiting for the device other than by the calls in SYNCS.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autotune.inside.hubs import Hubs
from autotune.inside.hubs.backward import BackwardListener, BackwardPass
from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.hubs.step import StepListener
from autotune.inside.seams.forward import ForwardSeam
from autotune.inside.seams.transfer import target_of_cuda, target_of_to
from autotune.inside.turns import Edges
from autotune.measurement.examination import StepParts

# Methods of Tensor that need its values on the host, so they wait for the device.
SYNCS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__")


class Part(StrEnum):
    """The parts of a step, as ``StepParts`` describes them; each moment belongs to one of them."""

    WAIT = "wait"
    TRANSFER = "transfer"
    COMPUTE = "compute"
    OPTIMIZER = "optimizer"
    SYNC = "sync"
    OVERHEAD = "overhead"


class PartsClock:
    """Assigns every moment of the thread that trains to exactly one part.

    The step breakdown starts and stops it for each step; ``PartsSeam`` and the step tracker report
    where the program is. A step has a current phase: overhead until the model is called, compute
    until the end of backward, optimizer until the end of the optimizer's step. Calls with a part of
    their own, such as a transfer, interrupt the phase.

    On a GPU *edges* mark each change, and the time between them on the device counts: waiting on
    the host costs nothing while the device still has work in its queue.
    """

    def __init__(self, edges: Edges) -> None:
        self._edges = edges
        self._ground = Part.OVERHEAD
        self._calls: list[Part] = []
        self._is_running = False
        self._now = Part.OVERHEAD
        self._since = 0.0
        self._host: dict[Part, float] = {}
        self._marks: list[tuple[Part, Any]] = []
        self._steps: list[dict[Part, float]] = []
        self._kept_marks: list[list[tuple[Part, Any]]] = []

    @property
    def steps(self) -> int:
        """Number of steps that were kept."""
        return len(self._steps)

    def start(self) -> None:
        """Begin a step, in the overhead phase."""
        self._ground, self._calls = Part.OVERHEAD, []
        self._host, self._marks = defaultdict(float), []
        self._is_running = True
        self._since = perf_counter()
        self._change()

    def stop(self, *, keep: bool) -> None:
        """End the step.

        Args:
            keep: Whether the step counts. One in which the program did something else is dropped.
        """
        self._change()
        self._is_running = False
        if keep:
            self._steps.append(self._host)
            self._kept_marks.append(self._marks)

    def asked(self) -> None:
        """Note that the program requests its next batch; ends the previous batch's phases."""
        self.ground(Part.OVERHEAD)
        self.enter(Part.WAIT)

    def ground(self, part: Part) -> None:
        """Set the phase of the step: the part that counts between ``enter()`` and ``leave()``."""
        if self._ground is not part:
            self._ground = part
            self._change()

    def enter(self, part: Part) -> None:
        """Note that a call begins which belongs to *part*; calls may be nested.

        Within a request for a batch, everything counts as waiting, also transfers by the loader.
        """
        self._calls.append(Part.WAIT if Part.WAIT in self._calls else part)
        self._change()

    def leave(self) -> None:
        """Note that the call of the last ``enter()`` has ended."""
        if self._calls:
            self._calls.pop()
            self._change()

    def split(self) -> StepParts | None:
        """Return the parts of the mean step, in seconds; None if no step was kept.

        With events it waits for the device. The launch time is then the host's time for compute and
        optimizer: what the program needs to queue the work.
        """
        if not self._steps:
            return None
        host, launch_s = _mean(self._steps), None
        times = host
        if self._edges.run_ahead:
            self._edges.settle()
            times = _mean([self._on_device(marks) for marks in self._kept_marks])
            launch_s = host[Part.COMPUTE] + host[Part.OPTIMIZER]
        parts = {f"{part}_s": times[part] for part in Part}
        return StepParts(**parts, steps=len(self._steps), launch_s=launch_s)

    def _change(self) -> None:
        if not self._is_running:
            return
        now = perf_counter()
        self._host[self._now] += now - self._since
        self._now = self._calls[-1] if self._calls else self._ground
        self._since = now
        if self._edges.run_ahead:
            self._marks.append((self._now, self._edges.mark()))

    def _on_device(self, marks: list[tuple[Part, Any]]) -> dict[Part, float]:
        times: dict[Part, float] = defaultdict(float)
        for (part, begin), (_, end) in pairwise(marks):
            times[part] += self._edges.seconds_between(begin, end)
        return times


class PartsSeam(Seam, BackwardListener, StepListener):
    """Tells a clock which part of the step the program is in.

    The patched methods run on the thread that trains.
    """

    def __init__(self, clock: PartsClock, forward: ForwardSeam, hubs: Hubs) -> None:
        self._clock = clock
        self._hubs = hubs
        self._forward = forward
        self._patches = Patches()

    def install(self) -> None:
        """Patch model calls, backward, transfers, synchronizing calls and ``zero_grad``."""
        self._forward.install(partial(_as_model, clock=self._clock))
        self._time(Optimizer, "zero_grad", Part.OPTIMIZER)
        self._time(torch.cuda, "synchronize", Part.SYNC)
        for name, target_of in (("to", target_of_to), ("cuda", target_of_cuda)):
            self._time(torch.Tensor, name, Part.TRANSFER, partial(_moves, target_of))
        for name in SYNCS:
            self._time(torch.Tensor, name, Part.SYNC, _is_on_device)
        self._hubs.backward.join(self)
        self._hubs.steps.join(self)

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._hubs.steps.leave(self)
        self._hubs.backward.leave(self)
        self._patches.undo()
        self._forward.install()

    def before_backward(self, call: BackwardPass) -> None:  # noqa: ARG002
        """A backward pass computes."""
        self._clock.ground(Part.COMPUTE)

    def after_backward(self, call: BackwardPass) -> None:  # noqa: ARG002
        """What follows a backward pass belongs to the optimizer."""
        self._clock.ground(Part.OPTIMIZER)

    def before_step(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """An optimizer steps."""
        self._clock.ground(Part.OPTIMIZER)

    def after_step(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """What follows a step is the program's own."""
        self._clock.ground(Part.OVERHEAD)

    def _time(
        self, owner: Any, name: str, part: Part, counts: Callable[..., bool] = lambda *_, **__: True
    ) -> None:
        """Have the calls of a function for which *counts* returns True belong to a part."""

        def timed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not counts(*args, **kwargs):
                return original(*args, **kwargs)
            self._clock.enter(part)
            try:
                return original(*args, **kwargs)
            finally:
                self._clock.leave()

        self._patches.wrap(owner, name, timed)


def _as_model(original: Callable[..., Any], clock: PartsClock) -> Callable[..., Any]:
    """Return a model call that starts the compute phase, which lasts until the end of backward.

    With gradients disabled there is no backward, so only the call itself counts as compute.
    """

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


def _is_on_device(tensor: torch.Tensor, *_: Any, **__: Any) -> bool:
    """Tell whether reading a tensor waits; optimizers read step counts from tensors on the CPU."""
    return tensor.device.type != "cpu"


def _moves(
    target_of: Callable[..., tuple[str, bool]], tensor: torch.Tensor, *args: Any, **kwargs: Any
) -> bool:
    return target_of(*args, **kwargs)[0] not in {"", tensor.device.type}


def _mean(steps: list[dict[Part, float]]) -> dict[Part, float]:
    return {part: sum(step.get(part, 0.0) for step in steps) / len(steps) for part in Part}
