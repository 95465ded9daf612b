"""Which passes over loaders train, and where epochs end, on programs that read several loaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.inside.data.loaders import BuiltLoaders
from autotune.program.rehearsal import RehearsalPlan
from tests.inside.test_short_epochs import applied_of, run

HEAD = """
from itertools import chain, cycle
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
    "the slow one first": f"""
first, second = loader_of(32, {SLOW_S}), loader_of(48)
for epoch in range(6):
    for (x, y), others in zip(first, second):
        step(x, y, others)
""",
    "the second one never ends": f"""
first, second = loader_of(32), cycle(loader_of(16, {SLOW_S}))
for epoch in range(6):
    for x, y in first:
        step(x, y, next(second))
""",
    "the second one starts over in the middle": f"""
first, second = loader_of(32), loader_of(20, {SLOW_S})
rest = iter(second)
for epoch in range(6):
    for x, y in first:
        try:
            others = next(rest)
        except StopIteration:
            rest = iter(second)
            others = next(rest)
        step(x, y, others)
""",
    "both are built anew and grow": f"""
for epoch in range(6):
    for (x, y), others in zip(loader_of(16 + 4 * epoch, {SLOW_S}), loader_of(16 + 4 * epoch)):
        step(x, y, others)
""",
    "the first one grows": f"""
second = loader_of(64)
for epoch in range(6):
    for (x, y), others in zip(loader_of(16 + 4 * epoch, {SLOW_S}), second):
        step(x, y, others)
""",
    "the batch size grows": """
for epoch in range(6):
    for x, y in loader_of(64, batch_size=4 + 4 * epoch):
        step(x, y)
""",
    "one loader after another": """
tasks = [loader_of(40), loader_of(20)]
for epoch in range(6):
    for task in tasks:
        for x, y in task:
            step(x, y)
""",
    "an evaluation between the last batch and the step": """
train = loader_of(80)
for epoch in range(6):
    for n, (x, y) in enumerate(train):
        nn.functional.cross_entropy(model(x), y).backward()
        if n == 9:
            for few, _ in loader_of(16 + 4 * epoch):
                model(few)
        optimizer.step()
        optimizer.zero_grad()
""",
    "an evaluation whose iterator is kept": """
train, kept = loader_of(32), iter(loader_of(4000))
for epoch in range(6):
    for x, y in train:
        step(x, y)
    model(next(kept)[0])
""",
    "each loader has a step of its own": """
first, second = loader_of(40), loader_of(40, batch_size=2)
for epoch in range(6):
    other = iter(second)
    for x, y in first:
        step(x, y)
        step(*next(other))
""",
    "each loader has a step of its own, and one starts over": """
first, second = loader_of(40), loader_of(28)

other = forever(second)
for epoch in range(6):
    for x, y in first:
        step(x, y)
        step(*next(other))
""",
    "a generator without an end": """
first, second = loader_of(40), loader_of(28)

other = forever(second)
for epoch in range(6):
    for x, y in first:
        step(x, y, next(other))
""",
    "iterators that are kept until the next epoch": """
first, second = loader_of(40), loader_of(60)
for epoch in range(6):
    one, other = iter(first), iter(second)
    for n in range(8):
        x, y = next(one)
        step(x, y, next(other))
""",
    "a batch to look at before training": """
train = loader_of(40)
look = iter(train)
model(next(look)[0])
for epoch in range(6):
    for x, y in train:
        step(x, y)
""",
    "an evaluation before training, whose iterator is kept": """
train, kept = loader_of(40), iter(loader_of(80))
with torch.no_grad():
    model(next(kept)[0])
for epoch in range(6):
    for x, y in train:
        step(x, y)
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
    "a batch is evaluated now and then, and that loader starts over": """
train, valid = loader_of(80), loader_of(12)
rest = iter(valid)
for epoch in range(6):
    for n, (x, y) in enumerate(train):
        step(x, y)
        if n % 6 == 3:
            try:
                few, _ = next(rest)
            except StopIteration:
                rest = iter(valid)
                few, _ = next(rest)
            with torch.no_grad():
                model(few)
""",
    "a teacher sees each batch first": """
train, teacher = loader_of(40), nn.Linear(4, 3)
for epoch in range(6):
    for x, y in train:
        with torch.no_grad():
            teacher(x)
        step(x, y)
""",
    "two loaders as one chain": """
first, second = loader_of(40), loader_of(20)
for epoch in range(6):
    for x, y in chain(first, second):
        step(x, y)
""",
    "two networks against each other, each with its loader and a loss that is a sum": """
