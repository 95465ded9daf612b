"""What a loop does by its own hand is seen in two steps, which it does not change."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, lr_scheduler
from torch.optim.swa_utils import AveragedModel
from torch.overrides import TorchFunctionMode
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from autotune.inside.listener import Listener
from autotune.inside.ranks.group import ALONE
from autotune.inside.seams import SeamSet, loop_watch
from autotune.inside.step_tracker import Step, StepTracker
from autotune.knobs import registry
from autotune.knobs.base import Here
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import HandKind, HandWork, Profile
from autotune.rig.wire import Ready, decode, encode
from tests.made import make_hardware, make_profile

STEPS = 5


@pytest.fixture(autouse=True)
def _has_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests have compiled in this process: nothing is watched in one that has."""
    monkeypatch.setattr(loop_watch, "frames_compiled", lambda: 0)


def nothing(*_: Any) -> None:
    """Do no work by hand."""


@dataclass
class Loop:
    """An ordinary loop, with places for work by hand.

    Attributes:
        computed: Called between backward pass and step, with the loop.
        stepped: Called after the step.
        begun: Called before the model.
    """

    computed: Callable[[Loop], Any] = nothing
    stepped: Callable[[Loop], Any] = nothing
    begun: Callable[[Loop], Any] = nothing
    set_up: Callable[[Loop], Any] = nothing
    context: Callable[[], Any] = nullcontext
    to_none: bool = True
    batch_size: int = 8
    losses: list[float] = field(default_factory=list)
    own: Any = None

    def run(self, *, watched: bool) -> tuple[HandWork, ...]:
        torch.manual_seed(0)
        seams = SeamSet(Listener(), None)
        seams.install()
        if watched:
            seams.watch()
        try:
            data = TensorDataset(torch.randn(8 * STEPS, 4), torch.randn(8 * STEPS, 1))
            self.loader = DataLoader(data, batch_size=self.batch_size, shuffle=True)
            self.model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1), nn.Linear(3, 1))
            self.optimizer = SGD(self.model.parameters(), lr=0.1)
            self.set_up(self)
            with self.context():
                self._train()
            return seams.loop_watch.found([self.loader])
        finally:
            seams.remove()

    def _train(self) -> None:
        for number, (x, y) in enumerate(self.loader):
            self.x, self.y, self.number = x, y, number
            self.optimizer.zero_grad(set_to_none=self.to_none)
            self.begun(self)
            self.loss = nn.functional.mse_loss(self.model(x), y)
            self.loss.backward()
            self.computed(self)
            self.optimizer.step()
            self.losses.append(self.loss.item())
            self.stepped(self)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    @property
    def gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]


def keeps(loop: Loop) -> None:
    loop.own = [p.detach().clone() for p in loop.parameters]


@torch.no_grad()
def averages(loop: Loop) -> None:
    for own, parameter in zip(loop.own, loop.parameters, strict=True):
        own.mul_(0.9).add_(parameter, alpha=0.1)


@torch.no_grad()
def averages_into_new_tensors(loop: Loop) -> None:
    pairs = zip(loop.own, loop.parameters, strict=True)
    loop.own = [(0.9 * own + 0.1 * p.data).clone() for own, p in pairs]


def copies(loop: Loop) -> None:
    loop.own = copy.deepcopy(loop.model)


def averages_a_model(loop: Loop) -> None:
    pairs = zip(loop.own.state_dict().values(), loop.model.state_dict().values(), strict=True)
    for own, other in pairs:
        own.copy_(0.9 * own + 0.1 * other)


def averages_at_once(loop: Loop) -> None:
    torch._foreach_lerp_(loop.own, [p.data for p in loop.parameters], 0.1)


def sets_data(loop: Loop) -> None:
    for own, parameter in zip(loop.own.parameters(), loop.parameters, strict=True):
        own.data = 0.9 * own.data + 0.1 * parameter.data


def is_sharpness_aware(loop: Loop) -> None:
    with torch.no_grad():
        for parameter in loop.parameters:
            parameter.add_(torch.ones(()), alpha=0.05)
    loop.optimizer.zero_grad()
    nn.functional.mse_loss(loop.model(loop.x), loop.y).backward()
    with torch.no_grad():
        for parameter in loop.parameters:
            parameter.sub_(0.01)


def attacks(loop: Loop) -> None:
    loop.x.requires_grad_()
    nn.functional.mse_loss(loop.model(loop.x), loop.y).backward()
    loop.model.zero_grad()
    loop.x.requires_grad_(False)


def clips_by_hand(loop: Loop) -> None:
    norm = torch.stack([gradient.norm() for gradient in loop.gradients]).norm()
    for gradient in loop.gradients:
        gradient.mul_(1 / (norm + 1))


def sets_gradients(loop: Loop) -> None:
    for parameter in loop.parameters:
        assert parameter.grad is not None
        parameter.grad = parameter.grad - parameter.grad.mean()


