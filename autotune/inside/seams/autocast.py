"""The seam at ``torch.autocast``: the program's own mixed precision is seen, and steered."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp import GradScaler

from autotune.inside.seams.base import Patches, Seam

OWN, OURS = "_autotune_own", "_autotune_ours"


def autocast(device: str, dtype: torch.dtype) -> torch.autocast:
    """Return an autocast region of ours, which is not taken for the program's."""
    context = torch.autocast(device, dtype=dtype)
    vars(context)[OURS] = True
    return context


class AutocastSeam(Seam):
    """Watches the program enter autocast, and lets it compute in another precision there.

    Attributes:
        own_dtype: What the program itself asks for, None as long as it enters no autocast.
        has_own_scaler: It scales its losses by a GradScaler that is enabled.
    """

    def __init__(self) -> None:
        self.own_dtype: str | None = None
        self.has_own_scaler = False
        self._steered = False
        self._dtype: torch.dtype | None = None
        self._patches = Patches()

    def steer(self, dtype: torch.dtype | None) -> None:
        """Have the program's own autocast regions compute in *dtype*; None leaves them in fp32."""
        self._steered, self._dtype = True, dtype

    @property
    def is_needed(self) -> bool:
        """The program's own regions are steered."""
        return self._steered

    def install(self) -> None:
        """Begin to watch, and to steer."""
        self._follow_autocast()
        original_scale = GradScaler.scale
        seam = self

        def scale(scaler: GradScaler, outputs: Any) -> Any:
            seam.has_own_scaler = seam.has_own_scaler or scaler.is_enabled()
            return original_scale(scaler, outputs)

        self._patches.replace(GradScaler, "scale", scale)

    def _follow_autocast(self) -> None:
        original_enter, original_exit = torch.autocast.__enter__, torch.autocast.__exit__
        seam = self

        def enter(context: torch.autocast) -> Any:
            own = vars(context).setdefault(OWN, (context._enabled, context.fast_dtype))  # noqa: SLF001
            if own[0] and OURS not in vars(context):
                seam.own_dtype = str(own[1]).removeprefix("torch.")
                if seam._steered:
                    context._enabled = seam._dtype is not None  # noqa: SLF001
                    context.fast_dtype = seam._dtype or own[1]
            return original_enter(context)  # type: ignore[no-untyped-call]

        def leave(context: torch.autocast, *args: Any) -> Any:
            if OWN in vars(context):
                context._enabled, context.fast_dtype = vars(context)[OWN]  # noqa: SLF001
            return original_exit(context, *args)

        self._patches.replace(torch.autocast, "__enter__", enter)
        self._patches.replace(torch.autocast, "__exit__", leave)