real, fake = loader_of(40), loader_of(40)
judge = nn.Linear(4, 1)
judging = torch.optim.SGD(judge.parameters(), 0.001)
for epoch in range(6):
    for (x, _), (z, y) in zip(real, fake):
        (judge(x).sum() - judge(z).sum()).backward()
        judging.step()
        step(z, y)
""",
    "workers that stay, over a loader that is rebuilt every second epoch": """
for epoch in range(6):
    if epoch % 2 == 0:
        train = DataLoader(Items(32, 0.0), 4, num_workers=1, persistent_workers=True)
    for x, y in train:
        step(x, y)
train = None
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


def test_an_evaluation_that_turns_gradients_off_for_each_batch_is_one(tmp_path: Path) -> None:
    """As in PyTorch's tutorial on transfer learning; a teacher of a step is none."""
    loop = """
loaders = {"train": loader_of(32), "val": loader_of(12)}
for epoch in range(3):
    for phase in ["train", "val"]:
        for x, y in loaders[phase]:
            with torch.set_grad_enabled(phase == "train"):
                loss = nn.functional.cross_entropy(model(x), y)
            if phase == "train":
                with torch.no_grad():
                    model(x)
                loss.backward()
                optimizer.step()
"""
    program = tmp_path / "trains.py"
    program.write_text(HEAD + loop, encoding="utf-8")
    found = run(str(program), "", PLAN, applied_of())
    assert found.has_passed, found
    assert found.seen is not None
    assert (found.seen.epochs, found.seen.evaluations) == (3, 3)


# Pseudo-labels: each epoch trains on more samples, its loader is built anew, and the evaluation,
# which does not turn gradients off, goes over a loader that the same function builds
GROWS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x, y = torch.randn(4096, 4), torch.randint(3, (4096,))


def loader_of(count):
    return DataLoader(TensorDataset(x[:count], y[:count]), batch_size=16, shuffle=True)


model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(20):
    for name, count in (("train", 320 + 64 * epoch), ("valid", 48)):
        for images, labels in loader_of(count):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            if name == "train":
                loss.backward()
                optimizer.step()
"""


def test_epochs_over_a_dataset_that_grows_are_epochs(tmp_path: Path) -> None:
    program = tmp_path / "grows.py"
    program.write_text(GROWS, encoding="utf-8")
    found = run(str(program), "", PLAN, applied_of())
    assert found.has_passed, found
    assert found.seen is not None
    assert found.seen.epochs == 20


def test_an_evaluation_of_a_few_batches_in_the_middle_of_an_epoch_is_no_epoch(
    tmp_path: Path,
) -> None:
    """With gradients on, over a part of the data that changes, and left by a break."""
    within = """
        for n, (images, labels) in enumerate(loader_of(320)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if n == 9:
                for few, _ in loader_of(64 + epoch):
                    model(few)
                    break
"""
    head, _ = GROWS.split("    for name, count in")
    program = tmp_path / "within.py"
    program.write_text(head + within.replace("        for", "    for", 1), encoding="utf-8")
    found = run(str(program), "", PLAN, applied_of())
    assert found.has_passed, found
    assert found.seen is not None
    assert found.seen.epochs == 20


def test_an_evaluation_with_gradients_over_another_dataset_is_no_epoch(tmp_path: Path) -> None:
    """As in PyTorch's tutorial on transfer learning: both loaders are built by one line."""
    program = tmp_path / "both.py"
    loaders = "loaders = {n: loader_of(n) for n in (320, 48)}\nfor epoch in range(20):"
    both = GROWS.replace("for epoch in range(20):", loaders).replace("320 + 64 * epoch", "320")
    both = both.replace("in loader_of(count):", "in loaders[count]:")
    program.write_text(both, encoding="utf-8")
    found = run(str(program), "", PLAN, applied_of())
    assert found.seen is not None
    assert found.seen.epochs == 20


def test_what_identifies_a_loader_is_put_together_once_in_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each batch, that made epochs of short steps a fifth slower than they are."""
    asked = [0]
    facts, is_target = BuiltLoaders.facts, BuiltLoaders.is_target

    def counted(of: Any) -> Any:
        def ask(*args: Any) -> Any:
            asked[0] += 1
            return of(*args)

        return ask

    monkeypatch.setattr(BuiltLoaders, "facts", counted(facts))
    monkeypatch.setattr(BuiltLoaders, "is_target", counted(is_target))
    program = tmp_path / "grows.py"
    long = GROWS.replace("64 * epoch", "16 * 500").replace("range(20)", "range(6)")
    program.write_text(long, encoding="utf-8")
    found = run(str(program), "", PLAN, applied_of())
    assert found.seen is not None
    assert found.seen.epochs == 6
    passes, batches = 2 * 6, found.seen.steps
    assert asked[0] < 20 * passes < batches / 4
