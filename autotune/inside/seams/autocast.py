"""The seam at ``torch.autocast``: it sees the program's own mixed precision, and can change it.

It exists because a program that enters autocast itself has already chosen where it computes in a
lower precision. autotune then changes the dtype of these regions instead of adding its own.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import current_thread, main_thread
from typing import Any

import torch
from torch.amp import GradScaler

from autotune.inside.hubs.patches import Patches, Seam

Call = Callable[..., Any]
OWN, OURS, UNSCALED = "_autotune_own", "_autotune_ours", "_autotune_unscaled"


def autocast(device: str, dtype: torch.dtype) -> torch.autocast:
    """Return an autocast region marked as autotune's, so that the seam does not act on it."""
    context = torch.autocast(device, dtype=dtype)
    vars(context)[OURS] = True
    return context


def unscaled(loss: torch.Tensor) -> torch.Tensor:
    """Return a loss as it was before the program's ``GradScaler`` multiplied it."""
    own = getattr(loss, UNSCALED, loss)
    assert isinstance(own, torch.Tensor), "the seam sets it"
    return own


class AutocastSeam(Seam):
    """Watches the program enter autocast, and can change the precision of these regions.

    ``Steering`` calls ``steer()`` on the main thread between two steps. The replaced methods run on
    whichever thread enters a region. ``observe`` reads the attributes for the profile.

    Attributes:
        own_dtype: The dtype of the program's autocast, such as ``bfloat16``; None as long as the
            program has entered no enabled region.
        has_own_scaler: The program scales its losses with an enabled ``GradScaler``.
        is_needed: Whether the precision of the program's own regions is changed.
    """

    def __init__(self) -> None:
        self.own_dtype: str | None = None
        self.has_own_scaler = False
        self.is_needed = False
        self._dtype: torch.dtype | None = None
        self._patches = Patches()

    def steer(self, dtype: torch.dtype | None) -> None:
        """Have the program's own autocast regions compute in *dtype*; None disables autocast."""
        self.is_needed, self._dtype = True, dtype

    def install(self) -> None:
        """Begin to watch autocast and ``GradScaler``, and to apply the chosen precision."""
        self._patches.wrap(torch.autocast, "__enter__", self._enter)
        self._patches.wrap(torch.autocast, "__exit__", self._leave)
        self._patches.wrap(GradScaler, "scale", self._scale)

    def _scale(self, original: Call, scaler: GradScaler, outputs: Any) -> Any:
        self.has_own_scaler = self.has_own_scaler or scaler.is_enabled()
        scaled = original(scaler, outputs)
        if isinstance(outputs, torch.Tensor) and scaled is not outputs:
            setattr(scaled, UNSCALED, outputs.detach())
        return scaled

    def _enter(self, original: Call, context: torch.autocast) -> Any:
        # A program may enter one context object many times, so the object keeps what it was built
        # with; leaving a region restores that.
        own = vars(context).setdefault(OWN, (context._enabled, context.fast_dtype))  # noqa: SLF001
        if own[0] and OURS not in vars(context):
            if self.own_dtype is None or current_thread() is main_thread():  # as replicas' are not
                self.own_dtype = str(own[1]).removeprefix("torch.")
            if self.is_needed:
                context._enabled = self._dtype is not None  # noqa: SLF001
                context.fast_dtype = self._dtype or own[1]
        return original(context)

    def _leave(self, original: Call, context: torch.autocast, *args: Any) -> Any:
        if OWN in vars(context):
            context._enabled, context.fast_dtype = vars(context)[OWN]  # noqa: SLF001
        return original(context, *args)
