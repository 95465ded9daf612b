"""The seam at ``torch.autocast``: whether the program uses mixed precision by itself."""

from __future__ import annotations

from typing import Any

import torch

from autotune.inside.seams.base import Patches


class AutocastSeam:
    """Watches the program enter autocast during the untouched steps; changes nothing."""

    def __init__(self) -> None:
        self.own_dtype: str | None = None
        self._patches = Patches()

    def install(self) -> None:
        """Begin to watch."""
        original = torch.autocast.__enter__
        seam = self

        def enter(context: torch.autocast) -> Any:
            result = original(context)  # type: ignore[no-untyped-call]
            if torch.is_autocast_enabled(context.device):
                seam.own_dtype = str(context.fast_dtype).removeprefix("torch.")
            return result

        self._patches.replace(torch.autocast, "__enter__", enter)

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._patches.undo()
