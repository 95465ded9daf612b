"""The noise scale, from gradients whose noise is known."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from autotune.inside.rehearsing.gradient_recorder import GradientRecorder
from autotune.measurement.learning.gradient_noise import MOST, noise_scale
from autotune.measurement.learning.training_trace import GradientGroup

PARTS, SAMPLES, WEIGHTS = 8, 4, 50


def groups(count: int, mean: float, noise: float, factor: float = 1.0) -> list[GradientGroup]:
    """Return groups of gradients that are all *mean* but for normal noise, in each weight."""
    dice, found = np.random.default_rng(3), []
    for _ in range(count):
        parts = mean + dice.normal(0, noise / np.sqrt(SAMPLES), (PARTS, WEIGHTS))
        parts *= factor
        mean_square = float((parts**2).sum(axis=1).mean())
        whole = float((parts.mean(axis=0) ** 2).sum())
        found.append(GradientGroup(PARTS, SAMPLES, mean_square, whole))
    return found


def test_the_noise_scale_is_the_variance_over_the_square_of_the_gradient() -> None:
    for mean, noise in ((1.0, 3.0), (1.0, 10.0), (0.1, 0.1)):
        found = noise_scale(groups(40, mean, noise))
        assert found is not None
        assert found.low <= (noise / mean) ** 2 <= found.high
        scaled = noise_scale(groups(40, mean, noise, factor=1000.0))
        assert scaled is not None
        np.testing.assert_allclose(scaled.estimate, found.estimate)


def test_a_gradient_that_cannot_be_told_from_noise_has_no_upper_end() -> None:
    found = noise_scale(groups(10, 0.0, 1.0))
    assert found is not None
    assert found.high == MOST
    assert noise_scale(groups(3, 1.0, 1.0)) is None


def test_what_is_recorded_of_a_program_is_what_its_gradients_say() -> None:
    """Accumulated as the mean of the parts, and clipped before the step."""
    torch.manual_seed(1)
    model = nn.Linear(6, 2)
    data = [(torch.randn(SAMPLES, 6), torch.randn(SAMPLES, 2)) for _ in range(PARTS)]
    gradients = []
    for x, y in data:
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        gradients.append(
            torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None])
        )
    together = torch.stack(gradients)
    model.zero_grad()
    recorder = GradientRecorder()
    for x, y in data:
        recorder.part_ended()
        recorder.watch(model.parameters())
        (nn.functional.mse_loss(model(x), y) / PARTS).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    recorder.stepped(SAMPLES)
    (group,) = recorder.groups
    assert (group.parts, group.samples) == (PARTS, SAMPLES)
    ratio = group.square_of_mean / group.mean_square
    expected = together.mean(0).square().sum() / together.square().sum(1).mean()
    np.testing.assert_allclose(ratio, float(expected), rtol=1e-5)
    recorder.stepped(SAMPLES)
    assert len(recorder.groups) == 1, "nothing was accumulated since"
