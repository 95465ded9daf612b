"""Tensors in nested containers, those included that PyTorch's own walker does not know."""

from __future__ import annotations

from collections import UserDict, namedtuple
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from transformers import BatchEncoding
from transformers.modeling_outputs import CausalLMOutput

from autotune.inside.data.nested import first_tensor, map_tensors, tensors_in

ONE, TWO = torch.ones(1), torch.full((1,), 2.0)
Pair = namedtuple("Pair", "x y")  # noqa: PYI024 - as programs write it


class Batch(dict[str, Any]):
    """A dictionary with more than its entries, as libraries have them."""

    device = "none"


class Boxes(list[Any]):
    """A list of a class of its own, as detection has them."""


def batch() -> Batch:
    made = Batch(x=ONE, y=TWO)
    made.device = "cpu"
    return made


CONTAINERS: list[Any] = [
    [ONE, {"y": TWO}],
    {"x": ONE, "more": [(TWO, "name")], "none": None},
    Pair(ONE, [TWO]),
    UserDict(x=ONE, y=(TWO,)),
    BatchEncoding({"x": ONE, "y": [TWO]}),
    CausalLMOutput(loss=ONE, logits=TWO),
    batch(),
    [Boxes([ONE, batch()["y"]])],
]


@pytest.mark.parametrize("value", CONTAINERS, ids=lambda value: type(value).__name__)
def test_tensors_are_found_and_changed_in_order_and_the_original_stays(value: Any) -> None:
    new = map_tensors(lambda t: t + 1, value)
    assert type(new) is type(value)
    assert [t.item() for t in tensors_in(new)] == [2.0, 3.0]
    assert [t.item() for t in tensors_in(value)] == [1.0, 2.0]
    assert first_tensor(value) is ONE


def test_what_else_containers_hold_is_kept() -> None:
    fixed = MappingProxyType({"x": ONE})
    assert map_tensors(torch.clone, fixed) is fixed
    assert [*tensors_in(fixed)] == [ONE]
    assert map_tensors(torch.clone, batch()).device == "cpu"
    assert map_tensors(torch.clone, {"none": None, "name": "a"}) == {"none": None, "name": "a"}
    packed = pack_sequence([torch.ones(2), torch.ones(1)])
    assert map_tensors(lambda t: t * 2, packed).data.tolist() == [2.0, 2.0, 2.0]
    assert first_tensor((torch.ones(()), {"x": ONE})) is ONE
    assert first_tensor("text") is None
