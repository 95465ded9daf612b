"""Digests of batches: equal for the same batches, and none for what cannot be read."""

from __future__ import annotations

import numpy
import pytest
import torch

from autotune.inside.data.batch_digest import NotComparableError, batch_digest


def test_batches_are_compared_by_all_that_they_hold_or_not_at_all() -> None:
    one = {"x": torch.zeros(2), "name": ["a"], "n": numpy.ones(2)}
    assert batch_digest(one) == batch_digest({**one, "x": torch.zeros(2)})
    for other in (
        {**one, "name": ["b"]},
        {**one, "n": numpy.zeros(2)},
        {**one, "x": torch.ones(2)},
    ):
        assert batch_digest(other) != batch_digest(one)
    assert batch_digest([torch.zeros(4)]) != batch_digest([torch.zeros(2, 2)])
    for unknown in (object(), torch.zeros(2, 2).to_sparse(), numpy.array([object()])):
        with pytest.raises(NotComparableError):
            batch_digest([unknown])
