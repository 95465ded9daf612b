from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autotune.knobs import registry
from autotune.knobs.base import Here
from autotune.program.domain import NotOffered
from autotune.rig.failures import from_exception, program_error
from autotune.rig.wire import Ended
from tests.inside.test_seams import running
from tests.made import A100, PROGRAM, make_hardware
from tests.watching import profile_of, watched

BACKWARD = "loss.backward()"
UPDATES = {
    "data": (BACKWARD, "for p in model.parameters(): p.data.add_(p.grad, alpha=-0.1)"),
    "no_grad": (
        BACKWARD,
        "with torch.no_grad(): [p.sub_(0.1 * p.grad) for p in model.parameters()]",
    ),
    "autograd.grad": (
        "grads = torch.autograd.grad(loss, list(model.parameters()))",
        "for p, g in zip(model.parameters(), grads): p.data -= 0.1 * g",
    ),
    "an object": (BACKWARD, "own.step()"),
}
OWN = """
class Own:
    def step(self):
        for p in model.parameters():
            p.data = p.data - 0.1 * p.grad
own = Own()
"""
LOOP = """
for epoch in range(4):
    for x, y in loader:
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        {passes}
        {update}
"""
NEEDS_AN_OPTIMIZER = (
    "optimizer",
    "batch_size",
    "accumulation_steps",
    "devices",
)
WORKS_WITHOUT = ("workers", "threads", "precision", "compile")


def line_of(tmp_path: Path, text: str) -> str:
    lines = (tmp_path / "train.py").read_text().splitlines()
    return f"train.py:{next(n for n, line in enumerate(lines, 1) if text in line)}"


def test_weights_written_by_hand_make_steps_whatever_way_they_are_written(tmp_path: Path) -> None:
    for passes, update in UPDATES.values():
        watching = watched(tmp_path, OWN + LOOP.format(passes=passes, update=update), borders=3)
        assert watching.profile is not None, update
        assert watching.profile.loop.steps_by_hand == line_of(tmp_path, passes), update
        assert (watching.profile.device, watching.profile.optimizers) == ("cpu", ())
        assert [facts.batch_size for facts in watching.profile.loaders] == [8]
        assert watching.samples == [8, 8, 8]


def test_a_step_by_hand_of_two_batches_or_of_two_models_is_one_step(tmp_path: Path) -> None:
    in_twos = """
for epoch in range(9):
    for i, (x, y) in enumerate(loader):
        (nn.functional.cross_entropy(model(x), y) / 2).backward()
        if i % 2:
            for p in model.parameters():
                p.data -= 0.1 * p.grad
            model.zero_grad()
"""
    two_models = """
other = nn.Linear(4, 2)
for epoch in range(9):
    for x, y in loader:
        for own in (model, other):
            own.zero_grad()
            nn.functional.cross_entropy(own(x), y).backward()
            for p in own.parameters():
                p.data -= 0.1 * p.grad
"""
    for source, samples in ((in_twos, 16), (two_models, 8)):
        watching = watched(tmp_path, source, borders=4)
        assert watching.samples == [samples] * 4


def test_programs_without_modules_or_loaders_are_driven_as_well(tmp_path: Path) -> None:
    raw = """
x, w = torch.randn(24, 4), torch.zeros(4, requires_grad=True)
for _ in range(20):
    (x @ w - 1).square().mean().backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad.zero_()
"""
    recurrent = """
net = nn.LSTM(4, 8)
for i in range(20):
    net.zero_grad()
    net(torch.randn(5, 24, 4))[0].sum().backward()
    for p in net.parameters():
        p.data.add_(p.grad, alpha=-0.1)
"""
    watching = watched(tmp_path, raw, borders=2)
    assert watching.profile is not None
    assert watching.profile.loop.steps_by_hand == line_of(tmp_path, "backward()")
    assert watching.samples == [1, 1]
    watching = watched(tmp_path, recurrent, borders=2)
    assert watching.profile is not None
    assert watching.profile.loaders == ()
    assert watching.profile.loop.steps_by_hand == line_of(tmp_path, "backward()")
    assert watching.samples == [5, 5]


