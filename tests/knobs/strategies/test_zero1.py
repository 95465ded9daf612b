"""The state of an optimizer of any make is sent from rank to rank as JSON and tensors."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from autotune.knobs.strategies.zero1 import _made, _remade


def sent(state: Any) -> Any:
    """Return a state as another rank gets it; tensors go by themselves, in their order."""
    tensors: list[torch.Tensor] = []
    text = json.dumps(_made(state, tensors))
    arriving = iter(tensors)

    def received(dtype: str, shape: list[int], kind: str) -> torch.Tensor:
        tensor = next(arriving)
        assert str(tensor.dtype) == f"torch.{dtype}"
        assert (list(tensor.shape), tensor.device.type) == (shape, kind)
        return tensor

    return _remade(json.loads(text), received)


def test_a_state_comes_back_with_the_types_that_it_had() -> None:
    state = {
        "step": torch.tensor(3.0),
        "exp_avg": torch.randn(2, 3, dtype=torch.bfloat16),
        "bits": torch.tensor([True, False]),
        "none": None,
        "factors": (1, 2.5, [torch.ones(2)], {"name": "x", 4: ()}),
    }
    found = sent(state)
    assert found["step"] is state["step"]
    assert found["exp_avg"] is state["exp_avg"]
    assert found["bits"] is state["bits"]
    assert repr(found) == repr(state)


def test_what_cannot_be_sent_is_named_with_the_mend() -> None:
    with pytest.raises(TypeError, match=r"a state of type 'Generator'.*Leave strategy and world"):
        sent({"draws": torch.Generator()})
