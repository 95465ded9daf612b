"""Epochs that end: where a rig ends them, what is cut meanwhile, and what its clocks leave out."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from autotune.inside.step_counts import Step
from autotune.measurement.outcome import Epochs
from tests.watching import Watching

BATCHES = 12


class Watched(Watching):
    """Counts borders and pauses, and does something at one of them."""

    def __init__(self, epochs: Epochs) -> None:
        super().__init__(None, epochs)
        self.seams = self.tracker.seams
        self.pauses = 0
        self.disturbances = 0
        self.at: dict[int, Callable[[], None]] = {}

    @property
    def suspect(self) -> Epochs | None:
        """The epoch mode to try next."""
        return self.tracker.suspect

    def observed(self) -> None:
        """Go on."""

    def on_step_end(self, step: Step) -> None:
        super().on_step_end(step)
        self.at.pop(self.tracker.steps, lambda: None)()

    def disturbed(self) -> None:
        self.disturbances += 1

    def resumed(self) -> None:
        self.pauses += 1
        self.disturbances = 0


def watched(epochs: Epochs = Epochs.TRUE) -> AbstractContextManager[Watched]:
    """The seams as a rig installs them."""
    return Watched(epochs).installed()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # beside other tests, threads wait for each other
    yield
    torch.set_num_threads(threads)


@dataclass
class Trained:
    """What a program did.

    Attributes:
        losses: Of its steps.
        passes: How many batches each of its epochs had.
        evaluated: How many each of its evaluations had.
    """

    losses: list[float] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)
    workers: list[set[int]] = field(default_factory=list)


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(96, 4, generator=generator), torch.arange(96) % 2)


def loader_of(**options: Any) -> DataLoader[Any]:
    return DataLoader(dataset(), 8, shuffle=True, **options)


def train(
    loader: DataLoader[Any] | Callable[[], DataLoader[Any]],
    epochs: int = 3,
    in_step: Callable[[int], None] = lambda _: None,
) -> Trained:
    """A program: train, evaluate, again."""
    torch.manual_seed(0)
    done = Trained()
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rest = DataLoader(dataset(), 8)
    for _ in range(epochs):
        batches = 0
        own = loader if isinstance(loader, DataLoader) else loader()
        for number, (x, y) in enumerate(own):
            in_step(number)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done.losses.append(loss.item())
            batches += 1
            done.workers.append({p.pid or 0 for p in multiprocessing.active_children()})
        done.passes.append(batches)
        model.eval()
        with torch.no_grad():
            done.evaluated.append(sum(1 for x, _ in rest if model(x) is not None))
        model.train()
    return done


def test_losses_of_true_epochs_are_those_of_the_program_alone() -> None:
    for options in ({"num_workers": 1, "persistent_workers": True}, {}):
        alone = train(loader_of(**options), 2)
        with watched():
            under_seams = train(loader_of(**options), 2)
        assert under_seams.losses == alone.losses
        assert under_seams.passes == alone.passes == [BATCHES] * 2
        assert under_seams.evaluated == alone.evaluated


def insists(length: int) -> Callable[[int], None]:
    def step(number: int) -> None:
        assert number < length

    return step


def test_what_fails_beyond_its_own_length_says_which_epochs_it_needs() -> None:
    loader = loader_of()
    with watched(Epochs.ENDLESS) as borders:
        with pytest.raises(AssertionError):
            train(loader, 3, insists(len(loader)))
        assert borders.suspect is Epochs.TRUE
    with watched(Epochs.TRUE):
        assert train(loader, 3, insists(len(loader))).passes == [BATCHES] * 3


def test_a_schedule_that_ends_has_as_many_steps_as_it_was_made_for() -> None:
    rates: dict[Epochs | None, list[float]] = {}
    for mode in (None, Epochs.ENDLESS, Epochs.TRUE):
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        loader = loader_of()
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=2 * len(loader))
        with watched(mode) if mode else nullcontext() as borders:
            if borders is not None:
                borders.at[15] = borders.tracker.hold_schedules  # as where the config changes
            rates[mode] = []
            for _ in range(2):
                for _batch in loader:
                    optimizer.step()
                    schedule.step()
                    rates[mode].append(float(schedule.get_last_lr()[0]))
                    if len(rates[mode]) >= 2 * BATCHES:
                        break
    assert rates[Epochs.TRUE] == rates[None]
    assert len(rates[None]) == 2 * BATCHES
    assert rates[Epochs.ENDLESS][-1] == rates[Epochs.ENDLESS][BATCHES]


def test_a_failure_within_the_epoch_or_at_once_after_a_switch_is_no_matter_of_epochs() -> None:
    def fails_at(step: int) -> Callable[[int], None]:
        made = iter(range(10_000))

        def each(_number: int) -> None:
            if next(made) == step:
                raise RuntimeError

        return each

    with watched(Epochs.ENDLESS) as borders:
        with pytest.raises(RuntimeError):
            train(loader_of(), 1, fails_at(BATCHES - 1))
        assert borders.suspect is None
    for switched_at, suspect in ((28, None), (20, Epochs.TRUE)):
        with watched(Epochs.ENDLESS) as borders:
            note = partial(borders.tracker.epoch.note_switch, switched_at)
            borders.at[switched_at] = note
            with pytest.raises(RuntimeError):
                train(loader_of(), 1, fails_at(30))
            assert borders.suspect is suspect


def test_a_batch_that_changes_in_an_epoch_leaves_it_as_many_batches() -> None:
    for batch, points in ((4, (9, BATCHES)), (32, (BATCHES + 1,))):
        for at in points:
            with watched() as borders:
                borders.at[at] = partial(borders.seams.loader.options.request, batch_size=batch)
                done = train(loader_of())
            assert done.passes == [BATCHES] * 3, (batch, at)
            assert borders.ended[-1].samples in {batch, 96 % batch or batch}


class Stream(IterableDataset[Any]):
    """Ten batches of eight, and no length."""

    def __iter__(self) -> Iterator[Any]:
        yield from zip(*dataset()[:80], strict=True)


def test_data_without_a_length_end_where_they_end() -> None:
    with watched() as borders:
        done = train(DataLoader(Stream(), 8))
    assert done.passes == [10] * 3
    with watched(Epochs.ENDLESS) as borders:
        with pytest.raises(AssertionError):
            train(DataLoader(Stream(), 8), 1, insists(10))
        assert borders.suspect is Epochs.TRUE


def test_a_loader_that_is_built_again_for_each_epoch_is_not_cut() -> None:
    with watched() as borders:
        borders.at[15] = partial(borders.seams.loader.options.request, batch_size=16)
        done = train(loader_of)
    assert done.passes == [BATCHES] * 3
    assert borders.ended[-1].samples == 16


def test_workers_that_stay_are_the_same_from_one_true_epoch_to_the_next() -> None:
    with watched() as borders:
        borders.at[15] = partial(borders.seams.loader.options.request, num_workers=1)
        done = train(loader_of(), 4)
    third, fourth = (done.workers[n * BATCHES + 2] for n in (2, 3))
    assert len(third) == 1, "the workers of an epoch that is over have gone"
    assert third == fourth
    assert done.passes == [BATCHES] * 4


def test_steps_of_one_batch_epochs_all_count_and_what_lies_between_is_a_pause() -> None:
    with watched() as borders:
        train(DataLoader(dataset(), 96, shuffle=True), 20)
    assert len(borders.ended) >= 12
    assert borders.pauses >= 12
    assert borders.disturbances <= BATCHES, "the evaluation after the last epoch"
