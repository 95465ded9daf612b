"""The seam that notes which functions of torch the program calls, for knobs that depend on it.

Without ``scaled_dot_product_attention``, a choice of the attention's kernel has no effect. Whatever
reads the gradients of activations would read scaled ones in fp16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from autotune.inside.hubs.patches import Patches, Seam


class CallDetectionSeam(Seam):
    """Notes calls in the program's first, untouched steps.

    Attributes:
        calls_sdpa: Whether ``scaled_dot_product_attention`` was called.
        reads_gradients: The function by which the program has read gradients within the backward
            pass, such as ``register_hook``; empty if it has not.
    """

    def __init__(self) -> None:
        self.calls_sdpa = False
        self.reads_gradients = ""
        self._patches = Patches()

    def install(self) -> None:
        """Begin to note calls."""
        original, seam = functional.scaled_dot_product_attention, self

        def call(*args: Any, **kwargs: Any) -> Any:
            seam.calls_sdpa = True
            return original(*args, **kwargs)

        self._patches.replace(functional, "scaled_dot_product_attention", call)
        self._note_reading(torch.Tensor, "register_hook")
        self._note_reading(torch.Tensor, "retain_grad")
        self._note_reading(nn.Module, "register_backward_hook")

    def _note_reading(self, owner: type, name: str) -> None:
        original, seam = getattr(owner, name), self

        def call(target: Any, *args: Any, **kwargs: Any) -> Any:
            if not any(map(_is_torchs, args)):  # FSDP hooks the outputs of models
                seam.reads_gradients = name
            return original(target, *args, **kwargs)

        self._patches.replace(owner, name, call)


def _is_torchs(hook: Any) -> bool:
    function = getattr(hook, "func", hook)
    return str(getattr(function, "__module__", "")).startswith("torch.")
