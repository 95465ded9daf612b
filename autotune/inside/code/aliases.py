"""Aliases: weights whose memory other tensors share, and which thus cannot move elsewhere."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator

import torch
from torch import nn

from autotune.inside.code.bare import is_a


def shared_weight(roots: Collection[nn.Module]) -> str:
    """Return the name of a 4-D parameter that shares its memory, empty if none does.

    A part of a larger tensor does, as in flattened models, and one that another living tensor is
    seen to lie in: another parameter, a view that an optimizer of the program's keeps.
    """
    names = {p: name for root in roots for name, p in root.named_parameters() if p.dim() == 4}
    for parameter, name in names.items():
        if any(is_part_of_more(own) for own in _own(parameter)):
            return name
    seen: dict[int, str] = {}
    for parameter, name in names.items():
        for place in filter(None, map(_place, _own(parameter))):
            if seen.setdefault(place, name) != name:
                return name  # another one of the model's own lies there
    known = {id(own) for parameter in names for own in _own(parameter)}
    others = _others(known) if names else ()
    return next((seen[place] for place in others if place in seen), "")


def is_part_of_more(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor lies in memory larger than itself."""
    return _place(tensor) is not None and tensor.untyped_storage().nbytes() > tensor.nbytes


def _own(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    yield parameter
    if parameter.grad is not None:
        yield parameter.grad


def _others(known: Collection[int]) -> Iterator[int]:
    """Yield where the other tensors of this process lie."""
    for value in gc.get_objects():
        if is_a(value, torch.Tensor) and id(value) not in known:
            yield from filter(None, [_place(value)])


def _place(tensor: torch.Tensor) -> int | None:
    """Return where a tensor's memory begins, None where it has none of its own."""
    try:
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - which subclasses define
            return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # sparse, a wrapper of others, on no device
        return None
