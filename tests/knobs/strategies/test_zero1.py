"""The state of an optimizer of any make is sent from rank to rank as JSON and tensors."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from autotune.inside.listener import Listener
from autotune.inside.seam_set import SeamSet
from autotune.inside.seams.optimizer import optimizer_facts
from autotune.knobs.base import Here
from autotune.knobs.strategies import STRATEGIES
from autotune.knobs.strategies.zero1 import _made, _remade
from tests.knobs.strategies.together import ByNorm
from tests.made import HARDWARE, make_profile


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
    with pytest.raises(TypeError, match=r"a state of type 'Generator'.*Leave devices out"):
        sent({"draws": torch.Generator()})


def test_an_optimizer_with_a_step_of_its_own_is_not_shown_a_part_of_its_parameters() -> None:
    class Renamed(AdamW):
        pass

    parameters = [nn.Parameter(torch.ones(2))]
    for cls, is_refused in ((ByNorm, True), (SGD, False), (AdamW, False), (Renamed, False)):
        optimizer = cls(parameters, lr=0.1)
        seams = SeamSet(Listener(), None)
        seams.install()  # it wraps steps
        try:
            profile = make_profile(optimizers=(optimizer_facts(optimizer),))
        finally:
            seams.remove()
        refusal = STRATEGIES["zero1"].refusal(Here(HARDWARE, profile))
        assert (refusal is not None) == is_refused
        assert STRATEGIES["ddp"].refusal(Here(HARDWARE, profile)) is None
    assert "ByNorm" in str(
        STRATEGIES["zero1"].refusal(
            Here(HARDWARE, make_profile(optimizers=(optimizer_facts(ByNorm(parameters, lr=0.1)),)))
        )
    )
