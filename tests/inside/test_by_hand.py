"""What a step is in the loops that people and libraries write, with an optimizer or by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.inside.seams.by_hand import PART, _fingerprint
from autotune.knobs import registry
from autotune.knobs.base import Here
from autotune.program.domain import NotOffered
from autotune.rig.failures import from_exception, program_error
from autotune.rig.wire import Ended
from tests.inside.test_seams import applied
from tests.made import A100, PROGRAM, make_hardware
from tests.watching import profile_of, running, watched

BACKWARD = "loss.backward()"
WRITTEN = """
class Own:
    def step(self):
        for p in model.parameters():
            p.data = p.data - 0.1 * p.grad
own = Own()
for epoch in range(4):
    for x, y in loader:
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        {passes}
        {update}
"""
BY_DATA = WRITTEN.format(
    passes=BACKWARD, update="for p in model.parameters(): p.data.add_(p.grad, alpha=-0.1)"
)
OPTIMIZED = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{batches}
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class Loop:
    """A training loop.

    Attributes:
        samples: Of each of its steps.
        passes: What stands in the line that makes a step by hand, empty where an optimizer steps.
        batches: The batch sizes of the loaders that train.
    """

    source: str
    samples: int = 8
    passes: str = ""
    batches: tuple[int, ...] = (8,)


LOOPS = {
    "in place": Loop(BY_DATA, passes=BACKWARD),
    "signs that turn": Loop(
        WRITTEN.format(passes=BACKWARD, update="for p in model.parameters(): p.data.neg_()"),
        passes=BACKWARD,
    ),
    "autograd.grad": Loop(
        WRITTEN.format(
            passes="grads = torch.autograd.grad(loss, list(model.parameters()))",
            update="for p, g in zip(model.parameters(), grads): p.data -= 0.1 * g",
        ),
        passes="autograd.grad",
    ),
    "an object": Loop(WRITTEN.format(passes=BACKWARD, update="own.step()"), passes=BACKWARD),
    "an idle optimizer": Loop(
        "idle = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)" + BY_DATA,
        passes=BACKWARD,
    ),
    "every second batch": Loop(
        """
for epoch in range(9):
    for i, (x, y) in enumerate(loader):
        (nn.functional.cross_entropy(model(x), y) / 2).backward()
        if i % 2:
            for p in model.parameters():
                p.data -= 0.1 * p.grad
            model.zero_grad()
""",
        16,
        "backward()",
    ),
    "no module": Loop(
        """
x, w = torch.randn(24, 4), torch.zeros(4, requires_grad=True)
for _ in range(20):
    (x @ w - 1).square().mean().backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad.zero_()
""",
        1,
        "backward()",
        (),
    ),
    "32 batches for a step": Loop(
        """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(99):
    for i, (x, y) in enumerate(loader):
        nn.functional.cross_entropy(model(x), y).backward()
        if (epoch * 12 + i + 1) % 32 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        256,
    ),
    "an attack": Loop(
        """
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
    ),
    "an optimizer that steps later": Loop(
        """
for x, y in islice(loader, 3):
    nn.functional.cross_entropy(model(x), y).backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.1)
others = DataLoader(TensorDataset(torch.randn(96, 4), torch.randint(2, (96,))), 16)
"""
        + OPTIMIZED.format(batches="for x, y in (batch for _ in range(9) for batch in others):"),
        16,
        batches=(16,),
    ),
    "a generator over a loader": Loop(
        """
def cycle(loader):
    while True:
        for batch in loader:
            yield batch
batches = cycle(loader)
"""
        + OPTIMIZED.format(batches="for _ in range(40):\n    x, y = next(batches)")
    ),
    "calls of parts": Loop(
        """
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)
        self.scale = nn.Parameter(torch.zeros(2))
    def forward(self, x):
        return (self.actor(x) * self.scale.exp()).softmax(-1), self.critic(x)
    def evaluate(self, x):
        return (self.actor(x) * self.scale.exp()).log_softmax(-1), self.critic(x)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters())
for _ in range(9):
    with torch.no_grad():
        seen = torch.cat([x for x in torch.randn(64, 1, 4) if policy(x) is not None])
    for epoch in range(3):
        for x in seen[torch.randperm(64)].split(16):
            logits, value = policy.evaluate(x)
            optimizer.zero_grad()
            (value.square().mean() - logits.mean()).backward()
            optimizer.step()
""",
        16,
        batches=(),
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_step_is_what_changes_the_weights_whatever_way_it_is_written(
    name: str, tmp_path: Path
) -> None:
    loop = LOOPS[name]
    watching = watched(tmp_path, loop.source, borders=2)
    profile = watching.profile
    assert profile is not None
    lines = (tmp_path / "train.py").read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if loop.passes in text)
    assert profile.loop.steps_by_hand == (f"train.py:{line}" if loop.passes else "")
    assert len(profile.optimizers) == (not loop.passes)
    assert [facts.batch_size for facts in profile.loaders] == [*loop.batches]
    assert watching.samples == [loop.samples] * 2
    offer = registry()["workers"].domain(Here(make_hardware(), profile))
    assert isinstance(offer, NotOffered) is (not loop.batches)


def test_knobs_that_need_an_optimizer_are_refused_by_the_line_and_the_others_work(
    tmp_path: Path,
) -> None:
    profile = profile_of(tmp_path, BY_DATA)
    hardware = make_hardware(cpu_quota=4)
    for name in ("optimizer", "batch_size", "accumulation_steps", "devices"):
        offer = registry()[name].domain(Here(hardware, profile))
        assert isinstance(offer, NotOffered), name
        assert f"updates its weights by hand ({profile.loop.steps_by_hand})" in offer.reason, name
    for name in ("workers", "threads", "precision", "compile"):
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
    told = "and no weights changed in place after them"
    for source, said in ((never_written, told), (never_stepped, told), ("pass", "")):
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
        compiled.append(getattr(call, "__wrapped__", call).__self__)
        return call

    monkeypatch.setattr(torch, "compile", compile_later)
    model = nn.Sequential(nn.Linear(4, 2))
    with running(applied(precision="bf16", compile="default")):
        for x in torch.randn(6, 8, 4):
            model(x).sum().backward()
            for p in model.parameters():
                assert p.grad is not None
                p.data.sub_(0.1 * p.grad)
        assert compiled == [model]
        is_plain = "autotune/inside" not in nn.Module.__call__.__code__.co_filename
        assert is_plain, "nested calls are PyTorch's own again"


class Largest(TorchDispatchMode):
    """Notes how many numbers in double precision a result holds at most."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype is torch.float64:
            self.most = max(self.most, result.numel())
        return result


def test_a_weight_of_any_size_and_a_sharded_one_is_compared_by_every_value() -> None:
    weight = torch.ones(2 * PART + 3)
    with Largest() as largest:  # type: ignore[no-untyped-call]
        before = _fingerprint(weight)
    assert largest.most <= PART
    weight[-1] += 1e-3
    assert _fingerprint(weight) != before
    weight = torch.arange(2 * PART)
    swapped = torch.cat([weight[PART:], weight[:PART]])
    assert _fingerprint(swapped) != _fingerprint(weight)
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        sharded = DTensor.from_local(torch.ones(4), init_device_mesh("cpu", (1,)))
        assert _fingerprint(sharded) == _fingerprint(torch.ones(4))
    finally:
        distributed.destroy_process_group()
