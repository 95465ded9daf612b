"""Digests of datasets and items: equal for what is the same, None for what cannot be read."""

from __future__ import annotations

import threading

import numpy
import torch

from autotune.inside.data.dataset_digest import digest_of


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
