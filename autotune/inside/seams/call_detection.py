"""The seam that notes whether the program calls ``scaled_dot_product_attention``.

Without it, a choice of the attention's kernel has no effect, and would be tried in vain.
"""

from __future__ import annotations

from typing import Any

from torch.nn import functional

from autotune.inside.hubs.patches import Patches, Seam


class CallDetectionSeam(Seam):
    """Notes a call in the program's first, untouched steps.

    ``SeamSet`` installs it where the program is observed for its profile, and removes it after the
    third step. It changes no result; the note is made on the thread of the call.

    Attributes:
        calls_sdpa: Whether the function was called.
    """

    def __init__(self) -> None:
        self.calls_sdpa = False
        self._patches = Patches()

    def install(self) -> None:
        """Begin to note calls."""
        original, seam = functional.scaled_dot_product_attention, self

        def call(*args: Any, **kwargs: Any) -> Any:
            seam.calls_sdpa = True
            return original(*args, **kwargs)

        self._patches.replace(functional, "scaled_dot_product_attention", call)
