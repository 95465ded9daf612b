"""Batch samplers that a program puts around the loader's own, as loaders that never end have them.

Such a wrapper holds PyTorch's ``BatchSampler`` in an attribute and goes through it again and again.
Called by the seam at the DataLoader, on the thread that builds or iterates the loader.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler

from autotune.inside.code import bare


def inner_batches(sampler: object) -> BatchSampler | None:
    """Return the one BatchSampler that another sampler holds, None where that is not clear."""
    held = _held(sampler)
    return held[0][1] if len(held) == 1 else None


def rewrapped(sampler: Any, inner: Any) -> Any:
    """Return *inner* as the loader's sampler; in a copy of the wrapper, where there is one."""
    held = _held(sampler)
    if len(held) != 1:
        return inner
    name, present = held[0]
    if present is inner:
        return sampler
    copy = object.__new__(type(sampler))
    vars(copy).update(vars(sampler))
    vars(copy)[name] = inner
    return copy


def _held(sampler: object) -> list[tuple[str, BatchSampler]]:
    if type(sampler) is BatchSampler:
        return []
    parts = (bare.attributes(sampler) or {}).items()
    return [(name, part) for name, part in parts if type(part) is BatchSampler]
