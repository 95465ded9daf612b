"""Batch samplers that a program wraps around the one that PyTorch made for its loader.

A loader without end, such as YOLO's ``InfiniteDataLoader``, does so: its wrapper holds PyTorch's
``BatchSampler`` in an attribute and iterates it again and again. The loader seam calls the
functions here on the thread that builds or iterates the loader.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler

from autotune.inside.code import bare


def inner_batches(sampler: object) -> BatchSampler | None:
    """Return the only BatchSampler that a sampler holds; None unless there is exactly one."""
    held = _held(sampler)
    return held[0][1] if len(held) == 1 else None


def rewrapped(sampler: Any, inner: Any) -> Any:
    """Return *inner* as the loader's batch sampler, in a copy of its wrapper if it has one.

    Args:
        sampler: The loader's present batch sampler, or the wrapper around it.
        inner: The batch sampler to use.
    """
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
    """Return a wrapper's attributes that are BatchSamplers; empty for a BatchSampler itself."""
    if type(sampler) is BatchSampler:
        return []
    parts = (bare.attributes(sampler) or {}).items()
    return [(name, part) for name, part in parts if type(part) is BatchSampler]