def anneals(loop: Loop) -> None:
    loop.optimizer.param_groups[0]["lr"] = 0.1 / (1 + loop.number)


def plans(loop: Loop) -> None:
    loop.own = lr_scheduler.OneCycleLR(loop.optimizer, 0.1, total_steps=2 * len(loop.loader))


def plans_by_function(loop: Loop) -> None:
    steps = len(loop.loader)
    loop.own = lr_scheduler.LambdaLR(loop.optimizer, lambda step: 1 - step / (steps + 1))


def plans_by_samples(loop: Loop) -> None:
    loop.own = lr_scheduler.CosineAnnealingLR(loop.optimizer, STEPS)  # as its arguments say


def schedules(loop: Loop) -> None:
    loop.own.step()


def inner_closure(loop: Loop) -> None:
    step = loop.optimizer.step

    def again() -> torch.Tensor:
        loss = nn.functional.mse_loss(loop.model(loop.x), loop.y)
        loss.backward()
        return loss

    vars(loop.optimizer)["step"] = lambda: step(again)


AT_WORK = {
    "an average": (Loop(set_up=keeps, stepped=averages), HandKind.KEPT),
    "an average in new tensors": (
        Loop(set_up=keeps, stepped=averages_into_new_tensors),
        HandKind.KEPT,
    ),
    "a model's average": (Loop(set_up=copies, stepped=averages_a_model), HandKind.KEPT),
    "an average of lists": (Loop(set_up=keeps, stepped=averages_at_once), HandKind.KEPT),
    "an average set as data": (Loop(set_up=copies, stepped=sets_data), HandKind.PARAMETERS),
    "sharpness": (Loop(computed=is_sharpness_aware), HandKind.PARAMETERS),
    "an attack": (Loop(begun=attacks), HandKind.THROWN),
    "clipping": (Loop(computed=clips_by_hand), HandKind.GRADIENTS),
    "centred gradients": (Loop(computed=sets_gradients), HandKind.GRADIENTS),
    "a rate": (Loop(begun=anneals), HandKind.RATE),
    "a schedule": (Loop(set_up=plans, stepped=schedules), HandKind.SCHEDULE),
    "a function's schedule": (Loop(set_up=plans_by_function, stepped=schedules), HandKind.SCHEDULE),
    "gradients again in the step": (Loop(set_up=inner_closure), HandKind.PASSES),
}


