"""Which passes over loaders train, and where epochs end, on programs that read several loaders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.inside.rehearsing.epoch_timer import IN_THREAD, OUTSIDE
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
PLAN = RehearsalPlan(most_epochs=10_000, enough_s=1000.0, most_s=100.0, pass_s=10.0)


@dataclass(frozen=True)
class Case:
    """A training loop of six epochs.

    Attributes:
        loop: Its code.
        batches: Of each epoch, over the loader that leads.
        others: Passes in each that train nothing; None if that differs.
        least_s: Seconds that the training of each epoch takes at least.
    """

    loop: str
    batches: list[int]
    others: int | None = 0
    least_s: float = 0.0


CASES = {
    "two loaders read together": Case(
        f"""
first, second = loader_of(32), loader_of(32, {SLOW_S})
for epoch in range(6):
    for (x, y), others in zip(first, second):
        step(x, y, others)
""",
        [8] * 6,
        least_s=32 * SLOW_S,
    ),
    "the slow one first": Case(
        f"""
first, second = loader_of(32, {SLOW_S}), loader_of(48)
for epoch in range(6):
    for (x, y), others in zip(first, second):
        step(x, y, others)
""",
        [8] * 6,
        least_s=32 * SLOW_S,
    ),
    "the second one never ends": Case(
        f"""
first, second = loader_of(32), cycle(loader_of(16, {SLOW_S}))
for epoch in range(6):
    for x, y in first:
        step(x, y, next(second))
