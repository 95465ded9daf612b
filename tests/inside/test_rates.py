"""Learning rates: in each step that of the batch the step was made of; anywhere else the program's.

What is compared is the rate in force: how far plain SGD moves a weight whose gradient is one.
"""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

from autotune.inside.listener import Listener
from autotune.inside.seam_set import SeamSet
from autotune.inside.seams.rates import RatesSeam, initial_rates_of, rates_of
from autotune.inside.steering import Steering
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.flags import Flag
from autotune.program.lr import LrRule
from autotune.program.profile import OptimizerFacts
from autotune.program.program_traits import ProgramTraits
from tests.made import changed, make_loader

FACTS = make_loader(dataset_len=100, batch_size=10)
BASELINE: dict[str, KnobValue] = {"batch_size": 10, "optimizer": "for-loop"}
SGD_FACTS = OptimizerFacts("SGD", ("SGD", "Optimizer"), (0.1,))


def applied(rule: LrRule = LrRule.AUTO, **changes: KnobValue) -> AppliedConfig:
    config = Config({**BASELINE, **changes})
    return AppliedConfig(
        config, Config(BASELINE), ProgramTraits("cpu", FACTS, optimizers=(SGD_FACTS,)), rule
    )


@contextmanager
def running(applied: AppliedConfig, listener: Listener | None = None) -> Iterator[SeamSet]:
    """SeamSet as ``autotune run`` installs them, or a rig."""
    seams = SeamSet(listener, target=FACTS)
    Steering(seams).apply(applied)
    seams.install()
    try:
        yield seams
    finally:
        seams.remove()


def loader(samples: int = 100, batch_size: int = 10) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randn(samples, 1)), batch_size, shuffle=True)


def weight() -> nn.Parameter:
    return nn.Parameter(torch.zeros(1, dtype=torch.float64))


def moved(optimizer: Optimizer) -> float:
    """Make a step under a gradient of one; return the rate that plain SGD had in it."""
    parameter = optimizer.param_groups[0]["params"][0]
    before = float(parameter.detach())
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    optimizer.step()
    return before - float(parameter.detach())


def train(optimizer: Optimizer, *loaders: DataLoader[Any]) -> list[float]:
    """Train an epoch on each loader; return the rates that were in force."""
    return [moved(optimizer) for own in loaders for _ in own]


@pytest.mark.parametrize(
    ("rule", "factor"),
    [(LrRule.LINEAR, 4.0), (LrRule.SQRT, 2.0), (LrRule.NONE, 1.0), (LrRule.AUTO, 4.0)],
)
def test_a_step_has_the_rate_of_its_batch_and_the_program_sees_its_own(
    rule: LrRule, factor: float
) -> None:
    with running(applied(rule, batch_size=40)):
        data, optimizer = loader(), SGD([weight()], lr=0.1)
        assert train(optimizer, data) == pytest.approx([0.1 * factor] * 3)
        assert optimizer.param_groups[0]["lr"] == 0.1


def test_folds_and_second_loaders_train_by_the_rate_of_their_own_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Pre-training then fine-tuning, folds of unequal length, another loader in between."""
    with running(applied(batch_size=40)):
        tuned, fold, small = loader(), loader(samples=90), loader(batch_size=5)
        optimizer = SGD([weight()], lr=0.1)
        assert train(optimizer, tuned) == pytest.approx([0.4] * 3)
        assert train(optimizer, fold) == pytest.approx([0.1] * 9)
        assert train(optimizer, small) == pytest.approx([0.1] * 20)
        assert train(optimizer, tuned) == pytest.approx([0.4] * 3)
        fine = SGD([weight()], lr=0.01)
        assert train(fine, fold) == pytest.approx([0.01] * 9)
    assert caplog.text.count("with its own batch size") == 1


def test_what_is_looked_at_without_gradients_feeds_no_optimizer() -> None:
    with running(applied(batch_size=40)):
        tuned, validation, optimizer = loader(), loader(50), SGD([weight()], lr=0.1)
        batches = iter(tuned)
        next(batches)
        with torch.no_grad():
            list(validation)
        assert moved(optimizer) == pytest.approx(0.4)


def test_what_is_looked_at_with_gradients_feeds_no_optimizer_beside_the_tuned_loader(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A validation without ``no_grad()``, and a loader that is read in step with the tuned one."""
    with running(applied(batch_size=40)):
        tuned, other, optimizer = loader(), loader(30), SGD([weight()], lr=0.1)
        for _ in tuned:
            list(other)
            assert moved(optimizer) == pytest.approx(0.4)
        assert [moved(optimizer) for _ in zip(tuned, other, strict=False)] == pytest.approx(
            [0.4] * 3
        )
        ahead = iter(tuned)
        next(ahead)
        for _ in range(3):  # it takes the next batch before it steps, and none before the last
            next(ahead, None)
            assert moved(optimizer) == pytest.approx(0.4)
    assert not caplog.text


