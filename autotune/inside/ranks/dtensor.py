"""Recognise sharded tensors (DTensor) without importing DTensor, which takes half a second.

A program that has not imported ``torch.distributed.tensor`` cannot have such a tensor.
"""

from __future__ import annotations

import sys
from typing import Any


def is_sharded(tensor: Any) -> bool:
    """Return whether a tensor is one rank's view of a tensor sharded over ranks (DTensor)."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: Any) -> Any:
    """Return a sharded tensor as a plain one, gathered from all ranks; return others unchanged.

    Gathering is a collective: all ranks must call this for the same tensor.
    """
    return tensor.full_tensor() if is_sharded(tensor) else tensor
