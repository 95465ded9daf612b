"""The clock charges the program's time to what it does, in virtual time and in a program."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autotune.inside.rehearsing.epoch_clock import EpochClock
from autotune.inside.rehearsing.option_trials import SETTLED_S, WHOLE_ENOUGH
from autotune.inside.seams.loader import LoaderSeam
from autotune.program.evaluation import EvaluationPlan
from autotune.program.rehearsal import RehearsalPlan
from tests.inside.test_short_epochs import applied_of, run
from tests.inside.test_training_passes import HEAD


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    gc.collect()
    for worker in multiprocessing.active_children():  # a rig ends them with itself
        worker.terminate()
        worker.join()


class Time:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def passes(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(eq=False)
class Feed:
    """A pass that takes some seconds to its first batch."""

    start_s: float
    batches_per_epoch: int
    end_s: float = 0.0


def feed(start_s: float = 0.0, length: int = 100) -> Any:
    return Feed(start_s, length)


def trained(clock: EpochClock, time: Time, one: Any, steps: int) -> None:
    for _ in range(steps):
        clock.batch(one, "Train")
        time.passes(1.0)
        clock.stepped()


def test_each_second_of_an_epoch_belongs_to_one_part() -> None:
    time = Time()
    clock = EpochClock(time)
    time.passes(30.0)  # imports
    train, valid = feed(start_s=2.0), feed(start_s=3.0)
    time.passes(2.0)
    trained(clock, time, train, 4)
    clock.pass_ended(train, is_cut=True)
    time.passes(0.5)
    time.passes(3.0)  # workers start
    for _ in range(2):
        clock.batch(valid, "Valid")
        time.passes(0.25)
    clock.pass_ended(valid, is_cut=False)
    with clock.saving():
        time.passes(0.7)
    time.passes(0.1)
    clock.computes()
    time.passes(0.2)
    following = feed(start_s=2.0)
    clock.epoch_ended(begin_s=0.0)
    (epoch,) = clock.epochs
    assert (epoch.steps, epoch.batches, epoch.is_cut, epoch.length) == (4, 4, True, 100)
    assert epoch.start_s == pytest.approx(2.0)
    assert epoch.steps_s == pytest.approx(4.0)
    (other,) = epoch.passes
    assert (other.loader, other.batches, other.is_cut) == ("Valid", 2, False)
    assert (other.start_s, other.seconds) == pytest.approx((3.0, 0.5))
    assert epoch.saves == 1
    assert epoch.saving_s == pytest.approx(0.7)
    assert (epoch.rest_s, epoch.computing_s) == pytest.approx((0.6, 0.2))
    time.passes(2.0)
    trained(clock, time, following, 1)
    clock.epoch_ended(is_last=True)
    assert clock.epochs[1].start_s == pytest.approx(2.0)


def test_an_evaluation_that_the_program_leaves_early_ends_there() -> None:
    time = Time()
    clock = EpochClock(time)
    train, valid = feed(), feed()
    trained(clock, time, train, 2)
    clock.batch(valid, "Valid")
    time.passes(0.5)
    trained(clock, time, train, 2)  # the program broke out of its evaluation
    clock.pass_ended(train, is_cut=False)
    clock.epoch_ended()
    (epoch,) = clock.epochs
    assert epoch.steps_s == pytest.approx(4.0)
    (other,) = epoch.passes
    assert other.is_within
    assert other.seconds == pytest.approx(0.5)


def test_an_evaluation_without_a_loader_in_the_middle_of_an_epoch_is_no_step() -> None:
    """As nanoGPT's estimate_loss and makemore's samples."""
    time = Time()
    clock = EpochClock(time)
    train = feed()
    trained(clock, time, train, 5)
    for _ in range(3):
        clock.computes()
        time.passes(2.0)
    trained(clock, time, train, 5)
    clock.pass_ended(train, is_cut=True)
    clock.epoch_ended()
    (epoch,) = clock.epochs
    assert epoch.steps_s == pytest.approx(10.0)
    assert epoch.evaluated_after == (5,)
    assert epoch.within_s == pytest.approx(6.0)


def test_what_each_step_computes_without_gradients_is_part_of_it() -> None:
    """As a teacher of a distillation."""
    time = Time()
    clock = EpochClock(time)
    train = feed()
    for _ in range(4):
        clock.batch(train, "Train")
        clock.computes()
        time.passes(0.5)
        clock.trains()
        time.passes(1.0)
        clock.stepped()
    clock.epoch_ended()
    (epoch,) = clock.epochs
    assert epoch.steps_s == pytest.approx(6.0)
    assert epoch.evaluation_s == 0.0


def test_a_loop_that_the_program_leaves_ends_with_its_iterator() -> None:
    time = Time()
    clock = EpochClock(time)
    train = feed()
    trained(clock, time, train, 2)
    del train  # as a for loop does at break
    gc.collect()
    time.passes(0.5)
    clock.computes()
    time.passes(0.25)
    clock.epoch_ended()
    (epoch,) = clock.epochs
    assert epoch.steps_s == pytest.approx(2.0)
    assert (epoch.rest_s, epoch.computing_s) == pytest.approx((0.5, 0.25))


def test_a_trainer_that_was_told_to_take_fewer_batches_is_cut() -> None:
    time = Time()
    clock = EpochClock(time)
    train = feed()
    trained(clock, time, train, 3)
    valid = feed()  # while the trainer keeps the iterator of its training loader
    clock.batch(valid, "Valid")
    time.passes(2.0)
    clock.pass_ended(valid, is_cut=False)
    with clock.saving():
        time.passes(0.5)
    clock.epoch_ended(own_batches=30)
    (epoch,) = clock.epochs
    assert (epoch.is_cut, epoch.length) == (True, 30)
    assert epoch.evaluation_s == pytest.approx(2.0), "once in an epoch, not every three batches"
    assert epoch.saving_s == pytest.approx(0.5)
    assert not epoch.saved_after


def test_the_end_of_workers_is_not_part_of_the_batches_of_a_cut_pass() -> None:
    time = Time()
    clock = EpochClock(time)
    train, valid = feed(), feed(start_s=1.0, length=20)
    trained(clock, time, train, 2)
    clock.pass_ended(train, is_cut=False)
    time.passes(1.0)
    for _ in range(2):
        clock.batch(valid, "Valid")
        time.passes(0.25)
    time.passes(3.0)
    valid.end_s = 3.0
    clock.pass_ended(valid, is_cut=True)
    clock.epoch_ended()
    (other,) = clock.epochs[0].passes
    assert (other.start_s, other.seconds) == pytest.approx((4.0, 0.5))
    assert other.whole_s == pytest.approx(4.0 + 20 / 2 * 0.5)


def test_two_loaders_read_together_both_train() -> None:
    time = Time()
    clock = EpochClock(time)
    one, two = feed(), feed()
    for _ in range(3):
        clock.batch(one, "One")
        time.passes(0.1)
        clock.batch(two, "Two")
        time.passes(0.4)
        clock.stepped()
    clock.epoch_ended()
    (epoch,) = clock.epochs
    assert epoch.passes == ()
    assert epoch.steps_s == pytest.approx(1.5)


def test_what_the_passes_of_a_new_epoch_took_until_its_first_step_belongs_to_it() -> None:
    """Their first step tells that they train; they were rebuilt, and are read together."""
    time = Time()
    clock = EpochClock(now=time)
    old = feed()
    trained(clock, time, old, 3)
    clock.pass_ended(old, is_cut=False)
    evaluated = feed()
    clock.batch(evaluated, "Valid")
    time.passes(5.0)
    clock.pass_ended(evaluated, is_cut=False)
    first, second = feed(), feed()
    for _ in range(2):
        clock.batch(first, "Train")
        time.passes(0.5)
        clock.batch(second, "Other")
        time.passes(1.0)
        if not clock.epochs:
            clock.epoch_ended(begun_by=[first, second])
        clock.stepped()
    clock.epoch_ended()
    before, after = clock.epochs
    assert (before.batches, before.steps_s, before.between_s) == (3, 3.0, 5.0)
    assert (after.batches, after.steps, after.steps_s, after.passes) == (2, 2, 3.0, ())


def test_a_pass_that_goes_on_in_the_next_epoch_trains_there_too() -> None:
    time = Time()
    clock = EpochClock(now=time)
    endless = feed(start_s=2.0)
    for _ in range(2):
        leading = feed()
        for _ in range(3):
            clock.batch(leading, "Train")
            clock.batch(endless, "Other")
            time.passes(1.0)
            clock.stepped()
        clock.pass_ended(leading, is_cut=False)
        clock.epoch_ended()
    assert [(e.batches, e.steps, e.steps_s, e.passes) for e in clock.epochs] == [
        (3, 3, 3.0, ())
    ] * 2


def test_epochs_in_which_torch_compiles_are_marked() -> None:
    time, compiled = Time(), [0]
    clock = EpochClock(time, lambda: compiled[0])
    for graphs in (1, 1, 3, 3):  # training, nothing, an evaluation that comes every third epoch
        compiled[0] = graphs
        trained(clock, time, feed(), 2)
        clock.epoch_ended()
    assert [epoch.compiles for epoch in clock.epochs] == [True, False, True, False]


EVALUATES = (
    HEAD
    + """
