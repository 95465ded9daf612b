"""Find weights whose memory other tensors share.

The channels-last layout moves a weight to new memory. A tensor that shares the old memory, such as
a flat buffer of all parameters, would then no longer see the weight change.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator

import torch
from torch import nn

from autotune.inside.code.bare import is_a


def shared_weight(roots: Collection[nn.Module]) -> str:
    """Return the name of a 4-D parameter that shares its memory; empty if there is none.

    A parameter shares its memory if it is part of a larger tensor, as in flattened models, or if
    another living tensor begins at the same address: another parameter, or a view that the program
    keeps. The same holds for its gradient.

    Args:
        roots: The models.
    """
    # only 4-D parameters, because these are the ones that the layout moves
    names = {p: name for root in roots for name, p in root.named_parameters() if p.dim() == 4}
    for parameter, name in names.items():
        if any(is_part_of_more(own) for own in _own(parameter)):
            return name
    seen: dict[int, str] = {}
    for parameter, name in names.items():
        for place in filter(None, map(_place, _own(parameter))):
            if seen.setdefault(place, name) != name:
                return name  # another parameter of the models lies there
    known = {id(own) for parameter in names for own in _own(parameter)}
    others = _others(known) if names else ()
    return next((seen[place] for place in others if place in seen), "")


def is_part_of_more(tensor: torch.Tensor) -> bool:
    """Return whether a tensor lies in a storage that is larger than the tensor itself."""
    return _place(tensor) is not None and tensor.untyped_storage().nbytes() > tensor.nbytes


def _own(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    yield parameter
    if parameter.grad is not None:
        yield parameter.grad


def _others(known: Collection[int]) -> Iterator[int]:
    """Yield the addresses of all other tensors that Python's garbage collector knows."""
    for value in gc.get_objects():
        if is_a(value, torch.Tensor) and id(value) not in known:
            yield from filter(None, [_place(value)])


def _place(tensor: torch.Tensor) -> int | None:
    """Return the address of a tensor's storage; None if the tensor has no storage."""
    try:
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - else tensor subclasses run code
            return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # sparse, meta or wrapper tensors
        return None