class OwnMode(TorchFunctionMode):
    """One that the program uses for something of its own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def counts(loop: Loop) -> None:
    loop.own = torch.zeros(2) if loop.own is None else loop.own
    loop.own += torch.stack([loop.loss.detach(), torch.ones(())])


def averages_by_torch(loop: Loop) -> None:
    loop.own = loop.own or AveragedModel(loop.model)
    loop.own.update_parameters(loop.model)


def plans_by_number(loop: Loop) -> None:
    assert str(len(loop.loader))
    loop.own = lr_scheduler.StepLR(loop.optimizer, 3, gamma=0.5)


def scales(loop: Loop) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    loss = nn.functional.mse_loss(loop.model(loop.x), loop.y)
    scaler.scale(loss).backward()
    scaler.unscale_(loop.optimizer)


def clears_gradients_of_data(loop: Loop) -> None:
    assert loop.x.grad is not None
    loop.x.grad = None
    loop.x.requires_grad_(False)


@contextmanager
def on_a_device() -> Iterator[None]:
    with torch.device("cpu"):
        yield


SOUND = {
    "nothing": Loop(),
    "norms": Loop(computed=lambda loop: [float(gradient.norm()) for gradient in loop.gradients]),
    "weights looked at": Loop(stepped=lambda loop: [p.data.abs().mean() for p in loop.parameters]),
    "counters": Loop(stepped=counts),
    "a batch changed in place": Loop(begun=lambda loop: loop.x.mul_(0.5).add_(0.1)),
    "weights clamped": Loop(stepped=lambda loop: [p.data.clamp_(-1, 1) for p in loop.parameters]),
    "torch's clipping": Loop(computed=lambda loop: clip_grad_norm_(loop.parameters, 0.1)),
    "torch's averages": Loop(stepped=averages_by_torch),
    "a copy of the weights": Loop(stepped=keeps),
    "a schedule by numbers, and a length that is printed": Loop(
        set_up=plans_by_number, stepped=schedules
    ),
    "a scaler's own work": Loop(computed=scales),
    "a part frozen again": Loop(computed=lambda loop: setattr(loop.parameters[0], "grad", None)),
    "gradients of data": Loop(
        begun=lambda loop: loop.x.requires_grad_(), stepped=clears_gradients_of_data
    ),
    "a mode of its own": Loop(context=OwnMode),
    "a default device": Loop(context=on_a_device),
}


def test_work_by_hand_is_found_with_its_place_and_changes_no_loss() -> None:
    for name, (loop, kind) in AT_WORK.items():
        watched, plain = replace(loop, losses=[]), replace(loop, losses=[])
        found = watched.run(watched=True)
        plain.run(watched=False)
        assert watched.losses == plain.losses, name
        assert kind in {work.kind for work in found}, (name, found)
        places = {work.where.split(":")[0] for work in found if work.where}
        assert places <= {"tests/inside/test_loop_watch.py", "test_loop_watch.py"}, name


def test_sound_loops_are_found_to_do_nothing_by_hand_and_keep_their_losses() -> None:
    for name, loop in SOUND.items():
        watched, plain = replace(loop, losses=[]), replace(loop, losses=[])
        found = watched.run(watched=True)
        plain.run(watched=False)
        assert watched.losses == plain.losses, name
        assert found == (), name


def test_work_by_hand_refuses_accumulation_with_its_evidence() -> None:
    for kind in HandKind:
        profile = make_profile(by_hand=(HandWork(kind, "mul_", "train.py:57"),))
        refusal = registry()["accumulation_steps"].domain(Here(make_hardware(), profile))
        assert isinstance(refusal, NotOffered)
        assert "train.py:57: mul_" in refusal.reason
    sound = registry()["accumulation_steps"].domain(Here(make_hardware(), make_profile()))
    assert isinstance(sound, Domain)


def test_a_schedule_that_no_loader_plans_refuses_a_batch_under_which_it_would_not_end() -> None:
    loop = Loop(set_up=plans_by_samples, stepped=schedules)
    larger = replace(loop, batch_size=32, losses=[])
    larger.run(watched=False)
    assert larger.optimizer.param_groups[0]["lr"] > 0.06, "of 0.1, where its own is 0"
    found = loop.run(watched=True)
    assert loop.optimizer.param_groups[0]["lr"] == pytest.approx(0.0)
    assert HandKind.COUNTED_SCHEDULE in {work.kind for work in found}
    for knob in ("batch_size", "accumulation_steps"):
        refusal = registry()[knob].domain(Here(make_hardware(), make_profile(by_hand=found)))
        assert isinstance(refusal, NotOffered), knob
        assert "CosineAnnealingLR" in refusal.reason
    asks = Loop(set_up=plans_by_number, stepped=schedules).run(watched=True)
    offered = registry()["batch_size"].domain(Here(make_hardware(), make_profile(by_hand=asks)))
    assert isinstance(offered, Domain)


class Observed(StepTracker):
    """Keeps the profile."""

    known: Profile | None = None

    def on_step_end(self, step: Step) -> None:
        """Measure nothing."""

    def observed(self) -> None:
        """The first steps are over."""
        self.known = self.observer.profile({})


@pytest.mark.parametrize(("batches", "skips"), [(1, False), (2, False), (3, False), (1, True)])
def test_the_batches_of_a_step_are_counted_whatever_makes_them(batches: int, skips: bool) -> None:
    """By a batch sampler; one batch that is skipped, as a scaler does, is no accumulation."""
    observed = Observed(None, ALONE)
    observed.seams.install()
    observed.seams.watch()
    try:
        data = TensorDataset(torch.randn(160, 4))
        sampler = BatchSampler(SequentialSampler(data), 4, drop_last=False)
        loader = DataLoader(data, batch_sampler=Unequal(sampler))
        model = nn.Linear(4, 1)
        optimizer = SGD(model.parameters(), lr=0.1)
        for number, (x,) in enumerate(loader):
            model(x).square().mean().backward()
            if (number + 1) % batches or (skips and number == 4):
                continue
            optimizer.step()
            optimizer.zero_grad()
            if observed.known is not None:
                break
    finally:
        observed.seams.remove()
    profile = observed.known
    assert profile is not None
    assert profile.batches_per_step == batches
    assert profile.accumulates == (batches > 1)
    sent = Ready(replace(profile, by_hand=(HandWork(HandKind.KEPT, "a", "b"),)), 0.0, (), 0)
    assert decode(encode(sent)) == sent


class Unequal(BatchSampler):
    """A batch sampler of the program's own."""

    def __init__(self, own: BatchSampler) -> None:
        self.own = own

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)


class Momentum(nn.Module):
    """Averages its weights as it is called, as MoCo and BYOL do."""

    def __init__(self, own: nn.Module, keep: float) -> None:
        super().__init__()
        self.own, self.keep = own, keep
        self.average = copy.deepcopy(own).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.keep < 1:
            for average, p in zip(self.average.parameters(), self.own.parameters(), strict=True):
                average.data = average.data * self.keep + p.data * (1 - self.keep)
        return self.own(x) + 0 * self.average(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("keep", "found"), [(0.9, "Momentum.forward"), (1.0, "")])
def test_an_average_of_weights_that_a_model_takes_as_it_is_called_is_found(
    keep: float, found: str
) -> None:
    def wraps(loop: Loop) -> None:
        loop.model = Momentum(loop.model, keep)  # type: ignore[assignment]

    work = Loop(set_up=wraps).run(watched=True)
    assert [(w.kind, w.what) for w in work] == ([(HandKind.KEPT, found)] if found else [])
