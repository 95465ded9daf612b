"""``autotune run --explain``: what acts where under a config, and nothing else."""

from __future__ import annotations

import torch

from autotune.inside.train import explained
from autotune.program.config import KnobValue
from autotune.program.lr import LrRule
from tests.inside.test_seams import applied


def acting(**changes: KnobValue) -> str:
    return "\n".join(explained(applied(LrRule.LINEAR, **changes)))


def test_a_config_has_only_the_hubs_that_it_needs() -> None:
    backward = torch.autograd.backward
    assert "torch.autograd.backward" not in acting()
    assert "Groups micro-batches" not in acting(precision="bf16")
    said = acting(accumulation_steps=2)
    assert said.startswith("accumulation_steps=2. While the program trains, autotune acts at:")
    assert "torch.autograd.backward" in said
    assert "Groups micro-batches of the training loader" in said
    assert "autocast" not in said
    assert torch.autograd.backward is backward
    assert "ReduceLROnPlateau.step" in acting(devices="ddp-2")


def test_what_leaves_after_the_first_steps_is_said() -> None:
    (line,) = (x for x in explained(applied(precision="bf16")) if "steps of torch.optim" in x)
    assert line.endswith("(first 3 steps only)")