def test_batches_that_are_taken_within_a_step_leave_its_rate() -> None:
    """By a closure, or by another thread that reads ahead."""
    with running(applied(batch_size=40)):
        batches, parameter = iter(loader()), weight()
        optimizer = SGD([parameter], lr=0.1)

        def closure() -> float:
            parameter.grad = torch.ones_like(parameter)
            reader = threading.Thread(target=next, args=(batches,))
            reader.start()
            reader.join()
            next(batches)
            return 0.0

        optimizer.step(closure)
        assert float(parameter.detach()) == pytest.approx(-0.4)
        assert optimizer.param_groups[0]["lr"] == 0.1


def test_hooks_of_a_step_see_and_set_the_programs_own_rates() -> None:
    def rates() -> list[float]:
        data, optimizer = loader(), SGD([weight()], lr=0.1)
        schedule = lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))
        optimizer.register_step_post_hook(lambda *_: schedule.step())
        return train(optimizer, data)[:3]

    plain = rates()
    with running(applied(batch_size=40)):
        assert rates() == pytest.approx([4 * rate for rate in plain])


def test_an_optimizer_that_is_built_anew_in_place_keeps_the_rate_of_its_batch() -> None:
    with running(applied(batch_size=40)):
        data, parameter = loader(), weight()
        optimizer = SGD([parameter], lr=0.1)
        assert train(optimizer, data) == pytest.approx([0.4] * 3)
        optimizer.__init__([parameter], lr=0.2)  # type: ignore[misc]
        assert train(optimizer, data) == pytest.approx([0.8] * 3)


def test_a_hook_that_the_program_adds_after_its_first_step_sees_its_own_rates() -> None:
    seen: list[float] = []
    with running(applied(batch_size=40)):
        data, optimizer = loader(), SGD([weight()], lr=0.1)
        train(optimizer, data)
        optimizer.register_step_pre_hook(lambda own, *_: seen.append(own.param_groups[0]["lr"]))
        assert train(optimizer, data)[:2] == pytest.approx([0.4, 0.4])
    assert set(seen) == {0.1}


def test_hooks_for_all_optimizers_may_come_after_those_that_count_the_first_steps() -> None:
    calls = []
    with running(applied()):
        handle = register_optimizer_step_post_hook(lambda *_: calls.append(1))
        assert train(SGD([weight()], lr=0.1), loader()) == pytest.approx([0.1] * 10)
        handle.remove()
    assert len(calls) == 10


def test_backward_passes_are_torchs_own_again_once_an_optimizer_steps() -> None:
    own = torch.autograd.backward
    with running(applied(workers=1)):
        assert torch.autograd.backward is not own, "a step by hand would be seen"
        train(SGD([weight()], lr=0.1), loader())
        assert torch.autograd.backward is own


def test_the_factor_is_on_every_group_once() -> None:
    """Groups that are thawed, a list of groups that serves twice, a second optimizer."""
    with running(applied(batch_size=40)):
        data = loader()
        groups: list[dict[str, Any]] = [{"params": [weight()], "lr": 0.1}]
        for _ in range(3):
            optimizer = SGD(groups, lr=0.5)
            assert train(optimizer, data) == pytest.approx([0.4] * 3)
        named: list[dict[str, Any]] = [{"params": [weight()]}]  # torch writes the rate into it
        assert [moved(SGD(named, lr=0.1)) for _ in range(3)] == pytest.approx([0.4] * 3)
        thawed, first = weight(), optimizer.param_groups[0]
        optimizer.add_param_group({"params": [thawed], "lr": first["lr"] / 10})
        train(optimizer, data)
        assert float(thawed.detach()) == pytest.approx(-3 * 0.04)
        assert train(SGD([weight()], lr=first["lr"]), data) == pytest.approx([0.4] * 3)


def test_a_program_that_follows_the_batch_itself_is_left_to_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running(applied(batch_size=40)):
        data = loader()
        optimizer = SGD([weight()], lr=0.01 * (data.batch_size or 0))
        assert train(optimizer, data) == pytest.approx([0.4] * 3)
        other = SGD([weight()], lr=0.3)
        assert train(other, data) == pytest.approx([1.2] * 3)
    assert "with the batch size (linear)" in caplog.text


def test_one_that_builds_its_optimizers_again_follows_the_batch_with_each_of_them() -> None:
    with running(applied(batch_size=40)):
        folds = []
        for _ in range(3):
            data = loader()
            folds.append(SGD([weight()], lr=0.01 * (data.batch_size or 0)))
            assert train(folds[-1], data) == pytest.approx([0.4] * 3)


def test_an_optimizer_that_was_there_before_the_batch_changed_does_not_follow_it() -> None:
    """Its rate has come to four times that of its first step by a warm-up of the program's."""
    with running(changed(applied(), optimizers=(SGD_FACTS,)), Listener()) as seams:
        data, optimizer = loader(), SGD([weight()], lr=0.1)
        moved(optimizer)
        Steering(seams).apply(applied(batch_size=40), since=applied())
        optimizer.param_groups[0]["lr"] = 0.4
        next(iter(data))
        assert moved(optimizer) == pytest.approx(1.6)


def test_a_checkpoint_holds_the_programs_own_rates_and_flags() -> None:
    """Also one that was saved under a config: it goes on in plain Python, and the other way."""
    with running(applied(batch_size=40, optimizer="foreach")):
        data, optimizer = loader(), Adam([weight()], lr=0.1)
        train(optimizer, data)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        own = Adam([weight()], lr=0.1)
        own.load_state_dict(optimizer.state_dict())
        assert own.param_groups[0]["foreach"] is True, "as asked, not as saved"
    file.seek(0)
    (group,) = torch.load(file)["param_groups"]
    assert (group["lr"], group["foreach"], group["fused"]) == (0.1, None, None)


def test_a_loaded_state_keeps_its_rate_and_the_implementation_that_was_asked_for() -> None:
    saved = SGD([weight()], lr=0.025, momentum=0.9)
    moved(saved)
    plain = SGD([weight()], lr=0.025).state_dict()  # of a run without autotune
    with running(applied(batch_size=40)):
        data, optimizer = loader(), SGD([weight()], lr=0.1)
        train(optimizer, data)
        optimizer.load_state_dict(plain)
        assert train(optimizer, data) == pytest.approx([0.1] * 3)
        resumed = SGD([weight()], lr=0.1)
        resumed.load_state_dict(plain)  # before its first step
        assert train(resumed, data) == pytest.approx([0.1] * 3)
    with running(applied(optimizer="fused")):
        scaler, parameter = torch.amp.GradScaler("cpu"), nn.Parameter(torch.zeros(1))
        optimizer = SGD([parameter], lr=0.1, momentum=0.9)
        for _ in range(2):
            scaler.scale((parameter * 1).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.load_state_dict(saved.state_dict())
            assert optimizer.param_groups[0]["fused"] is True


def test_rates_by_hand_follow_and_no_schedule_jumps_after_them() -> None:
    def rates() -> list[float]:
        data, optimizer = loader(), SGD([weight()], lr=0.1)
        schedule = lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        seen = []
        for step in range(8):
            next(iter(data))
            if step < 3:
                optimizer.param_groups[0]["lr"] = 0.1 * (step + 1) / 3
            seen.append(moved(optimizer))
            if step >= 3:
                schedule.step()
        return seen

    plain = rates()
    with running(applied(batch_size=40)):
        assert rates() == pytest.approx([4 * rate for rate in plain])


def test_each_optimizer_follows_by_the_rule_of_its_kind() -> None:
    class Unknown(SGD):
        """An optimizer of the user's own; its kin is known."""

    class Strange(Optimizer):
        """One of whose kind nothing is known."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for p in self.param_groups[0]["params"]:
                p.data.add_(p.grad, alpha=-self.param_groups[0]["lr"])

    with running(applied(batch_size=40)) as seams:
        data, adam = loader(), Adam([weight()], lr=0.1)
        optimizers = [SGD([weight()], lr=0.1), Unknown([weight()], lr=0.1), Strange([weight()])]
        next(iter(data))
        assert [moved(o) for o in optimizers] == pytest.approx([0.4, 0.4, 0.1])
        assert moved(adam) == pytest.approx(0.2)  # whose first step is as long as its rate
        muon = torch.optim.Muon([nn.Parameter(torch.zeros(2, 2))], lr=0.1)
        assert seams.rates.factor(muon) == 2.0


def test_optimizers_that_step_others_and_rates_that_are_tensors_are_scaled_once() -> None:
    class Around(Optimizer):
        """As SAM and Lookahead do: it holds the groups of another, and steps it."""

        def __init__(self, inner: Optimizer) -> None:
            self.inner = inner
            super().__init__(inner.param_groups, {"lr": 0.1})
            self.param_groups = inner.param_groups

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.inner.step()

    for rate in (0.1, torch.tensor(0.1, dtype=torch.float64)):
        with running(applied(LrRule.LINEAR, batch_size=40)):
            data = loader()
            optimizer = Around(SGD([weight()], lr=rate))
            assert train(optimizer, data) == pytest.approx([0.4] * 3)
            assert optimizer.param_groups[0]["lr"] is rate


def test_a_step_that_fails_leaves_the_program_its_rate() -> None:
    def closure() -> float:
        raise ValueError("no loss")

    with running(applied(batch_size=40)):
        data, optimizer = loader(), SGD([weight()], lr=0.1)
        next(iter(data))
        with pytest.raises(ValueError, match="no loss"):
            optimizer.step(closure)
        assert moved(optimizer) == pytest.approx(0.4)
        assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_loss_that_sums_has_no_second_factor_where_a_step_is_as_long_as_its_gradient() -> None:
    with running(replace(applied(batch_size=40), sums=True)):
        data, adam = loader(), Adam([weight()], lr=0.1)
        assert train(SGD([weight()], lr=0.1), data) == pytest.approx([0.1] * 3)
        assert moved(adam) == pytest.approx(0.2)


SCHEDULES: dict[str, Callable[[Optimizer], lr_scheduler.LRScheduler]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "cosine with a floor": lambda o: lr_scheduler.CosineAnnealingLR(o, 10, eta_min=0.01),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=20),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "warm-up, then cosine": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, total_iters=3), lr_scheduler.CosineAnnealingLR(o, T_max=7)],
        milestones=[3],
    ),
}


def test_schedules_stay_the_programs_own_also_where_the_batch_changes_live() -> None:
    def rates(name: str, change: Callable[[], None]) -> list[tuple[float, float]]:
        optimizer = SGD([weight()], lr=0.1)
        schedule = SCHEDULES[name](optimizer)
        change()
        seen = []
        for _ in range(8):
            seen.append((moved(optimizer), float(schedule.get_last_lr()[0])))
            schedule.step()
        return seen

    for name in SCHEDULES:
        plain = rates(name, lambda: None)
        with running(applied(), Listener()) as seams:
            _loader = loader()
            there = rates(
                name, lambda: Steering(seams).apply(applied(batch_size=40), since=applied())
            )
            back = rates(
                name, lambda: Steering(seams).apply(applied(), since=applied(batch_size=40))
            )
        assert [own for _, own in there] == [own for _, own in plain], name
        assert [rate for rate, _ in there] == pytest.approx([4 * rate for rate, _ in plain]), name
        assert back == plain, name


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"batch_size": 20}, 2.0),
        ({"accumulation_steps": 8}, 2.0),
        ({"batch_size": 20, "accumulation_steps": 2}, 1.0),
    ],
)
def test_rates_follow_what_a_baseline_that_accumulates_makes(
    changes: dict[str, KnobValue], factor: float
) -> None:
    baseline = Config({"batch_size": 10, "accumulation_steps": 4})
    flags = {"batch_size": Flag("--batch-size"), "accumulation_steps": Flag("--accumulate")}
    base = changed(applied(LrRule.LINEAR), config=baseline, baseline=baseline, flags=flags)
    seams = SeamSet(listener=None, target=None)
    Steering(seams).apply(replace(base, config=baseline.replace(**changes)))
    assert seams.rates.factor(SGD([weight()], lr=0.1)) == pytest.approx(factor)


def test_where_the_loader_is_no_longer_there_rates_are_the_programs_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING), running(applied(batch_size=40)):
        assert moved(SGD([weight()], lr=0.1)) == pytest.approx(0.1)
    assert "no DataLoader here is the one that was tuned" in caplog.text


@pytest.mark.parametrize("scales", ["at first, warmed up from zero", "in its schedule", "no"])
def test_a_program_that_scales_its_rate_by_a_schedule_is_recognised(scales: str) -> None:
    """The rate that counts is the one before torch's schedulers, or the one at the first step."""
    said: list[str] = []
    seam = RatesSeam(said.append)
    growth = 4.0

    def made(growth: float) -> Optimizer:
        begins, factor = 0.1, 1.0
        if scales.startswith("at first"):
            begins, factor = 0.1 * growth, 0.0
        elif scales == "in its schedule":
            factor = growth
        optimizer = SGD([nn.Parameter(torch.ones(1))], begins)
        lr_scheduler.LambdaLR(optimizer, lambda _: factor)
        return optimizer

    own = made(1.0)
    facts = OptimizerFacts(
        "SGD", ("SGD", "Optimizer"), rates_of(own), initial_lrs=initial_rates_of(own)
    )
    seam.set_rule(LrRule.LINEAR, {"batch_size": 10}, (facts,))
    seam.follow(batch_size=round(10 * growth))
    seam.before_step(made(growth))
    assert ("already scales the learning rate" in "".join(said)) is (scales != "no")
