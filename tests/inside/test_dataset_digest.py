"""Digests of datasets and items: equal for what is the same, None for what cannot be read."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy
import torch

from autotune.inside.data.dataset_digest import MOST_ARRAY_BYTES, digest_of


class Mask(torch.Tensor):
    """A tensor of a class of its own, as torchvision has them."""


def test_items_are_the_same_by_all_that_they_hold() -> None:
    one = {"x": torch.zeros(2), "name": ["a"], "n": numpy.ones(2)}
    assert digest_of(one) == digest_of({**one, "x": torch.zeros(2)})
    for other in (
        {**one, "name": ["b"]},
        {**one, "n": numpy.zeros(2)},
        {**one, "x": torch.ones(2)},
    ):
        assert digest_of(other) != digest_of(one)
    assert digest_of([torch.zeros(4)]) != digest_of([torch.zeros(2, 2)])
    assert digest_of([threading.Lock()]) is None, "it cannot be pickled"
    assert digest_of(torch.full((2, 3), 1.0).T.bfloat16().as_subclass(Mask)) is not None


def test_a_single_element_of_a_large_array_is_seen_and_a_mapped_file_is_not_read(
    tmp_path: Path,
) -> None:
    array = numpy.ones((300_000, 2))
    shared = torch.ones(300_000)
    for write, part in ((array[::2].view(), array[::2]), (shared.numpy(), shared)):
        before = digest_of(part)
        write.flat[1234] += 1.0  # no operation of PyTorch: its version stays
        assert digest_of(part) != before
    file = tmp_path / "tokens.bin"
    file.write_bytes(b"\0" * 4096)
    with file.open("r+b") as grown:
        grown.truncate(2 * MOST_ARRAY_BYTES)
    mapped = numpy.memmap(file, mode="r")
    assert digest_of(mapped) is not None
    assert digest_of(numpy.asarray(mapped).view(numpy.ndarray)) is None, "too large to be read"
