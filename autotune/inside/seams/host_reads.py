"""Counts and times the program's reads of tensor values on the host, such as ``loss.item()``.

On a GPU, such a read waits until all queued work is done. On a CPU it costs only the call, which
matters in a loop over many elements.

Not covered: reads by functions that are written in C.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from autotune.inside.code.frames import own_place
from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.seams.parts import SYNCS
from autotune.measurement.examination import HostReads

# These read what belongs to them, such as an optimizer its step counts
OF_TORCH = ("torch.optim", "torch.amp", "torch.nn.utils", "torch.utils.data")
MAX_LINES = 5  # lines of the program that are told


class HostReadsSeam(Seam):
    """Notes each read with the line of the program that makes it.

    The examiner installs it for some steps and removes it afterwards. The patched methods run on
    the thread that calls them, and ``step()`` on the one that trains.

    Args:
        device: Kind of the device that trains. Tensors on another one are not waited for.
        is_loading: Returns whether the program fetches a batch now; what the data set reads is part
            of loading.
    """

    def __init__(self, device: str, is_loading: Callable[[], bool]) -> None:
        self._device = device
        self._is_loading = is_loading
        self._patches = Patches()
        self._is_within = False  # __bool__ and the like call item()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._new: list[tuple[tuple[str, str], float]] = []

    def install(self) -> None:
        """Replace the methods of ``torch.Tensor`` that return values to Python."""
        for name in SYNCS:
            original = getattr(torch.Tensor, name)
            self._patches.replace(torch.Tensor, name, self._timed(original, name))

    def step(self, *, keep: bool) -> None:
        """Count the reads of the step that ends now, or drop them."""
        new, self._new = self._new, []
        if keep:
            for key, seconds in new:
                self._calls[key] += 1
                self._seconds[key] += seconds

    def found(self, steps: int) -> tuple[HostReads, ...]:
        """Return the lines that read most of the time, over a number of steps that counted."""
        longest = sorted(self._seconds, key=lambda key: -self._seconds[key])[:MAX_LINES]
        return tuple(
            HostReads(*key, self._calls[key] / steps, self._seconds[key] / steps) for key in longest
        )

    def _timed(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        seam = self

        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__") or ""  # noqa: SLF001
            is_other = tensor.device.type != seam._device or seam._is_loading()
            if seam._is_within or is_other or caller.startswith(OF_TORCH):
                return original(tensor, *args, **kwargs)
            place = own_place()
            seam._is_within = True
            began = perf_counter()
            try:
                return original(tensor, *args, **kwargs)
            finally:
                seam._is_within = False
                if place is not None:
                    seam._new.append(((name, str(place)), perf_counter() - began))

        return read
