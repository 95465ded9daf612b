"""The seam at copies to a device: makes copies from pinned memory non-blocking.

A copy from pinned memory can run on the device while the program goes on, but only with
``non_blocking=True``, which many programs do not pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping
from functools import wraps
from typing import Any

import torch
from torch.utils.data._utils import pin_memory as pinning
from torch.utils.weak import WeakIdKeyDictionary

from autotune.inside.hubs.patches import Patches, Seam

Copy = Callable[..., torch.Tensor]


class TransferSeam(Seam):
    """Makes copies of tensors that a DataLoader has pinned non-blocking.

    Other pinned tensors are copied as the program asks, because the program may refill its own
    buffer before a non-blocking copy has read it. Memory pinned by a DataLoader is not reused
    before its copies are done: torch's allocator of pinned memory waits for them. The patched
    methods run on any thread that copies. A loader pins tensors of a batch, or has a batch do it
    that can, by ``Tensor.pin_memory``, which the program calls for buffers, too.

    Attributes:
        is_needed: Whether copies are made non-blocking.
        own_non_blocking: Whether the program itself was seen to request a non-blocking copy.
    """

    def __init__(self) -> None:
        self.is_needed = False
        self._pinned: MutableMapping[torch.Tensor, None] = WeakIdKeyDictionary()
        self._pinning = threading.local()  # whether a loader pins a batch on this thread
        self._patches = Patches()
        self.own_non_blocking = False

    def install(self) -> None:
        """Patch ``Tensor.to`` and ``cuda``, and by what loaders pin batches and their tensors."""
        self._patches.wrap(pinning, "pin_memory", self._pin_batch)
        self._patches.wrap(torch.Tensor, "pin_memory", self._pin)
        self._wrap("to", target_of_to)
        self._wrap("cuda", target_of_cuda)

    def _pin_batch(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        is_part, self._pinning.now = getattr(self._pinning, "now", False), True
        try:
            return original(*args, **kwargs)  # which calls this for the parts of a batch
        finally:
            self._pinning.now = is_part

    def _pin(self, original: Copy, *args: Any, **kwargs: Any) -> torch.Tensor:
        pinned = original(*args, **kwargs)
        if getattr(self._pinning, "now", False):
            self._pinned[pinned] = None
        return pinned

    def _wrap(self, name: str, target_of: Callable[..., tuple[str, bool]]) -> None:
        original: Copy = getattr(torch.Tensor, name)
        seam = self

        @wraps(original)  # tensor subclasses tell by its name what they are asked to do
        def copy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            is_plain = type(tensor) is torch.Tensor and tensor.device.type == "cpu"
            if is_plain and not torch.compiler.is_compiling():
                target, non_blocking = target_of(*args, **kwargs)
                if target not in {"", "cpu"}:
                    seam.own_non_blocking |= non_blocking
                    if seam.is_needed and not non_blocking and tensor in seam._pinned:
                        return _without_blocking(original, tensor, args, kwargs)
            return original(tensor, *args, **kwargs)

        self._patches.replace(torch.Tensor, name, copy)


def _without_blocking(
    original: Copy, tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    flags = [i for i, value in enumerate(args) if isinstance(value, bool)]
    if flags:
        args = (*args[: flags[0]], True, *args[flags[0] + 1 :])
        return original(tensor, *args, **kwargs)
    return original(tensor, *args, **{**kwargs, "non_blocking": True})


def target_of_to(*args: Any, **kwargs: Any) -> tuple[str, bool]:
    """Return the device type that ``Tensor.to`` copies to, and whether the copy is non-blocking.

    The type is empty for arguments without a device, and for those that torch will refuse.
    """
    if "other" in kwargs or (args and isinstance(args[0], torch.Tensor)):
        other = kwargs["other"] if "other" in kwargs else args[0]
        flag = kwargs.get("non_blocking", args[1] if len(args) > 1 else False)
        return other.device.type, bool(flag)
    kwargs = {name: value for name, value in kwargs.items() if name != "copy"}
    flags = [place for place, value in enumerate(args) if isinstance(value, bool)]
    args = args[: flags[0] + 1] if flags else args  # a second flag is copy: _parse_to refuses it
    try:
        device, _, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)  # noqa: SLF001
    except (RuntimeError, TypeError):  # torch's own to() says what is wrong with it
        return "", False
    return ("" if device is None else device.type), non_blocking


def target_of_cuda(
    _device: Any = None,
    non_blocking: bool = False,  # noqa: FBT001, FBT002
    **_kwargs: Any,
) -> tuple[str, bool]:
    """Return the device type that ``Tensor.cuda`` copies to, and whether it is non-blocking."""
    return "cuda", non_blocking
