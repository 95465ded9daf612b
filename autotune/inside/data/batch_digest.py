"""Digests: whether a loader hands out the same batch again."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

import numpy
import torch


class NotComparableError(Exception):
    """A batch holds something whose value cannot be read."""


def batch_digest(batch: Any, before: int = 0) -> int:
    """Return a checksum of a batch: its structure, and type, shape and bytes of what it holds.

    Args:
        batch: Tensors, arrays, numbers and text in nested containers.
        before: The checksum so far.

    Raises:
        NotComparableError: It holds another kind of object.
    """
    if isinstance(batch, torch.Tensor):
        if batch.layout is not torch.strided:
            raise NotComparableError
        flat = batch.detach().cpu().contiguous().flatten()
        return _of_array(flat.view(torch.uint8).numpy(), f"{batch.dtype}{batch.shape}", before)
    if isinstance(batch, numpy.ndarray) and batch.dtype.kind != "O":
        return _of_array(batch, f"{batch.dtype}{batch.shape}", before)
    if batch is None or isinstance(batch, (bool, int, float, complex, str, bytes, numpy.generic)):
        return zlib.crc32(f"{type(batch)}{batch!r}".encode(), before)
    if isinstance(batch, Mapping):
        parts = [part for pair in batch.items() for part in pair]
    elif isinstance(batch, (list, tuple)):
        parts = [*batch]
    elif dataclasses.is_dataclass(batch):
        parts = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    else:
        raise NotComparableError
    found = zlib.crc32(f"{type(batch)}{len(parts)}".encode(), before)
    for part in parts:
        found = batch_digest(part, found)
    return found


def _of_array(array: Any, kind: str, before: int) -> int:
    return zlib.crc32(array.tobytes(), zlib.crc32(kind.encode(), before))
