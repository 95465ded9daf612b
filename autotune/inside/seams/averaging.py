"""The seam that averages gradients of single parameters over the ranks, after each backward pass.

It is used where the strategy (such as DDP) does not average:

- in the first step, when it is not yet known which parameters get gradients;
- for parameters that no called model owns: those outside of modules, and those of models and
  parameter groups that are added later;
- for models with parts that are frozen at first and trained later;
- for models that several backward passes reach after one call, because DDP averages only in the
  first of these passes.

All ranks go through the same list in the same order, because each collective call must meet its
counterparts. A gradient that only some ranks have counts as zero on the others. Averaging a
gradient a second time does not change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import distributed, nn

from autotune.inside.hubs.backward import BackwardListener, BackwardPass
from autotune.inside.ranks.dtensor import is_sharded
from autotune.inside.ranks.group import Group
from autotune.inside.seams.accumulation import AccumulationSeam


class Reached:
    """Counts how many backward passes reach the parameters of one model.

    The averaging seam makes one for each model that it watches, and calls it around each outermost
    backward pass, on the thread that runs the pass. The distribution seam resets ``passes`` when
    the model is called.

    Attributes:
        parameters: The parameters that are watched.
        passes: Number of passes that reached them since the model was last called.
        several: More than one pass has ever reached them after one call.
        is_left: The strategy averages their gradients; this seam acts only on further passes after
            one call.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self.passes = 0
        self.several = False
        self.is_left = False
        self._before: list[tuple[int, int]] = []

    def note(self) -> None:
        """Note the gradients before a backward pass."""
        self._before = self._gradients()

    def compare(self) -> None:
        """Count the backward pass that has just ended, if it changed a gradient.

        Which models a pass reaches is the same on all ranks, so all of them count alike.
        """
        self.passes += self._gradients() != self._before
        self.several = self.several or self.passes > 1

    def _gradients(self) -> list[tuple[int, int]]:
        # Version counters show a change without reading values, which would sync the device.
        return [(id(p.grad), p.grad._version) for p in self.parameters if p.grad is not None]  # noqa: SLF001


class AveragingSeam(BackwardListener):
    """Averages the gradients of parameters that it was given, until the strategy takes over.

    The distribution seam owns it and decides which parameters are averaged here. Averaging takes
    place at the end of each outermost backward pass, on the thread that called it; micro-batches
    whose step is held back are not averaged.

    Args:
        group: The processes that train together.
        accumulation: Tells which micro-batches make no step.
    """

    def __init__(self, group: Group, accumulation: AccumulationSeam) -> None:
        self._group = group
        self._accumulation = accumulation
        self._alone: list[nn.Parameter] = []  # strong references: all ranks must keep the same
        self._models: list[Reached] = []

    def before_backward(self, call: BackwardPass) -> None:  # noqa: ARG002
        """Note the gradients before a pass."""
        for model in self._models:
            model.note()

    def after_backward(self, call: BackwardPass) -> None:  # noqa: ARG002
        """Average what a pass has computed."""
        for model in self._models:
            model.compare()
        if self._accumulation.holds:
            return
        self._average(self._alone)
        for model in self._models:
            if model.is_left and model.passes > 1:
                self._average(model.parameters)

    def forget(self) -> None:
        """Forget all parameters."""
        self._alone.clear()
        self._models.clear()

    def add(self, parameters: Iterable[nn.Parameter], owned: Iterable[nn.Parameter]) -> None:
        """Average also these parameters, as far as no called model owns them.

        Those that are new here get the first rank's values. Parameters that a strategy has
        sharded are left to it.

        Args:
            parameters: All that optimizers train.
            owned: The parameters of called models.
        """
        known = {id(p) for p in (*self._alone, *owned)}
        for parameter in parameters:
            if not is_sharded(parameter) and id(parameter) not in known:
                send_out(parameter)
                self._alone.append(parameter)

    def drop(self, parameters: Iterable[nn.Parameter]) -> None:
        """Stop averaging these parameters, which a strategy is about to replace."""
        self._alone = _without(self._alone, parameters)

    def watch(self, parameters: Sequence[nn.Parameter]) -> Reached:
        """Average the parameters of a model from here on, and count its backward passes.

        The ranks must already have equal values of them.
        """
        model = Reached(parameters)
        self._models.append(model)
        self.hold(model)
        return model

    def hold(self, model: Reached) -> None:
        """Average the gradients of a model here again, one by one."""
        model.is_left = False
        self._alone = [*_without(self._alone, model.parameters), *model.parameters]

    def release(self, model: Reached) -> None:
        """Leave the gradients of a model to the strategy.

        Second and later backward passes after one call are still averaged here.
        """
        model.is_left = True
        self._alone = _without(self._alone, model.parameters)

    def _average(self, parameters: Sequence[nn.Parameter]) -> None:
        trained = [p for p in parameters if p.requires_grad]
        if not trained:
            return
        device = trained[0].device
        # A rank without a gradient must take part as well, else the others wait for it.
        has = torch.tensor([p.grad is not None for p in trained], dtype=torch.uint8, device=device)
        distributed.all_reduce(has, distributed.ReduceOp.MAX)
        for parameter, is_there in zip(trained, has.tolist(), strict=True):
            if not is_there:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad)
            parameter.grad /= self._group.world_size


def send_out(tensor: torch.Tensor) -> None:
    """Overwrite a tensor on all ranks with the first rank's values."""
    tensor = tensor.detach()
    distributed.broadcast(tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor, 0)


def _without(
    parameters: Iterable[nn.Parameter], gone: Iterable[nn.Parameter]
) -> list[nn.Parameter]:
    ids = {id(p) for p in gone}
    return [p for p in parameters if id(p) not in ids]