train, valid = loader_of(1024, batch_size=16), loader_of(4, 0.01, batch_size=2)
for epoch in range(100000):
    for x, y in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        for x, y in valid:
            model(x)
    torch.save(model.state_dict(), "model.pt")
    sleep(0.02)
"""
)


def test_a_programs_epochs_are_timed_and_its_evaluation_loader_is_tried(tmp_path: Path) -> None:
    program = tmp_path / "evaluates.py"
    program.write_text(EVALUATES, encoding="utf-8")
    plan = RehearsalPlan(
        enough_s=0.0,
        pass_s=0.05,
        # The steps of a busy machine may hide the evaluation, so their seconds are given
        evaluation=EvaluationPlan(enough_s=20.0, loop_s=0.05, options={"num_workers": 2}),
    )
    found = run(str(program), "", plan, applied_of())
    assert found.has_passed, found
    assert found.seen is not None
    epoch = found.seen.timed[-1]
    assert epoch.saves == 1
    assert [p.batches for p in epoch.passes] == [2]
    assert epoch.evaluation_s > 0.03
    assert epoch.rest_s > 0.015
    assert epoch.saving_s > 0.0
    tried = found.seen.tried
    assert tried is not None
    assert tried.loader is not None
    assert tried.loader.dataset_len == 4
    assert len(tried.passes) >= 4
    assert tried.chosen or tried.refusal == "no other option was faster"


def test_a_few_whole_epochs_are_enough_to_try_an_evaluation_loader(tmp_path: Path) -> None:
    program = tmp_path / "evaluates.py"
    program.write_text(EVALUATES.replace("loader_of(1024", "loader_of(64"), encoding="utf-8")
    plan = RehearsalPlan(
        most_epochs=10_000,
        enough_s=1000.0,  # else no turn begins before these seconds
        most_s=100.0,
        pass_s=10.0,
        evaluation=EvaluationPlan(
            enough_s=1000.0, loop_s=0.05, options={"persistent_workers": False}
        ),
    )
    found = run(str(program), "", plan, applied_of())
    assert found.seen is not None
    assert len(found.seen.timed) >= WHOLE_ENOUGH
    assert sum(e.seconds for e in found.seen.timed) >= 0.7 * SETTLED_S, (
        "the first seconds of a process are slower"
    )
    assert found.seen.tried is not None
    assert found.seen.tried.passes


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
    plan = RehearsalPlan(most_epochs=10_000, enough_s=1000.0, most_s=100.0, pass_s=10.0)
    found = run(str(program), "", plan, applied_of())
    assert found.has_passed, found
    assert found.seen is not None
    epochs = found.seen.timed
    assert [epoch.batches for epoch in epochs] == [20 + 4 * n for n in range(20)]
    assert [[p.batches for p in epoch.passes] for epoch in epochs] == [[3]] * 20


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
    plan = RehearsalPlan(most_epochs=10_000, enough_s=1000.0, most_s=100.0, pass_s=10.0)
    found = run(str(program), "", plan, applied_of())
    assert found.has_passed, found
    assert found.seen is not None
    epochs = found.seen.timed
    assert [epoch.batches for epoch in epochs] == [20] * 20
    assert [epoch.evaluated_after for epoch in epochs] == [(10,)] * 20


def test_an_evaluation_with_gradients_over_another_dataset_is_no_epoch(tmp_path: Path) -> None:
    """As in PyTorch's tutorial on transfer learning: both loaders are built by one line."""
    program = tmp_path / "both.py"
    loaders = "loaders = {n: loader_of(n) for n in (320, 48)}\nfor epoch in range(20):"
    both = GROWS.replace("for epoch in range(20):", loaders).replace("320 + 64 * epoch", "320")
    both = both.replace("in loader_of(count):", "in loaders[count]:")
    program.write_text(both, encoding="utf-8")
    plan = RehearsalPlan(most_epochs=10_000, enough_s=1000.0, most_s=100.0, pass_s=10.0)
    found = run(str(program), "", plan, applied_of())
    assert found.seen is not None
    assert [[p.batches for p in epoch.passes] for epoch in found.seen.timed] == [[3]] * 20


