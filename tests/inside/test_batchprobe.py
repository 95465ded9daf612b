"""A loss that sums over its samples is told from one that averages, before a rate follows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD

from autotune.inside.hubs.step import StepHub
from autotune.inside.seams.forward import ForwardSeam
from autotune.inside.turns.batchprobe import MAX_STEPS, BatchProbe
from autotune.measurement.batch_effect import BatchEffect
from autotune.program.lr import LrRule
from tests.rigging import base_setting, open_rig

pytestmark = pytest.mark.usefixtures("warm_starts")


def probed(reduction: str, before: int, after: int, clip: float = math.inf) -> BatchEffect:
    """Train before and after the batch changes; return what the probe says."""
    torch.manual_seed(0)
    model, loss_of = nn.Linear(8, 1), nn.MSELoss(reduction=reduction.split(maxsplit=1)[0])
    optimizer = SGD(model.parameters(), lr=1e-6)
    probe = BatchProbe(before, after, ForwardSeam(None, list), StepHub())

    def phase(size: int) -> None:
        while True:
            optimizer.zero_grad()
            x = torch.randn(size, 8)
            loss = loss_of(model(x), x.sum(1, keepdim=True) + torch.randn(size, 1))
            if reduction == "mean times batch":
                loss = loss * size
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if probe.step(loss.detach()):
                return

    phase(before)
    probe.turn()
    phase(after)
    return probe.end()


@pytest.mark.parametrize(("before", "after"), [(32, 256), (64, 16), (128, 256)])
def test_sums_and_means_are_told_apart(before: int, after: int) -> None:
    for reduction, sums in {"sum": True, "mean times batch": True, "mean": False}.items():
        assert probed(reduction, before, after).sums is sums, reduction


def test_signs_that_contradict_each_other_say_nothing() -> None:
    """Gradients that the program clips are as long for sums as for means: so are its steps."""
    effect = probed("sum", 32, 256, clip=0.1)
    assert effect.gradient_growth == pytest.approx(1.0)
    assert effect.sums is None
    assert BatchEffect(4.0, None, None).sums is None
    assert BatchEffect(4.0, 0.9, None).sums is False


def test_a_phase_ends_after_some_steps() -> None:
    probe = BatchProbe(16, 32, ForwardSeam(None, list), StepHub())
    assert [probe.step(None) for _ in range(MAX_STEPS)][-1]
    probe.turn()
    assert [probe.step(None) for _ in range(MAX_STEPS + 1)][-1]
    assert probe.end() == BatchEffect(2.0, None, None)


@pytest.mark.parametrize("noise", [32, None])
def test_what_goes_on_by_a_batch_of_its_own_is_named(noise: int | None) -> None:
    """As a generator does whose noise the script sizes by its arguments."""
    judge, generator = nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 4))
    optimizer = SGD([*judge.parameters(), *generator.parameters()], lr=0.01)
    forward = ForwardSeam(None, lambda: [optimizer])
    forward.install()
    try:
        probe = BatchProbe(32, 128, forward, StepHub())
        for size in (32, 128):
            is_over = False
            while not is_over:
                optimizer.zero_grad()
                fake = generator(torch.randn(noise or size, 4))
                (judge(torch.randn(size, 4)).mean() - judge(fake).mean()).backward()
                optimizer.step()
                is_over = probe.step(None)
                forward.calls.clear()
            if size == 32:
                probe.turn()
        assert probe.end().unmoved == ("Sequential" if noise else "")
    finally:
        forward.remove()


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_gradients_tell_whether_a_loss_sums_and_rates_stay_as_the_program_has_them(
    reduction: str, tmp_path: Path
) -> None:
    lengths = tmp_path / "lengths"
    with open_rig(tmp_path, "sums.py", reduction, str(lengths)) as opened:
        opened.base = base_setting(opened.profile, LrRule.AUTO)
        effect = opened.measured(batch_size=128).effect
        assert effect is not None
        assert effect.sums is (reduction == "sum")
        lines = opened.seen(lengths).read_text().splitlines()[:-1]
    steps = [(int(size), float(rate)) for size, rate in map(str.split, lines)]
    assert steps[-1][0] == 128
    assert [rate for _, rate in steps] == pytest.approx([steps[0][1]] * len(steps), rel=0.1)
