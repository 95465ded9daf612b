"""Observes for two steps what the training loop does to weights and gradients with its own code.

Such work (a moving average of weights, gradients changed by hand, a schedule stepped per batch)
could go wrong when a config changes what a step is, so knobs need to know of it. Two steps that run
without any change by autotune are observed under a ``TorchFunctionMode``, which sees each call of
torch that the loop itself makes. The mode is taken off during module calls, backward passes,
``zero_grad``, optimizer steps and the loading of batches, and does not change any result. Changes
that a model makes to its frozen parameters while it is called (MoCo's key encoder) are detected by
comparing these before and after the call.

Not covered: programs that compile anything, because the mode would be compiled into their code;
actions that happen less often than in every second step; changes of trained weights within a
``forward``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn, overrides
from torch._C import _len_torch_function_stack
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._device import DeviceContext
from torch.utils.data import DataLoader, dataloader

from autotune.inside.code.hand_work import SETS_DATA, SETS_GRAD, Ledger
from autotune.inside.code.own_code import is_shown, place_of_hand_work, place_of_program
from autotune.inside.compiled import frames_compiled
from autotune.inside.seams.base import Patches, Seam, outermost
from autotune.program.profile import HandKind, HandWork

MAX_FROZEN = 16  # frozen parameters that are compared, spread evenly over a model
MAX_VALUES = 64  # values that are compared of each
WINDOWS = 2  # the intervals between the first three steps
# Findings that count only if they occur in every window. A scheduler that steps once may do so
# because an epoch ends there.
HABITS = {HandKind.RATE, HandKind.SCHEDULE, HandKind.THROWN, HandKind.PASSES}
NAMES = {SETS_GRAD: ".grad =", SETS_DATA: ".data ="}


class LoopWatchSeam(Seam):
    """Watches the program's loop between the first optimizer step and the third.

    ``SeamSet`` installs it before the program starts, calls ``begin()`` in the first step, and then
    has the optimizer seam call ``before_step()`` and ``after_step()``. These run on the thread that
    trains. Calls on other threads are ignored, because a background thread is not the loop.

    Args:
        optimizers: Returns the living optimizers.
        schedulers: Returns the living schedulers.
    """

    def __init__(
        self,
        optimizers: Callable[[], Iterable[Optimizer]],
        schedulers: Callable[[], Iterable[LRScheduler]],
    ) -> None:
        self._optimizers, self._schedulers = optimizers, schedulers
        self._patches, self._lengths = Patches(), Patches()
        self._mode = _Mode(self._called)
        self._ledger = Ledger()
        self._is_on = False
        self._thread = 0
        self._depth = 0  # nesting of calls during which the mode is off
        self._is_in_step = False
        self._phase = ""
        self._windows = 0
        self._passes = [0, 0]  # backward passes outside of the optimizer's step, and within it
        self._rates: list[float] = []
        self._epochs: dict[int, int] = {}
        self._found: dict[HandWork, set[int]] = {}
        self._horizons: dict[str, float] = {}
        self._asked: WeakKeyDictionary[DataLoader[Any], tuple[int, str]] = WeakKeyDictionary()
        # Datasets (by id) whose length was read by code other than a progress bar, which may have
        # planned a schedule by it.
        self._known_length: set[int] = set()

    def install(self) -> None:
        """Note until the first step where the program reads the length of its loaders.

        A schedule planned by that length becomes wrong if a config changes the number of steps.
        """
        original = DataLoader.__len__
        seam = self

        def length(loader: DataLoader[Any]) -> int:
            batches = original(loader)
            caller = sys._getframe(1)  # noqa: SLF001
            if not is_shown(caller):
                seam._known_length.add(id(loader.dataset))
            place = place_of_program(caller)
            if place and loader not in seam._asked:
                seam._asked[loader] = batches, place
            return batches

        self._lengths.replace(DataLoader, "__len__", length)

    def begin(self) -> None:
        """Start to observe the loop; called while the first optimizer step ends.

        Does nothing in a process that has compiled code.
        """
        self._lengths.undo()
        if self._is_on or frames_compiled():
            return
        self._is_on, self._depth, self._thread = True, 1, get_ident()
        self._watch_models()
        self._take_off_for(nn.Module, "__call__")
        self._take_off_for(torch.Tensor, "backward")
        self._take_off_for(dataloader._BaseDataLoaderIter, "__next__")  # noqa: SLF001
        self._take_off_for(DataLoader, "_get_iterator")  # else forked workers inherit the mode
        self._watch_backward()
        for owner in (Optimizer, nn.Module):
            self._watch_clearing(owner)

    def before_step(self) -> None:
        """Compare learning rates and schedulers with the last step; an optimizer is about to step.

        Rates that changed without a scheduler were set by the program.
        """
        self._hush()
        self._is_in_step = True
        rates, moved = self._rates_now(), self._moved()
        for scheduler in moved:
            name = type(scheduler).__name__
            self._horizons[name] = max(_horizon(scheduler), self._horizons.get(name, 0))
            self._find(HandWork(HandKind.SCHEDULE, name, ""))
        if not moved and rates != self._rates:
            self._find(HandWork(HandKind.RATE, "lr", ""))

    def after_step(self) -> None:
        """Close the window that ends with this optimizer step, and begin the next one."""
        self._judge_passes()
        self._windows += 1
        self._passes, self._phase, self._is_in_step = [0, 0], "", False
        self._rates = self._rates_now()
        self._epochs = {id(s): s.last_epoch for s in self._schedulers()}
        self._ledger.next_step()
        self._ledger.know(self._optimizers())
        self._speak()

    def remove(self) -> None:
        """Stop observing and put PyTorch back; the findings are kept for ``found()``."""
        self._lengths.undo()
        if self._is_on:
            self._judge_passes()
            self._is_on = False
            self._mode.take_off()
            self._patches.undo()
            self._ledger = Ledger()

    def found(self, loaders: Iterable[DataLoader[Any]]) -> tuple[HandWork, ...]:
        """Return what the loop was seen doing.

        Args:
            loaders: The loaders that train. A schedule is judged by the lengths that the program
                read from loaders over the same datasets.
        """
        return tuple(self._judged([*loaders]))

    def _judged(self, loaders: list[DataLoader[Any]]) -> Iterator[HandWork]:
        # Compared by dataset, because libraries rebuild the program's loader as one of theirs.
        datasets = [id(loader.dataset) for loader in loaders]
        asked = [its for own, its in self._asked.items() if id(own.dataset) in datasets]
        for work, windows in self._found.items():
            if work.kind in HABITS and len(windows) < WINDOWS:
                continue
            if work.kind is not HandKind.SCHEDULE:
                yield work
                continue
            planned = [at for batches, at in asked if self._horizons[work.what] >= batches]
            if planned:
                yield HandWork(work.kind, work.what, planned[0])
            elif self._known_length.isdisjoint(datasets):
                yield HandWork(HandKind.COUNTED_SCHEDULE, work.what, "")

    def _judge_passes(self) -> None:
        """Note a step for which gradients were computed again within the optimizer's step.

        That is more than one backward pass within it (LBFGS), or passes both before and within.
        """
        if self._passes[1] > 1 or all(self._passes):
            self._find(HandWork(HandKind.PASSES, f"{sum(self._passes)} backward passes", ""))

    def _find(self, work: HandWork) -> None:
        self._found.setdefault(work, set()).add(self._windows)

    def _called(self, call: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Judge a call of torch that the loop itself has made; called by the mode."""
        kind = self._ledger.judge(call, args, kwargs, result)
        if call == SETS_GRAD and self._ledger.is_trained(args[0]):
            self._ledger.know(self._optimizers())
            if args[1] is None and self._phase != "computed":
                kind = HandKind.GRADIENTS  # the program clears gradients without zero_grad()
        if kind is None:
            return
        place = place_of_hand_work(sys._getframe(1))  # noqa: SLF001
        if place:
            name = next((n for own, n in NAMES.items() if own == call), call.__name__)
            self._find(HandWork(kind, name, place))

    def _moved(self) -> list[LRScheduler]:
        """Return the schedulers that have stepped since the last optimizer step."""
        return [s for s in self._schedulers() if s.last_epoch != self._epochs.get(id(s))]

    def _rates_now(self) -> list[float]:
        groups = (group for optimizer in self._optimizers() for group in optimizer.param_groups)
        return [float(group["lr"]) for group in groups if "lr" in group]

    def _hush(self) -> None:
        if self._depth == 0:
            self._mode.take_off()
        self._depth += 1

    def _speak(self) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and self._is_on:
            self._mode.put_on()

    def _is_mine(self) -> bool:
        return self._is_on and get_ident() == self._thread

    def _take_off_for(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)
        seam = self

        def call(*args: Any, **kwargs: Any) -> Any:
            if not seam._is_mine():
                return original(*args, **kwargs)
            seam._hush()
            try:
                return original(*args, **kwargs)
            finally:
                seam._speak()

        self._patches.replace(owner, name, call)

    def _watch_models(self) -> None:
        original = nn.Module.__call__
        seam = self

        def call(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not seam._is_mine() or seam._depth > 1:
                return original(model, *args, **kwargs)
            frozen = _frozen(model)
            before = [_state(p) for p in frozen]
            output = original(model, *args, **kwargs)
            if any(_state(p) != own for p, own in zip(frozen, before, strict=True)):
                seam._find(HandWork(HandKind.KEPT, f"{type(model).__name__}.forward", ""))
            return output

        self._patches.replace(nn.Module, "__call__", call)

    def _watch_backward(self) -> None:
        original = torch.autograd.backward
        seam = self

        def backward(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            if seam._is_mine():
                seam._passes[seam._is_in_step] += 1
                seam._enter("computed")

        self._patches.replace(torch.autograd, "backward", outermost(backward, original))
        self._take_off_for(torch.autograd, "backward")

    def _watch_clearing(self, owner: type[Optimizer] | type[nn.Module]) -> None:
        original = owner.zero_grad
        seam = self

        def zero_grad(target: Any, *args: Any, **kwargs: Any) -> None:
            if seam._is_mine() and seam._phase == "computed" and seam._trains(target):
                place = place_of_hand_work(sys._getframe(1))  # noqa: SLF001
                seam._find(HandWork(HandKind.THROWN, "zero_grad", place))
            original(target, *args, **kwargs)
            if seam._is_mine():
                seam._enter("cleared")

        self._patches.replace(owner, "zero_grad", zero_grad)
        self._take_off_for(owner, "zero_grad")

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._ledger.know(self._optimizers())

    def _trains(self, target: Optimizer | nn.Module) -> bool:
        if isinstance(target, Optimizer):
            return True
        cleared = {id(p) for p in target.parameters()}
        groups = (group for optimizer in self._optimizers() for group in optimizer.param_groups)
        return any(id(p) in cleared for group in groups for p in group["params"])


class _Mode(overrides.TorchFunctionMode):
    """Reports each torch call of the loop after it has returned.

    It is active on the thread that put it on, and not while torch or autotune handles a call.
    """

    def __init__(self, called: Callable[[Any, Any, Any, Any], None]) -> None:
        super().__init__()
        self._called = called
        self._is_within = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # torch takes the mode off during this method, and puts it on again after. put_on() and
        # take_off() must not change the stack of modes meanwhile.
        self._is_within = True
        try:
            result = func(*args, **(kwargs or {}))
            self._called(func, args, kwargs or {}, result)
        finally:
            self._is_within = False
        return result

    def put_on(self) -> None:
        """Put the mode on the stack, below all modes of the program's.

        The program takes its own modes off in its own order, so they must stay on top. Only the
        mode of ``torch.set_default_device`` stays below, because torch requires it at the bottom.
        """
        if self._is_within:
            return
        modes = _take_all()
        devices = [mode for mode in modes if isinstance(mode, DeviceContext)]
        others = [
            mode for mode in modes if not isinstance(mode, DeviceContext) and mode is not self
        ]
        for mode in (*devices, self, *others):
            overrides._push_mode(mode)  # noqa: SLF001

    def take_off(self) -> None:
        """Take the mode off, from wherever in the stack it is."""
        if self._is_within:
            return
        for mode in _take_all():
            if mode is not self:
                overrides._push_mode(mode)  # noqa: SLF001


def _frozen(model: nn.Module) -> list[nn.Parameter]:
    """Return up to MAX_FROZEN of a model's parameters that have ``requires_grad=False``."""
    frozen = [p for p in model.parameters() if not p.requires_grad and not p.is_meta]
    return frozen[:: -(-len(frozen) // MAX_FROZEN) or 1]


def _state(parameter: nn.Parameter) -> tuple[int, list[float]]:
    """Return what changes when a parameter is written to.

    The version counter shows most writes. Writes through ``.data`` do not count there, so some of
    the values are part of the state.
    """
    flat = parameter.detach().reshape(-1)
    values = flat[:: -(-flat.numel() // MAX_VALUES) or 1]
    return parameter._version, values.tolist()  # noqa: SLF001 - autograd's own counter


def _take_all() -> list[Any]:
    """Take all modes off the stack and return them from the bottom to the top."""
    count = _len_torch_function_stack()
    return [overrides._pop_mode() for _ in range(count)][::-1]  # noqa: SLF001


def _horizon(scheduler: Any) -> float:
    """Return the largest step number in a scheduler's settings; inf if a function sets the rate.

    That is the number of steps that a schedule is planned for, such as ``T_max`` or a milestone.
    Compared with a loader's length, it tells whether the schedule counts batches or epochs.
    """
    state = vars(scheduler)
    if any(callable(rule) for rule in state.get("lr_lambdas") or ()):
        return float("inf")
    inner = state.get("_schedulers") or ()
    own = [
        v for k, v in state.items() if isinstance(v, int) and k not in {"last_epoch", "_step_count"}
    ]
    return max(
        [0.0, *map(float, own), *map(float, state.get("milestones") or ()), *map(_horizon, inner)]
    )