""",
        [8] * 6,
    ),
    "the second one starts over in the middle": Case(
        f"""
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
        [8] * 6,
        least_s=32 * SLOW_S,
    ),
    "both are built anew and grow": Case(
        f"""
for epoch in range(6):
    for (x, y), others in zip(loader_of(16 + 4 * epoch, {SLOW_S}), loader_of(16 + 4 * epoch)):
        step(x, y, others)
""",
        [4, 5, 6, 7, 8, 9],
        least_s=16 * SLOW_S,
    ),
    "the first one grows": Case(
        f"""
second = loader_of(64)
for epoch in range(6):
    for (x, y), others in zip(loader_of(16 + 4 * epoch, {SLOW_S}), second):
        step(x, y, others)
""",
        [4, 5, 6, 7, 8, 9],
        least_s=16 * SLOW_S,
    ),
    "the batch size grows": Case(
        """
for epoch in range(6):
    for x, y in loader_of(64, batch_size=4 + 4 * epoch):
        step(x, y)
""",
        [16, 8, 6, 4, 4, 3],
    ),
    "one loader after another": Case(
        """
tasks = [loader_of(40), loader_of(20)]
for epoch in range(6):
    for task in tasks:
        for x, y in task:
            step(x, y)
""",
        [15] * 6,
    ),
    "an evaluation between the last batch and the step": Case(
        """
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
        [20] * 6,
        others=1,
    ),
    "an evaluation whose iterator is kept": Case(
        """
train, kept = loader_of(32), iter(loader_of(4000))
for epoch in range(6):
    for x, y in train:
        step(x, y)
    model(next(kept)[0])
""",
        [8] * 6,
        others=1,
    ),
    "each loader has a step of its own": Case(
        """
first, second = loader_of(40), loader_of(40, batch_size=2)
for epoch in range(6):
    other = iter(second)
    for x, y in first:
        step(x, y)
        step(*next(other))
""",
        [20] * 6,
    ),
    "each loader has a step of its own, and one starts over": Case(
        """
first, second = loader_of(40), loader_of(28)

other = forever(second)
for epoch in range(6):
    for x, y in first:
        step(x, y)
        step(*next(other))
""",
        [20] * 6,
    ),
    "a generator without an end": Case(
        """
first, second = loader_of(40), loader_of(28)

other = forever(second)
for epoch in range(6):
    for x, y in first:
        step(x, y, next(other))
""",
        [10] * 6,
    ),
    "iterators that are kept until the next epoch": Case(
        """
first, second = loader_of(40), loader_of(60)
for epoch in range(6):
    one, other = iter(first), iter(second)
    for n in range(8):
        x, y = next(one)
        step(x, y, next(other))
""",
        [8] * 6,
    ),
    "a batch to look at before training": Case(
        """
train = loader_of(40)
look = iter(train)
model(next(look)[0])
for epoch in range(6):
    for x, y in train:
        step(x, y)
""",
        [11, 10, 10, 10, 10, 10],
    ),
    "an evaluation before training, whose iterator is kept": Case(
        """
train, kept = loader_of(40), iter(loader_of(80))
with torch.no_grad():
    model(next(kept)[0])
for epoch in range(6):
    for x, y in train:
        step(x, y)
""",
        [10] * 6,
    ),
    "a batch is evaluated after each step": Case(
        """
train, valid = loader_of(40), cycle(loader_of(400))
for epoch in range(6):
    for x, y in train:
        step(x, y)
        few, _ = next(valid)
        with torch.no_grad():
            model(few)
""",
        [10] * 6,
        others=1,
    ),
    "a batch is evaluated now and then, and that loader starts over": Case(
        """
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
        [20] * 6,
        others=None,
    ),
    "a teacher sees each batch first": Case(
        """
train, teacher = loader_of(40), nn.Linear(4, 3)
for epoch in range(6):
    for x, y in train:
        with torch.no_grad():
            teacher(x)
        step(x, y)
""",
        [10] * 6,
    ),
    "two loaders as one chain": Case(
        """
first, second = loader_of(40), loader_of(20)
for epoch in range(6):
    for x, y in chain(first, second):
        step(x, y)
""",
        [15] * 6,
    ),
    "two networks against each other, each with its loader and a loss that is a sum": Case(
        """
real, fake = loader_of(40), loader_of(40)
judge = nn.Linear(4, 1)
judging = torch.optim.SGD(judge.parameters(), 0.001)
for epoch in range(6):
    for (x, _), (z, y) in zip(real, fake):
        (judge(x).sum() - judge(z).sum()).backward()
        judging.step()
        step(z, y)
""",
        [10] * 6,
    ),
    "workers that stay, over a loader that is rebuilt every second epoch": Case(
        """
for epoch in range(6):
    if epoch % 2 == 0:
        train = DataLoader(Items(32, 0.0), 4, num_workers=1, persistent_workers=True)
    for x, y in train:
        step(x, y)
train = None
""",
        [8] * 6,
    ),
    "gradients of a few batches": Case(
        """
train = loader_of(40)
for epoch in range(6):
    for n, (x, y) in enumerate(train):
        nn.functional.cross_entropy(model(x), y).backward()
        if n % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
""",
        [10] * 6,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_epoch_ends_when_a_loader_that_trained_in_it_begins_anew(
    tmp_path: Path, name: str
) -> None:
    case, program = CASES[name], tmp_path / "trains.py"
    program.write_text(HEAD + case.loop, encoding="utf-8")
    found = run(str(program), "", PLAN, applied_of())
    assert found.has_passed, found
    assert found.seen is not None
    epochs = found.seen.timed
    assert [epoch.batches for epoch in epochs] == case.batches
    assert not any(epoch.is_cut for epoch in epochs)
    if case.others is not None:
        assert [len(epoch.passes) for epoch in epochs] == [case.others] * 6
    assert min(epoch.start_s + epoch.steps_s for epoch in epochs) >= case.least_s


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
    assert [[p.batches for p in epoch.passes] for epoch in found.seen.timed] == [[3]] * 3


def test_steps_outside_of_passes_make_no_epoch_that_can_be_timed(tmp_path: Path) -> None:
    loops = (
        """
train = loader_of(40)
for epoch in range(6):
    for x, y in train:
        nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        """
train = loader_of(40)
for n in range(60):
    x, y = next(iter(train))
    step(x, y)
""",
    )
    program = tmp_path / "trains.py"
    for loop in loops:
        program.write_text(HEAD + loop, encoding="utf-8")
        found = run(str(program), "", PLAN, applied_of())
        assert found.seen is not None
        assert (found.seen.timed, found.seen.why_untimed) == ((), OUTSIDE)


def test_batches_that_another_thread_takes_are_not_timed(tmp_path: Path) -> None:
    loop = """
from queue import Queue
from threading import Thread

train = loader_of(40)
for epoch in range(6):
    queue = Queue(2)
    thread = Thread(target=lambda: [queue.put(batch) for batch in [*train, None]])
    thread.start()
    for x, y in iter(queue.get, None):
        step(x, y)
    thread.join()
"""
    program = tmp_path / "trains.py"
    program.write_text(HEAD + loop, encoding="utf-8")
    found = run(str(program), "", PLAN, applied_of())
    assert found.has_passed, found
    assert found.seen is not None
    assert (found.seen.timed, found.seen.why_untimed) == ((), IN_THREAD)
