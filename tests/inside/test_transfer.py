"""Copies from pinned memory to a device, seen where torch makes them; no device is needed.

The meta device takes copies from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data._utils import pin_memory as pinning

from autotune.inside.seams.transfer import TransferSeam
from tests.gpu_fakes import pins_without_a_driver
from tests.watching import installed


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What reaches torch's own ``Tensor.to`` as non_blocking."""
    seen: list[bool] = []
    original = torch.Tensor.to

    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        flagged = [a for a in args if isinstance(a, bool)]
        seen.append(kwargs.get("non_blocking", flagged[0] if flagged else False))
        return original(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", to)
    return seen


@pytest.fixture
def seam(flags: list[bool], monkeypatch: pytest.MonkeyPatch) -> Iterator[TransferSeam]:
    pins_without_a_driver(monkeypatch)
    seam = TransferSeam()
    seam.is_needed = True
    with installed(seam):
        yield seam


def pinned() -> torch.Tensor:
    """Return a tensor that a loader claims to have pinned."""
    tensor: torch.Tensor = pinning.pin_memory(torch.ones(3))
    return tensor


NAMED: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    (("meta",), {}),
    ((), {"device": "meta"}),
    ((torch.device("meta"), torch.float16), {}),
    (("meta", torch.float16, False), {}),
    ((torch.ones(1, device="meta"),), {}),
    (("meta",), {"non_blocking": False, "copy": True}),
    (("meta", torch.float16, False, True), {}),
)


def test_copies_from_pinned_memory_alone_are_changed_however_the_device_is_named(
    seam: TransferSeam, flags: list[bool]
) -> None:
    for args, options in NAMED:
        pinned().to(*args, **options)
    assert flags == [True] * len(NAMED)
    flags.clear()
    torch.ones(3).to("meta")
    pinned()[:2].to("meta")
    for unmoved in ("cpu", torch.float16, torch.ones(1)):
        pinned().to(unmoved)
    torch.ones(3, device="meta").to("meta", torch.float16)
    seam.is_needed = False
    pinned().to("meta")
    assert flags == [False] * 7
    assert not seam.own_non_blocking
    torch.ones(3).to("meta", non_blocking=True)
    assert seam.own_non_blocking, "the program asks for it"


class Batch:
    """A batch of a type of its own, as in PyTorch Geometric."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def pin_memory(self) -> Batch:
        return Batch(self.tensor.pin_memory())


def test_a_batch_that_pins_itself_for_a_loader_is_pinned_and_the_programs_buffer_is_not(
    seam: TransferSeam, flags: list[bool]
) -> None:
    batch, parts = Batch(torch.ones(3)), {"x": (torch.ones(1), "name")}
    pinning.pin_memory(batch).tensor.to("meta")
    pinning.pin_memory(parts)["x"][0].to("meta")
    batch.pin_memory().tensor.to("meta")
    torch.ones(3).pin_memory().to("meta")
    assert flags == [True, True, False, False]
    seam.remove()
    assert not hasattr(torch.Tensor.pin_memory, "__wrapped__")


def test_values_and_errors_are_torchs_own(seam: TransferSeam) -> None:
    assert torch.ones(3).to(torch.float64).dtype is torch.float64
    assert pinned().to("meta", torch.float16).shape == (3,)
    with pytest.raises(RuntimeError, match="nowhere"):
        torch.ones(3).to("nowhere")
    seam.remove()
    assert not hasattr(torch.Tensor.to, "__wrapped__")
