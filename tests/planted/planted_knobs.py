"""A knob of a third party whose values are defects, each of which changes the training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from autotune.knobs import Domain, Here, Knob, KnobValue, Profile, Seams

NONE = "none"


def _nothing() -> None:
    """Leave the program as it is."""


def _weigh_losses() -> None:
    import torch

    owner: Any = torch.Tensor
    original = owner.backward

    def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
        return original(loss * 1.01, *args, **kwargs)

    owner.backward = backward


def _after_steps(act: Any) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    count = 0

    def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        nonlocal count
        count += 1
        act(optimizer, count)

    register_optimizer_step_post_hook(stepped)


def _scale_rates() -> None:
    def scale(optimizer: Any, count: int) -> None:
        if count == 1:
            for group in optimizer.param_groups:
                group["lr"] *= 2

    _after_steps(scale)


def _lose_state(at: int) -> None:
    def lose(optimizer: Any, count: int) -> None:
        if count == at:
            optimizer.state.clear()

    _after_steps(lose)


def _halve_gradients() -> None:
    """As the mean over two ranks does to a loss that is a sum."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def halve(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.grad.mul_(0.5)

    register_optimizer_step_pre_hook(halve)


def _save_other_keys() -> None:
    """As the module that torch.compile returns does."""
    from torch import nn

    owner: Any = nn.Module
    original = owner.state_dict

    def state_dict(module: Any, *args: Any, **kwargs: Any) -> Any:
        own = original(module, *args, **kwargs)
        is_part = bool(args or kwargs)  # of a whole module, which asks its children
        return own if is_part else {f"_orig_mod.{key}": value for key, value in own.items()}

    owner.state_dict = state_dict


def _cannot() -> None:
    raise RuntimeError("made in another process")


class Unloadable:
    """What can be saved, but not loaded, as a handle of a process can be."""

    def __reduce__(self) -> Any:
        """Return what loading calls."""
        return _cannot, ()


def _save_what_cannot_be_loaded() -> None:
    from torch import optim

    owner: Any = optim.Optimizer
    original = owner.state_dict

    def state_dict(optimizer: Any) -> Any:
        return {**original(optimizer), "handle": Unloadable()}

    owner.state_dict = state_dict


def _normalise_twice() -> None:
    """As a second forward pass for the backward pass does, which updates the statistics again."""
    from torch import nn

    owner: Any = nn.BatchNorm2d
    original = owner.forward

    def forward(layer: Any, x: Any) -> Any:
        original(layer, x)
        return original(layer, x)

    owner.forward = forward


def _recompute_from_the_present_state() -> None:
    """As activation checkpointing does that does not put back what a block's first pass found."""
    from autotune.inside.seams import checkpoint

    owner: Any = checkpoint
    owner._reparametrize_module = lambda *_, **__: nullcontext()


def _keep_dataset() -> None:
    """As workers do that persist while the program changes its dataset."""
    from torch.utils.data import DataLoader

    owner: Any = DataLoader
    original, kept = owner.__iter__, dict[int, Any]()

    def begin(loader: Any) -> Any:
        own = kept.setdefault(id(loader.dataset), copy.deepcopy(loader.dataset))
        before, vars(loader)["dataset"] = loader.dataset, own
        try:
            return original(loader)
        finally:
            vars(loader)["dataset"] = before

    owner.__iter__ = begin


DEFECTS: dict[str, Callable[[], None]] = {
    "loss times 1.01": _weigh_losses,
    "rate without batch": _scale_rates,
    "lost state": partial(_lose_state, 5),
    "late lost state": partial(_lose_state, 27),
    "statistics twice": _normalise_twice,
    "recomputed statistics": _recompute_from_the_present_state,
    "old dataset": _keep_dataset,
    "halved gradients": _halve_gradients,
    "other keys": _save_other_keys,
    "no loading": _save_what_cannot_be_loaded,
}


class Planted(Knob):
    """Train something else."""

    name = "planted"
    value_type = str
    choices = (NONE, *DEFECTS)

    def domain(self, here: Here) -> Domain:
        """Return all of them."""
        return Domain(self.choices)

    def current(self, profile: Profile) -> KnobValue:
        """Return that of the program."""
        return NONE

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Bring a defect about in this process."""
        DEFECTS.get(str(value), _nothing)()
