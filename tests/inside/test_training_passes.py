"""Which passes over loaders train, and where epochs end, on programs that read several loaders."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.program.rehearsal import RehearsalPlan
from tests.inside.test_short_epochs import applied_of, run

HEAD = """
from itertools import cycle
from time import sleep

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Items(Dataset):
    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        sleep(self.seconds)
        return torch.full((4,), float(index)), index % 3


def loader_of(count, seconds=0.0, batch_size=4):
    return DataLoader(Items(count, seconds), batch_size)


model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def forever(loader):
    while True:
        yield from loader


def step(x, y, *others):
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


"""
SLOW_S = 0.002  # of an item
WHOLE = 10**6  # batches, which no pass has
PLAN = RehearsalPlan(
    batches=WHOLE, other_batches=WHOLE, most_epochs=10_000, enough_s=1000.0, most_s=100.0
)

# Training loops of six epochs
CASES = {
    "two loaders read together": f"""
first, second = loader_of(32), loader_of(32, {SLOW_S})
for epoch in range(6):
    for (x, y), others in zip(first, second):
        step(x, y, others)
""",
    "both are built anew and grow": f"""
for epoch in range(6):
    for (x, y), others in zip(loader_of(16 + 4 * epoch, {SLOW_S}), loader_of(16 + 4 * epoch)):
        step(x, y, others)
""",
    "a generator without an end": """
first, second = loader_of(40), loader_of(28)

other = forever(second)
for epoch in range(6):
    for x, y in first:
        step(x, y, next(other))
""",
    "a batch is evaluated after each step": """
train, valid = loader_of(40), cycle(loader_of(400))
for epoch in range(6):
    for x, y in train:
        step(x, y)
        few, _ = next(valid)
        with torch.no_grad():
            model(few)
""",
    "workers that stay, over a loader that is rebuilt every second epoch": """
for epoch in range(6):
    if epoch % 2 == 0:
        train = DataLoader(Items(32, 0.0), 4, num_workers=1, persistent_workers=True)
    for x, y in train:
        step(x, y)
train = None
""",
    # Pseudo-labels; the evaluation, with gradients, goes over a loader that the same line builds
    "the data grow, and an evaluation follows": """
for epoch in range(6):
    for trains, count in ((True, 80 + 16 * epoch), (False, 48)):
        for x, y in loader_of(count):
            loss = nn.functional.cross_entropy(model(x), y)
            if trains:
                loss.backward()
                optimizer.step()
""",
    "gradients of a few batches": """
train = loader_of(40)
for epoch in range(6):
    for n, (x, y) in enumerate(train):
        nn.functional.cross_entropy(model(x), y).backward()
        if n % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
""",
    # As in PyTorch's tutorial on transfer learning; a teacher of a step is no evaluation
    "gradients are turned off for each batch": """
loaders = {"train": loader_of(32), "val": loader_of(12)}
for epoch in range(6):
    for phase in ["train", "val"]:
        for x, y in loaders[phase]:
            with torch.set_grad_enabled(phase == "train"):
                loss = nn.functional.cross_entropy(model(x), y)
            if phase == "train":
                with torch.no_grad():
                    model(x)
                loss.backward()
                optimizer.step()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_an_epoch_ends_when_a_loader_that_trained_in_it_begins_anew(
    tmp_path: Path, name: str
) -> None:
    program = tmp_path / "trains.py"
    program.write_text(HEAD + CASES[name], encoding="utf-8")
    found = run(str(program), "", PLAN, applied_of())
    assert found.has_passed, found
    assert found.seen is not None
    assert found.seen.epochs == 6
    assert found.seen.evaluations == 6 or "turned off" not in name
