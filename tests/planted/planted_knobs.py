"""A knob of a third party whose values are defects, each of which changes the training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from autotune.knobs import Domain, Here, Knob, KnobValue, MayChange, Profile, Seams

NONE = "none"
LATE_STEP = 27


def _lose_state() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    count = 0

    def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        nonlocal count
        count += 1
        if count == LATE_STEP:
            optimizer.state.clear()

    register_optimizer_step_post_hook(stepped)


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
    "late lost state": _lose_state,
    "old dataset": _keep_dataset,
    "other keys": _save_other_keys,
    "no loading": _save_what_cannot_be_loaded,
}


class Planted(Knob):
    """Train something else."""

    name = "planted"
    changes = MayChange.NOTHING
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
        if value in DEFECTS:
            DEFECTS[str(value)]()
