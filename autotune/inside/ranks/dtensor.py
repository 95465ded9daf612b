"""Sharded tensors, told without loading what makes them: importing DTensor takes half a second."""

from __future__ import annotations

import sys
from typing import Any


def is_sharded(tensor: Any) -> bool:
    """Tell whether a tensor is one rank's view of a sharded one (DTensor)."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: Any) -> Any:
    """Return a sharded tensor as a plain one, gathered from all ranks; others as they are."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor
