"""Learning rates: in each step that of the batch the step was made of; anywhere else the program's.

What is compared is the rate in force: how far plain SGD moves a weight whose gradient is one.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
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
from autotune.inside.steering import Steering
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.flags import Flag
from autotune.program.lr import LrRule
from autotune.program.profile import OptimizerFacts
from tests.made import changed, make_applied, make_loader
from tests.watching import running

FACTS = make_loader(dataset_len=100, batch_size=10)
BASELINE: dict[str, KnobValue] = {"batch_size": 10, "optimizer": "for-loop"}
SGD_FACTS = OptimizerFacts("SGD", ("SGD", "Optimizer"), (0.1,))


def applied(rule: LrRule = LrRule.AUTO, **changes: KnobValue) -> AppliedConfig:
    own, optimizers = Config(BASELINE), (SGD_FACTS,)
    return make_applied(
        {**own, **changes}, baseline=own, loader=FACTS, optimizers=optimizers, lr_rule=rule
    )


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
    assert seams.steps.rates.factor(SGD([weight()], lr=0.1)) == pytest.approx(factor)


def test_batches_that_are_only_looked_at_leave_the_rate_of_the_tuned_loader(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With gradients or without, in step with the tuned loader, or by a closure and its thread."""
    with running(applied(batch_size=40)):
        tuned, other, optimizer = loader(), loader(30), SGD([weight()], lr=0.1)
        for _ in tuned:
            list(other)
            assert moved(optimizer) == pytest.approx(0.4)
        with torch.no_grad():
            list(other)
        assert moved(optimizer) == pytest.approx(0.4)
        batches, parameter = iter(tuned), optimizer.param_groups[0]["params"][0]

        def closure() -> float:
            for read in (threading.Thread(target=next, args=(batches,)).run, lambda: next(batches)):
                read()
            parameter.grad = torch.full_like(parameter, 2.0)
            return 0.0

        before = float(parameter.detach())
        optimizer.step(closure)
        assert before - float(parameter.detach()) == pytest.approx(0.8)
    assert not caplog.text


def test_a_step_that_fails_leaves_the_program_its_rate() -> None:
    def closure() -> float:
        raise ValueError("no loss")

    with running(applied(batch_size=40)):
        data, optimizer = loader(), SGD([weight()], lr=0.1)
        next(iter(data))
        with pytest.raises(ValueError, match="no loss"):
            optimizer.step(closure)
        assert moved(optimizer) == pytest.approx(0.4)


@pytest.mark.parametrize("place", ["before", "after", "after all", "a tensor"])
def test_hooks_of_a_step_see_and_set_the_rates_of_the_program(place: str) -> None:
    def rates() -> list[float]:
        seen, data = [], loader()
        rate = torch.tensor(0.1, dtype=torch.float64) if place == "a tensor" else 0.1
        optimizer = SGD([weight()], lr=rate, foreach=False)
        (group,) = optimizer.param_groups

        def decay(*_: Any) -> None:
            if place == "a tensor":
                group["lr"].mul_(0.5)
            else:
                group["lr"] *= 0.5
            seen.append(float(group["lr"]))

        registers = {
            "before": optimizer.register_step_pre_hook,
            "after all": register_optimizer_step_post_hook,
        }
        handle = registers.get(place, optimizer.register_step_post_hook)(decay)
        found = train(optimizer, data)[:3]
        handle.remove()
        return [*found, *(4 * rate for rate in seen[:3])]

    plain = rates()
    with running(applied(batch_size=40)):
        found = rates()
    assert found[:3] == pytest.approx([4 * rate for rate in plain[:3]])
    assert found[3:] == pytest.approx(plain[3:])


def test_a_program_that_follows_the_batch_itself_is_left_to_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also one that builds its optimizer anew for each fold."""
    with running(applied(batch_size=40)):
        for _ in range(3):
            data = loader()
            optimizer = SGD([weight()], lr=0.01 * (data.batch_size or 0))
            assert train(optimizer, data) == pytest.approx([0.4] * 3)
        other = SGD([weight()], lr=0.3)
        assert train(other, data) == pytest.approx([1.2] * 3)
    assert caplog.text.count("with the batch size (linear)") == 1


class Around(Optimizer):
    """As SAM and Lookahead do: it holds the groups of another, and steps it."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {"lr": 0.1})
        self.param_groups = inner.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_the_factor_is_on_every_group_once() -> None:
    """Groups that are thawed, one that serves two optimizers, rates that are tensors."""
    with running(applied(LrRule.LINEAR, batch_size=40)):
        data = loader()
        groups: list[dict[str, Any]] = [{"params": [weight()], "lr": 0.1}]
        for _ in range(2):
            optimizer = SGD(groups, lr=0.5)
            assert train(optimizer, data) == pytest.approx([0.4] * 3)
        thawed, first = weight(), optimizer.param_groups[0]
        optimizer.add_param_group({"params": [thawed], "lr": first["lr"] / 10})
        train(optimizer, data)
        assert float(thawed.detach()) == pytest.approx(-3 * 0.04)
        for rate in (0.1, torch.tensor(0.1, dtype=torch.float64)):
            around = Around(SGD([weight()], lr=rate))
            assert train(around, data) == pytest.approx([0.4] * 3)
            assert around.param_groups[0]["lr"] is rate


def test_a_step_of_a_class_and_of_its_base_is_one_step() -> None:
    """The hooks of a step run once for each of the two, as the program also builds the base."""

    class Twice(SGD):
        def step(self, closure: Any = None) -> Any:
            found = super().step(closure)
            return super().step() if found is None else found

    with running(applied(LrRule.LINEAR, batch_size=40)):
        data = loader()
        for kind in (SGD, Twice, SGD):
            steps = 2 if kind is Twice else 1
            optimizer = kind([weight()], lr=0.1)
            assert train(optimizer, data) == pytest.approx([0.4 * steps] * 3)
            assert optimizer.param_groups[0]["lr"] == 0.1


def test_steps_of_several_threads_end_in_any_order() -> None:
    entered, left = threading.Event(), threading.Event()

    def closure() -> float:
        entered.set()
        left.wait(60)
        return 0.0

    with running(applied(LrRule.LINEAR, batch_size=40)):
        data, first, second = loader(), SGD([weight()], lr=0.1), SGD([weight()], lr=0.1)
        next(iter(data))
        other = threading.Thread(target=first.step, args=(closure,))

        def steps_across() -> float:
            left.set()
            other.join()
            return moved(first)

        other.start()
        entered.wait(60)
        assert second.step(steps_across) == pytest.approx(0.4)


def test_checkpoints_hold_and_bring_the_programs_own_rates_and_flags() -> None:
    plain = Adam([weight()], lr=0.025).state_dict()  # of a run without autotune
    with running(applied(batch_size=40, optimizer="foreach")):
        data, optimizer = loader(), Adam([weight()], lr=0.1)
        train(optimizer, data)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        optimizer.load_state_dict(plain)
        (group,) = optimizer.param_groups
        assert (group["lr"], group["foreach"]) == (0.025, True), "as asked, not as saved"
        train(optimizer, data)
        assert group["lr"] == 0.025
    file.seek(0)
    (group,) = torch.load(file)["param_groups"]
    assert (group["lr"], group["foreach"], group["fused"]) == (0.1, None, None)


def test_each_optimizer_follows_by_the_rule_of_its_kind() -> None:
    class Unknown(SGD):
        """An optimizer of the user's; its kin is known."""

    class Strange(Optimizer):
        """One of whose kind nothing is known."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for p in self.param_groups[0]["params"]:
                p.data.add_(p.grad, alpha=-self.param_groups[0]["lr"])

    with running(applied(batch_size=40)):
        data = loader()
        kinds = (SGD, Unknown, lambda p, **_: Strange(p), Adam)
        optimizers = [kind([weight()], lr=0.1) for kind in kinds]
        next(iter(data))
        # Adam's first step is as long as its rate
        assert [moved(o) for o in optimizers] == pytest.approx([0.4, 0.4, 0.1, 0.2])


SCHEDULES: dict[str, Callable[[Optimizer], lr_scheduler.LRScheduler]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "cosine with a floor": lambda o: lr_scheduler.CosineAnnealingLR(o, 10, eta_min=0.01),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=20),
    "warm-up, then cosine": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, total_iters=3), lr_scheduler.CosineAnnealingLR(o, T_max=7)],
        milestones=[3],
    ),
}


# torch's own schedule of schedules says so of itself before torch 2.7
@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_stay_the_programs_own_also_where_the_batch_changes_live(name: str) -> None:
    def rates(change: Callable[[], None]) -> list[tuple[float, float]]:
        optimizer = SGD([weight()], lr=0.1)
        schedule = SCHEDULES[name](optimizer)
        change()
        seen = []
        for _ in range(8):
            seen.append((moved(optimizer), float(schedule.get_last_lr()[0])))
            schedule.step()
        return seen

    plain, large, small = rates(lambda: None), applied(batch_size=40), applied()
    with running(small, Listener()) as seams:
        _loader = loader()
        there = rates(lambda: Steering(seams).apply(large, since=small))
        back = rates(lambda: Steering(seams).apply(small, since=large))
    assert [own for _, own in there] == [own for _, own in plain]
    assert [rate for rate, _ in there] == pytest.approx([4 * rate for rate, _ in plain])
    assert back == plain
