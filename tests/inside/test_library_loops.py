"""The structure of libraries' training loops, each in a few lines and without the library."""

from __future__ import annotations

from pathlib import Path

from autotune.knobs import registry
from autotune.knobs.base import Here
from autotune.program.domain import NotOffered
from tests.inside.test_by_hand import line_of
from tests.made import make_hardware
from tests.watching import watched


def test_an_optimizer_that_never_steps_hides_no_step_by_hand(tmp_path: Path) -> None:
    source = """
idle = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
for epoch in range(9):
    for x, y in loader:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.1)
"""
    watching = watched(tmp_path, source, borders=3)
    assert watching.profile is not None
    assert watching.profile.loop.steps_by_hand == line_of(tmp_path, "backward()")
    assert watching.samples == [8, 8, 8]


def test_a_policy_that_is_trained_by_calls_of_its_parts_is_counted_at_them(tmp_path: Path) -> None:
    source = """
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
"""
    watching = watched(tmp_path, source, borders=3)
    assert watching.profile is not None
    assert watching.profile.loaders == ()
    assert watching.samples == [16, 16, 16]
    nothing_called = """
weight = nn.Linear(4, 2)
optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
with torch.no_grad():
    weight(torch.randn(8, 4))
for _ in range(40):
    optimizer.zero_grad()
    nn.functional.linear(torch.randn(8, 4), weight.weight).sum().backward()
    optimizer.step()
"""
    watching = watched(tmp_path, nothing_called, borders=1)
    assert watching.samples == [1]


def test_generators_over_loaders_and_samplers_of_many_draws_are_seen(tmp_path: Path) -> None:
    step = """
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
    opening = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    cycled = """
def cycle(loader):
    while True:
        for batch in loader:
            yield batch
batches = cycle(loader)
for _ in range(40):
    x, y = next(batches)
"""
    draws = """
from torch.utils.data import RandomSampler
sampler = RandomSampler(loader.dataset, replacement=True, num_samples=int(1e10))
many = DataLoader(loader.dataset, 8, sampler=sampler)
batches = iter(many)
for _ in range(40):
    x, y = next(batches)
"""
    for source in (cycled, draws):
        watching = watched(tmp_path, opening + source + step, borders=3)
        assert watching.profile is not None
        assert [facts.batch_size for facts in watching.profile.loaders] == [8]
        assert watching.samples == [8, 8, 8]
        offer = registry()["workers"].domain(Here(make_hardware(), watching.profile))
        assert not isinstance(offer, NotOffered)
