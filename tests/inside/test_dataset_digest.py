"""Digests of datasets and items: equal for what is the same, None for what cannot be read."""

from __future__ import annotations

import threading
from collections.abc import Callable

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


def test_tensors_of_any_type_and_class_are_read() -> None:
    kinds: list[Callable[[float], torch.Tensor]] = [
        lambda value: torch.full((2, 3), value).bfloat16(),
        lambda value: torch.full((2, 3), value).as_subclass(Mask),
        lambda value: torch.full((2, 3), value).T,
        torch.tensor,
    ]
    for make in kinds:
        assert digest_of(make(1.0)) == digest_of(make(1.0))
        assert digest_of(make(1.0)) != digest_of(make(2.0))


def test_what_cannot_be_pickled_has_no_digest() -> None:
    assert digest_of([threading.Lock()]) is None