def test_what_identifies_a_loader_is_put_together_once_in_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each batch, that made epochs of short steps a fifth slower than they are."""
    asked = [0]
    facts, is_target = LoaderSeam.facts, LoaderSeam.is_target

    def counted(of: Any) -> Any:
        def ask(*args: Any) -> Any:
            asked[0] += 1
            return of(*args)

        return ask

    monkeypatch.setattr(LoaderSeam, "facts", counted(facts))
    monkeypatch.setattr(LoaderSeam, "is_target", counted(is_target))
    program = tmp_path / "grows.py"
    long = GROWS.replace("64 * epoch", "16 * 500").replace("range(20)", "range(6)")
    program.write_text(long, encoding="utf-8")
    plan = RehearsalPlan(most_epochs=10_000, enough_s=1000.0, most_s=100.0, pass_s=10.0)
    found = run(str(program), "", plan, applied_of())
    assert found.seen is not None
    passes = sum(1 + len(epoch.passes) for epoch in found.seen.timed)
    batches = sum(epoch.batches for epoch in found.seen.timed)
    assert asked[0] < 20 * passes < batches / 4


def test_without_a_plan_for_it_nothing_is_timed(tmp_path: Path) -> None:
    program = tmp_path / "evaluates.py"
    program.write_text(EVALUATES, encoding="utf-8")
    found = run(str(program), "", RehearsalPlan(enough_s=0.0), applied_of())
    assert found.seen is not None
    assert (found.seen.timed, found.seen.tried) == ((), None)
