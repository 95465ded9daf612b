"""Gradient accumulation: four micro-batches of eight are one batch of 32, to the parameter.

Each program is written for batches of 32. It is run as it is, and under batch_size=8 with
accumulation_steps=4.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer, lr_scheduler
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset

from autotune.inside.micro_batches import EpochShape, Groups
from autotune.inside.seam_set import SeamSet
from autotune.inside.steering import Steering
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config
from autotune.program.lr import LrRule
from tests.made import make_loader

STEPS = 20
MakeOptimizer = Callable[[Any], Optimizer]


@dataclass
class Run:
    """What a program ended with."""

    parameters: list[torch.Tensor]
    losses: list[float] = field(default_factory=list)
    lr: float = 0.0
    norms: list[float] = field(default_factory=list)


def sgd(parameters: Any) -> Optimizer:
    return SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def adamw(parameters: Any) -> Optimizer:
    return AdamW(parameters, lr=0.01)


def program(  # noqa: C901, PLR0913 - the many ways in which people write a loop
    make_optimizer: MakeOptimizer,
    samples: int = 90,
    *,
    clip: float | None = None,
    schedule: str = "",
    drop_last: bool = False,
    style: str = "clear first",
    scaled: bool = False,
) -> Run:
    """Train for a while; the many ways in which people write this loop."""
    torch.manual_seed(0)
    x = torch.randn(samples, 6)
    data = TensorDataset(x, x.sum(1, keepdim=True).sin())
    loader = DataLoader(data, batch_size=32, shuffle=True, drop_last=drop_last)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = make_optimizer(model.parameters())
    epochs = -(-STEPS // -(-samples // 32))
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    scheduler: lr_scheduler.LRScheduler | None = None
    if schedule == "iteration":
        scheduler = lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=STEPS)
    elif schedule == "epoch":
        scheduler = lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    run = Run(list(model.parameters()))

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if style == "activations again":  # by backward passes within the backward pass
            output = checkpoint_sequential(model, 3, x.requires_grad_(), use_reentrant=True)
        else:
            output = model(x)
        loss = nn.functional.mse_loss(output, y)
        run.losses.append(loss.item())
        return loss

    for _ in range(epochs):
        for x, y in loader:
            if style == "closure":

                def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> float:
                    optimizer.zero_grad()
                    loss = loss_of(x, y)
                    loss.backward()
                    return loss.item()

                optimizer.step(closure)
            else:
                if style == "clear first":
                    optimizer.zero_grad()
                elif style == "clear the model":
                    model.zero_grad(set_to_none=False)
                scaler.scale(loss_of(x, y)).backward()
                if clip is not None:
                    scaler.unscale_(optimizer)
                    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                    run.norms.append(float(norm))
                scaler.step(optimizer)
                scaler.update()
                if style == "clear last":
                    optimizer.zero_grad()
            if scheduler is not None and schedule == "iteration":
                scheduler.step()
        if scheduler is not None and schedule == "epoch":
            scheduler.step()
    run.lr = optimizer.param_groups[0]["lr"]
    return run


@contextmanager
def accumulating(
    samples: int | None,
    *,
    steps: int = 4,
    size: int = 8,
    is_late: bool = False,
    precision: str = "fp32",
    **loader: Any,
) -> Any:
    """SeamSet as ``autotune run`` installs them, under batches of 8 and four for a step."""
    facts = make_loader(**{"dataset_len": samples, "batch_size": 32, **loader})
    baseline = Config({"batch_size": 32, "accumulation_steps": 1, "precision": "fp32"})
    config = Config({"batch_size": size, "accumulation_steps": steps, "precision": precision})
    seams = SeamSet(listener=None, target=facts)
    Steering(seams).apply(
        AppliedConfig(config, baseline, ProgramTraits("cpu", facts), LrRule.LINEAR)
    )
    if is_late:
        seams.install_late()
    else:
        seams.install()
    try:
        yield seams
    finally:
        seams.remove()


CASES: dict[str, dict[str, Any]] = {
    "a schedule by iterations": {"schedule": "iteration"},
    "a schedule by epochs": {"schedule": "epoch"},
    # Of 90, micro-batches would keep samples that whole batches drop.
    "the last batch dropped": {"drop_last": True, "samples": 96},
    "a last group of one micro-batch": {"samples": 100},
    "gradients cleared after the step": {"style": "clear last"},
    "gradients cleared by the model, to zeros": {"style": "clear the model"},
    "activations computed again": {"style": "activations again"},
    "a closure": {"style": "closure"},
    "a gradient scaler and clipping": {"scaled": True, "clip": 0.1, "samples": 96},
}


@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
@pytest.mark.parametrize("case", CASES)
def test_accumulated_micro_batches_are_one_batch(case: str, make_optimizer: MakeOptimizer) -> None:
    arguments = {"samples": 90, **CASES[case]}
    whole = program(make_optimizer, **arguments)
    with accumulating(arguments["samples"], drop_last=arguments.get("drop_last", False)):
        parts = program(make_optimizer, **arguments)
    assert parts.lr == pytest.approx(whole.lr)
    assert len(parts.losses) > 3 * len(whole.losses), "each micro-batch is logged"
    for own, other in zip(whole.parameters, parts.parameters, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=4e-6)
    if arguments["samples"] == 96 and whole.norms:  # a group ends with the real norm
        assert parts.norms[3::4] == pytest.approx(whole.norms, rel=1e-3)


@pytest.mark.parametrize(
    ("epoch", "shares", "held"),
    [
        (EpochShape(6, 8, 8), [0.25, 0.25, 0.25, 0.25, 0.5, 0.5], [1, 1, 1, 0, 1, 0]),
        (EpochShape(5, 8, 3), [0.25, 0.25, 0.25, 0.25, 1.0], [1, 1, 1, 0, 0]),
        (EpochShape(3, 8, 4), [0.4, 0.4, 0.2], [1, 1, 0]),
        (EpochShape(3), [1 / 3, 1 / 3, 1 / 3], [1, 1, 0]),
        (EpochShape(), [0.25] * 6, [1, 1, 1, 0, 1, 1]),
    ],
)
def test_shares_of_a_group_follow_the_samples_and_add_up_to_one(
    epoch: EpochShape, shares: list[float], held: list[int]
) -> None:
    groups = Groups(drop=lambda: None)
    groups.regroup(4)
    seen = []
    for number, _ in zip(count(1), shares, strict=False):
        groups.hand_out(number, epoch)
        groups.take()
        seen.append((groups.share, int(not groups.is_last)))
        groups.stepped(groups, is_real=groups.is_last)
    assert [share for share, _ in seen] == pytest.approx(shares)
    assert [holds for _, holds in seen] == held