def test_what_computes_gradients_before_an_optimizer_steps_is_no_step(tmp_path: Path) -> None:
    accumulates = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(99):
    for i, (x, y) in enumerate(loader):
        nn.functional.cross_entropy(model(x), y).backward()
        if (epoch * 12 + i + 1) % 32 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    attack = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(9):
    for x, y in loader:
        moved = torch.zeros_like(x).requires_grad_()
        for _ in range(7):
            nn.functional.cross_entropy(model(x + moved), y).backward()
            moved.data += 0.1 * moved.grad.sign()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x + moved.detach()), y).backward()
        optimizer.step()
"""
    lbfgs = """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
for epoch in range(9):
    for x, y in loader:
        def closure():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss
        optimizer.step(closure)
"""
    for source, samples in ((accumulates, 256), (attack, 8), (lbfgs, 8)):
        watching = watched(tmp_path, source, borders=2)
        assert watching.profile is not None
        assert watching.profile.loop.steps_by_hand == ""
        assert len(watching.profile.optimizers) == 1
        assert watching.samples == [samples] * 2


def test_an_optimizer_that_steps_later_is_the_one_that_counts(tmp_path: Path) -> None:
    source = """
for x, y in islice(loader, 3):
    nn.functional.cross_entropy(model(x), y).backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.1)
others = DataLoader(TensorDataset(torch.randn(96, 4), torch.randint(2, (96,))), 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(9):
    for x, y in others:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
    profile = profile_of(tmp_path, source)
    assert profile.loop.steps_by_hand == ""
    assert [facts.batch_size for facts in profile.loaders] == [16]


def test_knobs_that_need_an_optimizer_are_refused_by_the_line_and_the_others_work(
    tmp_path: Path,
) -> None:
    passes, update = UPDATES["data"]
    profile = profile_of(tmp_path, LOOP.format(passes=passes, update=update))
    hardware = make_hardware(cpu_quota=4)
    for name in NEEDS_AN_OPTIMIZER:
        offer = registry()[name].domain(Here(hardware, profile))
        assert isinstance(offer, NotOffered), name
        assert f"updates its weights by hand ({profile.loop.steps_by_hand})" in offer.reason, name
    for name in WORKS_WITHOUT:
        assert not isinstance(registry()[name].domain(Here(hardware, profile)), NotOffered), name
    refused = registry()["precision"].refusal("fp16", Here(make_hardware(gpus=(A100,)), profile))
    assert refused is not None
    assert profile.loop.steps_by_hand in refused


def test_training_that_no_step_is_seen_of_is_told_by_how_it_takes_gradients(tmp_path: Path) -> None:
    never_written = """
for x, y in loader:
    nn.functional.cross_entropy(model(x), y).backward()
"""
    never_stepped = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)" + never_written
    for source, said in (
        (never_written, "and no weights changed in place after them"),
        (never_stepped, "and no weights changed in place after them"),
        ("pass", ""),
    ):
        tracker = watched(tmp_path, source).tracker
        unseen = tracker.seams.steps.by_hand.unseen()
        assert tracker.steps == 0
        assert said in unseen
        assert bool(said) == bool(unseen)
        ending = from_exception(Ended(0, "", "", 0, unseen=unseen))
        complaint = str(program_error(PROGRAM, ending))
        assert unseen in complaint
        assert ("optimizer of torch.optim" if said else "more data or epochs") in complaint


def test_autotune_run_reaches_a_model_whose_weights_are_written_by_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[nn.Module] = []

    def compile_later(call: Any, **_: object) -> Any:
        compiled.append(call.__self__)
        return call

    monkeypatch.setattr(torch, "compile", compile_later)
    model = nn.Sequential(nn.Linear(4, 2))
    with running(precision="bf16", compile="default"):
        for x in torch.randn(6, 8, 4):
            model(x).sum().backward()
            for p in model.parameters():
                assert p.grad is not None
                p.data.sub_(0.1 * p.grad)
        assert compiled == [model]
        is_plain = "autotune/inside" not in nn.Module.__call__.__code__.co_filename
        assert is_plain, "nested calls are PyTorch's own again"
