"""Find out what a training loop does by hand to parameters, gradients and running averages.

Knobs that change when the optimizer steps would make such work wrong, for example a clipping
written by hand that then sees only a part of the gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch.optim import Optimizer

from autotune.program.profile import HandKind

# Repeating these calls does not change a parameter further. So they are harmless while accumulation
# holds back the optimizer's steps, because nothing else changes the parameter in between.
REPEATABLE = {"clamp_", "clamp_min_", "clamp_max_", "clip_", "zero_", "fill_", "masked_fill_"}
CHANGES_NO_VALUE = {"requires_grad_", "detach_", "share_memory_", "rename_"}
CHANGES = {
    "__setitem__",
    "__iadd__",
    "__isub__",
    "__imul__",
    "__itruediv__",
    "__idiv__",
    "__ipow__",
}
GRAD: Any = torch.Tensor.grad
DATA: Any = torch.Tensor.data
SETS_GRAD, SETS_DATA = GRAD.__set__, DATA.__set__


@dataclass(frozen=True)
class _Mark:
    """A note on a storage that the loop has made.

    Attributes:
        tensor: The tensor. While it lives, the storage's id cannot belong to another storage.
        step: The step in which it was made.
        since: The earliest step whose parameters or gradients went into it; None if none did.
    """

    tensor: ref[torch.Tensor]
    step: int
    since: int | None


class Ledger:
    """Classifies the tensor calls that a training loop makes, from step to step.

    The loop-watch seam calls it during the first, untouched steps on the thread that trains, after
    each call that the loop itself makes. It tracks storages, because views share one.
    """

    def __init__(self) -> None:
        self._step = 0
        self._marks: dict[int, _Mark] = {}
        self._parameters: set[int] = set()
        self._gradients: set[int] = set()

    def next_step(self) -> None:
        """Count the end of a step, so that what earlier steps made can be recognised."""
        self._step += 1

    def know(self, optimizers: Iterable[Optimizer]) -> None:
        """Look up in which storages the parameters and gradients are now.

        Gradients get new storages after each ``zero_grad()``.
        """
        groups = (group for optimizer in optimizers for group in optimizer.param_groups)
        parameters = [p for group in groups for p in group["params"]]
        self._parameters = {_storage(p) for p in parameters}
        self._gradients = {_storage(p.grad) for p in parameters if p.grad is not None}

    def is_trained(self, tensor: torch.Tensor) -> bool:
        """Return whether an optimizer updates a tensor, or another view of its storage.

        The answer holds as of the last ``know()``.
        """
        return _storage(tensor) in self._parameters

    def judge(
        self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> HandKind | None:
        """Return what kind of work a call was; None for calls that do not matter.

        Args:
            call: The function or method of torch.
            args: Its arguments, after the call: in-place changes are done.
            kwargs: Its keyword arguments.
            result: What it returned.
        """
        if call == SETS_GRAD:
            is_made = args[1] is not None and self.is_trained(args[0])
            return HandKind.GRADIENTS if is_made else None
        if call == SETS_DATA:
            return self._judge_data(args[0], args[1])
        name = getattr(call, "__name__", "")
        changed = list(_changed(name, args, kwargs))
        operands = [
            t for t in _tensors((*args, *kwargs.values())) if all(t is not c for c in changed)
        ]
        if changed:
            return self._judge_change(name, changed, operands)
        return self._follow(list(_tensors((result,))), operands)

    def _judge_data(self, target: torch.Tensor, value: torch.Tensor) -> HandKind | None:
        """Judge ``target.data = value``, after which the target has the value's storage."""
        if _storage(value) in self._parameters:
            return None  # the value is a parameter's present data
        if target.requires_grad and target.is_leaf:
            return HandKind.PARAMETERS
        return None if self._since(value) is None else HandKind.KEPT

    def _judge_change(
        self, name: str, changed: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]
    ) -> HandKind | None:
        """Judge a call that changes tensors in place.

        Changing a gradient matters, and so does changing a parameter, unless the call is
        repeatable. Adding values derived from parameters or gradients to a tensor of an earlier
        step is a running average.
        """
        if name in CHANGES_NO_VALUE:
            return None
        storages = {_storage(tensor) for tensor in changed}
        if storages & self._gradients:
            return HandKind.GRADIENTS
        if storages & self._parameters:
            return None if name in REPEATABLE else HandKind.PARAMETERS
        since = self._earliest(operands)
        kept = [t for t in changed if t.numel() > 1 and not t.requires_grad and not self._is_new(t)]
        if since is not None and kept:
            return HandKind.KEPT
        self._mark([t for t in changed if self._is_new(t)], since)
        return None

    def _follow(
        self, made: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]
    ) -> HandKind | None:
        """Mark new tensors that are computed from parameters or gradients.

        Returns:
            ``KEPT`` if a tensor kept from an earlier step goes into the computation together with a
            value of this step.
        """
        there = {_storage(operand) for operand in operands}  # results in these are views
        values = [t for t in made if not t.requires_grad and t.numel() > 1]
        values = [t for t in values if _storage(t) not in there]
        since = self._earliest(operands)
        self._mark(values, since)
        is_now = any(self._since(operand) == self._step for operand in operands)
        return HandKind.KEPT if values and is_now and since != self._step else None

    def _mark(self, tensors: Iterable[torch.Tensor], since: int | None) -> None:
        """Note storages that this step made, with the earliest step that went into them."""
        for tensor in tensors:
            storage = _storage(tensor)
            mark = self._marks.get(storage)
            if mark is None or mark.tensor() is None:
                self._marks[storage] = _Mark(ref(tensor), self._step, since)
            elif since is not None and mark.since is None:
                self._marks[storage] = _Mark(mark.tensor, mark.step, since)

    def _earliest(self, tensors: Iterable[torch.Tensor]) -> int | None:
        """Return the earliest step whose parameters or gradients went into any of the tensors."""
        return min((s for t in tensors if (s := self._since(t)) is not None), default=None)

    def _since(self, tensor: torch.Tensor) -> int | None:
        """Return the earliest step whose parameters or gradients went into a tensor, if any did."""
        if tensor.numel() <= 1:
            return None
        storage = _storage(tensor)
        if storage in self._parameters or storage in self._gradients:
            return self._step
        mark = self._marks.get(storage)
        return None if mark is None or mark.tensor() is None else mark.since

    def _is_new(self, tensor: torch.Tensor) -> bool:
        """Return whether the loop has made a tensor in the present step."""
        mark = self._marks.get(_storage(tensor))
        return mark is not None and mark.tensor() is not None and mark.step == self._step


def _changed(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that a call changes: ``out``, or an in-place call's first argument."""
    if "out" in kwargs:
        yield from _tensors((kwargs["out"],))
    elif name in CHANGES or (name.endswith("_") and not name.endswith("__")):
        yield from _tensors(args[:1])


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among some values, and in lists and tuples among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (part for part in value if isinstance(part, torch.Tensor))


def _storage(tensor: torch.Tensor) -> int:
    """Return an id of a tensor's storage, valid while the storage lives.

    Tensors without a storage, such as sparse ones, are identified by themselves.
    """
    try:
        return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - nothing public tells it
    except (RuntimeError, NotImplementedError, AttributeError, TypeError):
        return id(tensor)
