"""The ranks' weights are compared without more memory than one parameter takes."""

import weakref

import pytest
import torch

from autotune.inside.seams import rank_checks


def test_parameters_are_gathered_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is sharded because it does not fit is never whole on a device."""
    every: list[weakref.ref[torch.Tensor]] = []

    def gathered(part: torch.Tensor) -> torch.Tensor:
        assert all(ref() is None for ref in every)
        whole = part.double()
        every.append(weakref.ref(whole))
        return whole

    monkeypatch.setattr(rank_checks, "whole", gathered)
    ones = torch.ones(4)
    assert rank_checks._sums([ones, 2 * ones, 3 * ones]) == [24.0, 56.0**0.5]
