"""Datasets in workers that the program did not ask for: the same items, in the same order."""

from __future__ import annotations

import multiprocessing as python_multiprocessing
import os
import queue
import random
import sqlite3
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy
import pytest
import torch
from torch import multiprocessing, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    WeightedRandomSampler,
)

from autotune.inside.seam_set import SeamSet
from autotune.inside.steering import Steering
from autotune.inside.step_counts import Step
from autotune.knobs import registry
from autotune.knobs.base import Here
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.lr import LrRule
from autotune.program.profile import LoaderFacts
from autotune.program.program_traits import ProgramTraits
from tests.made import make_hardware
from tests.watching import Watching

SAMPLES = 48
Loader = DataLoader[Any]


class Numbers(Dataset[torch.Tensor]):
    """Its items are their own numbers; a subclass says what is done with each."""

    def __init__(self, length: int = SAMPLES) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), self.more(index)])

    def more(self, index: int) -> float:
        return 0.0


class Watched(Watching):
    """Stops at no border; counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.seams = self.tracker.seams
        self.borders = self.ended
        self.threads: set[int] = set()
        self.then: Callable[[], None] = lambda: None

    def observed(self) -> None:
        super().observed()
        self.then()

    def on_step_end(self, step: Step) -> None:
        super().on_step_end(step)
        self.threads.add(threading.get_ident())


def watched() -> AbstractContextManager[Watched]:
    """The seams as a rig installs them."""
    return Watched().installed()


def train(
    loader: Loader, each: Callable[[int], object] = lambda _: None, steps: int = 9
) -> list[torch.Tensor]:
    """A program: go through the data, do something each time, step."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    seen: list[torch.Tensor] = []
    while len(seen) < steps:
        for batch in loader:
            seen.append(batch[0] if isinstance(batch, (list, tuple)) else batch)
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
            each(len(seen))
            if len(seen) == steps:
                break
    return seen


@contextmanager
def running(
    facts: LoaderFacts, own: Mapping[str, KnobValue], **changes: KnobValue
) -> Iterator[SeamSet]:
    """The seams as ``autotune run`` installs them."""
    baseline = Config({"workers": 0, **own})
    applied = AppliedConfig(
        baseline.replace(**changes), baseline, ProgramTraits("cpu", facts), LrRule.NONE
    )
    seams = SeamSet(None, facts)
    Steering(seams).apply(applied)
    seams.install()
    try:
        yield seams
    finally:
        seams.remove()


def seen_under(
    program: Callable[[], list[list[float]]],
    facts: LoaderFacts,
    own: Mapping[str, KnobValue] | None = None,
    **changes: KnobValue,
) -> list[list[float]]:
    """Return what a program reads under ``autotune run``."""
    with running(facts, own or {}, **changes) as seams:
        result = program()
        assert not seams.loader.misses_target
        return result


def facts_of(build: Callable[[], Loader]) -> LoaderFacts:
    """Return a loader as a search sees it, wherever it is built."""
    with watched() as borders:
        loader = build()
        borders.seams.loader.built.training_begins()
        return borders.seams.loader.facts(loader)


# --- open files ----------------------------------------------------------------------------------


class Stored(Numbers):
    def __init__(self, path: Path, opens: Callable[[Path], Any], *, at_once: bool) -> None:
        super().__init__()
        self.path, self.opens = path, opens
        self.file = opens(path) if at_once else None

    def more(self, index: int) -> float:
        if self.file is None:
            self.file = self.opens(self.path)
        if hasattr(self.file, "readinto"):
            self.file.seek(8 * index)
            return float(numpy.frombuffer(self.file.read(8))[0])
        return float(index)


def open_file(path: Path) -> Any:
    return path.open("rb")


def test_what_a_dataset_holds_open_refuses_workers_unless_items_open_it(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(numpy.arange(float(SAMPLES)).tobytes())
    openers: tuple[Callable[[Path], Any], ...] = (
        open_file,
        lambda path: h5py.File(path.with_suffix(".h5"), "a"),
        lambda path: zipfile.ZipFile(path.with_suffix(".zip"), "a"),
        lambda path: sqlite3.connect(path.with_suffix(".db")),
    )
    for opens in openers:
        for at_once in (True, False):
            dataset = Stored(path, opens, at_once=at_once)
            with watched() as borders:
                train(DataLoader(dataset, 4))
            assert borders.profile is not None
            offered = registry()["workers"].domain(Here(make_hardware(), borders.profile))
            assert isinstance(offered, NotOffered) is at_once
            assert not at_once or "holds open (file)" in offered.reason  # type: ignore[union-attr]
            assert dataset.file is not None
            dataset.file.close()


def test_live_workers_open_for_themselves_what_items_had_opened_in_the_program(
    tmp_path: Path,
) -> None:
    """Else they would move one position in one file; the program's own stays open."""
    path = tmp_path / "numbers"
    path.write_bytes(numpy.arange(float(SAMPLES)).tobytes())
    dataset = Subset(Stored(path, open_file, at_once=False), range(SAMPLES))
    with watched() as borders:
        borders.then = lambda: borders.seams.loader.options.request(num_workers=2)
        seen = train(DataLoader(dataset, 4), steps=40)
        assert borders.tracker.epoch.feed is not None
        assert borders.tracker.epoch.feed.num_workers == 2
    assert torch.equal(*torch.cat(seen).unbind(1))
    own = dataset.dataset.file  # type: ignore[attr-defined]
    assert own.tell() == 8 * own_position(seen)
    own.close()


def own_position(seen: list[torch.Tensor]) -> int:
    """Samples up to the last that the program itself read, in the untouched steps."""
    return int(torch.cat(seen[:7])[:, 0].max()) + 1


# --- epochs --------------------------------------------------------------------------------------


class Shift:
    by = 0


class Epochs(Numbers):
    """Changes from epoch to epoch, in a way of its own."""

    def __init__(self, way: str) -> None:
        super().__init__(8)
        self.way = way
        self.epoch = 0
        self.negatives = numpy.zeros(200_000, dtype=numpy.int64)
        self.levels = [0.0] * 30_000
        self.weights = torch.zeros(8)
        self.transform = Shift()
        self.opaque: Any = None

    def set_epoch(self, epoch: int) -> None:
        match self.way:
            case "number":
                self.epoch = epoch
            case "array":
                self.negatives[:] = epoch
            case "list":
                self.levels[:] = [float(epoch)] * len(self.levels)
            case "tensor":
                self.weights += 1
            case "nested":
                self.transform.by = epoch
            case "opaque":
                self.opaque = iter([float(epoch)] * 30) if epoch else None

    def more(self, index: int) -> float:
        drawn = 0.0 if self.opaque is None else next(self.opaque)
        values = (self.epoch, self.negatives[index], self.levels[index], self.weights[index])
        return float(sum(values)) + self.transform.by + drawn


def epochs_of(way: str, number: int = 2) -> list[list[float]]:
    """A program that trains for some epochs."""
    dataset = Epochs(way)
    loader = DataLoader(dataset, 4, num_workers=1)
    seen = []
    for epoch in range(number):
        dataset.set_epoch(epoch)
        seen.append([float(x) for batch in loader for x in batch[:, 1]])
    return seen


def test_workers_that_stay_see_what_changes_between_epochs() -> None:
    facts = facts_of(lambda: DataLoader(Epochs(""), 4, num_workers=1))
    for way in ("number", "array", "list", "tensor", "nested", "opaque"):
        alone = epochs_of(way)
        program = partial(epochs_of, way)
        under = seen_under(program, facts, {"workers": 1}, workers=2)
        assert under == alone
        assert alone[0] != alone[1]


def test_workers_stay_where_nothing_changes() -> None:
    def program() -> list[list[float]]:
        loader = DataLoader(Workers(8), 4, num_workers=1)
        return [[float(x) for batch in loader for x in batch[:, 1]] for _ in range(2)]

    facts = facts_of(lambda: DataLoader(Workers(8), 4, num_workers=1))
    first, second = seen_under(program, facts, {"workers": 1}, workers=2)
    assert first == second
    first, second = program()
    assert first != second


class Workers(Numbers):
    def more(self, index: int) -> float:
        return float(os.getpid() % 100_000)


def test_a_rig_starts_its_workers_again_where_the_dataset_has_changed() -> None:
    dataset = Epochs("number")
    with watched() as borders:
        loader = DataLoader(dataset, 4)
        borders.then = lambda: borders.seams.loader.options.request(num_workers=1)
        train(loader, steps=10)
        dataset.epoch = 3
        seen = train(loader, steps=6)
    assert torch.cat(seen)[-8:, 1].tolist() == [3.0] * 8


# --- order ---------------------------------------------------------------------------------------


class Shuffled:
    """A batch sampler that draws its order as soon as it is asked for an iterator."""

    def __init__(self) -> None:
        self.rng = random.Random(7)

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(SAMPLES))
        self.rng.shuffle(order)
        return iter([order[n : n + 8] for n in range(0, SAMPLES, 8)])

    def __len__(self) -> int:
        return SAMPLES // 8


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def loaders() -> dict[str, Callable[[], Loader]]:
    data, ones = Numbers(), [1.0] * SAMPLES
    own: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}
    return {
        "global": lambda: DataLoader(data, 8, shuffle=True),
        "generator": lambda: DataLoader(data, 8, shuffle=True, generator=seeded()),
        "weighted": lambda: DataLoader(
            data, 8, sampler=WeightedRandomSampler(ones, SAMPLES, generator=seeded())
        ),
        "eager": lambda: DataLoader(data, batch_sampler=Shuffled()),
        "eager, workers": lambda: DataLoader(data, batch_sampler=Shuffled(), num_workers=1),
        "workers that stay": lambda: DataLoader(data, 8, shuffle=True, generator=seeded(), **own),
    }


@pytest.mark.filterwarnings("ignore:.*pin_memory:UserWarning")
def test_no_loader_knob_changes_which_samples_come_in_which_order() -> None:
    """Nor what the program itself draws meanwhile."""

    def program(build: Callable[[], Loader]) -> list[list[float]]:
        torch.manual_seed(0)
        loader = build()
        return [
            [x for batch in loader for x in (*batch[:, 0].tolist(), float(torch.rand(1)))]
            for _ in range(2)
        ]

    changes: tuple[dict[str, KnobValue], ...] = (
        {"workers": 0},
        {"workers": 2, "prefetch_factor": 3},
        {"workers": 1, "pinning": "blocking"},
    )
    for name, build in loaders().items():
        alone = program(build)
        facts = facts_of(build)
        own: dict[str, KnobValue] = {
            "workers": facts.num_workers,
            "prefetch_factor": 2,
            "pinning": "off",
        }
        for change in changes:
            under = seen_under(partial(program, build), facts, own, **change)
            assert under == alone, (name, change)


# --- start method --------------------------------------------------------------------------------


@pytest.fixture
def _undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not yet come to a start method, as one that has just begun."""
    default = python_multiprocessing.context._default_context
    monkeypatch.setattr(default, "_actual_context", None)


@pytest.mark.usefixtures("_undecided")
@pytest.mark.parametrize("when", ["before", "after", "once iterated"])
def test_a_program_sets_its_start_method_when_it_likes(when: str) -> None:
    facts = facts_of(lambda: DataLoader(Numbers(8), 4))

    def program() -> list[list[float]]:
        if when == "before":
            multiprocessing.set_start_method("spawn")
        loader = DataLoader(Numbers(8), 4)
        if when == "after":
            multiprocessing.set_start_method("forkserver")
        seen = [batch[:, 0].tolist() for batch in loader] if when == "once iterated" else []
        if when == "once iterated":
            multiprocessing.set_start_method("spawn")
        return seen

    alone = program()
    multiprocessing.set_start_method(None, force=True)
    assert seen_under(program, facts, workers=1) == alone
    assert multiprocessing.get_start_method() == {"after": "forkserver"}.get(when, "spawn")


@pytest.mark.usefixtures("_undecided")
def test_a_search_sees_the_start_method_in_force_and_chooses_none() -> None:
    with watched() as borders:
        loader = DataLoader(Numbers(8), 4)
        first = borders.seams.loader.facts(loader).start_method
        assert multiprocessing.get_start_method(allow_none=True) is None
        multiprocessing.set_start_method("spawn")
        assert borders.seams.loader.facts(loader).start_method == "spawn"
    assert first == multiprocessing.get_all_start_methods()[0]


# --- a thread that asks for batches --------------------------------------------------------------


class Background:
    """Like prefetch_generator's BackgroundGenerator; ends when told to."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.queue: queue.Queue[Any] = queue.Queue(2)
        self.batches = batches
        self.is_over = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        for batch in self.batches:
            if self.is_over:
                return
            self.queue.put(batch)

    def end(self) -> None:
        self.is_over = True
        while self.thread.is_alive():
            with suppress(queue.Empty):
                self.queue.get(timeout=0.01)


def test_borders_are_ends_of_steps_where_a_thread_asks_for_batches() -> None:
    with watched() as borders:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        batches = Background(iter(DataLoader(Numbers(800), 4)))
        borders.then = lambda: borders.seams.loader.options.request(batch_size=8)
        sizes: list[int] = []
        at_end: list[int] = []
        while len(sizes) < 30:
            batch = batches.queue.get()
            sizes.append(len(batch))
            optimizer.zero_grad()
            model(batch).sum().backward()
            before = len(borders.borders)
            optimizer.step()
            at_end.append(len(borders.borders) - before)
        batches.end()
    profile = borders.profile
    assert profile is not None
    assert profile.training_loader is not None
    assert profile.loop.reads_ahead
    assert (sizes[:6], sizes[-10:]) == ([4] * 6, [8] * 10)
    assert at_end == [0] * 6 + [1] * 24
    assert [step.samples for step in borders.borders] == sizes[6:]
    assert borders.threads == {threading.get_ident()}


# --- odd loaders ---------------------------------------------------------------------------------


class Again:
    """A batch sampler without an end, as loaders have that keep their workers."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


class Endless(Loader):
    """As in timm and ultralytics."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr]

    def __iter__(self) -> Any:
        return (next(self.iterator) for _ in range(len(self)))


class Begun(Endless):
    """Makes its iterator by the method that PyTorch's own makes it by, when it is first asked."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.iterator: Any = None

    def __iter__(self) -> Any:
        self.iterator = self.iterator or self._get_iterator()
        return (next(self.iterator) for _ in range(len(self)))


class Sorted(Again):
    """Holds two samplers: which of them makes its batches is not clear."""

    def __init__(self, sampler: Any) -> None:
        super().__init__(sampler)
        self.other = BatchSampler(range(8), 4, drop_last=False)


class Unclear(Endless):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        inner = self.batch_sampler.sampler  # type: ignore[union-attr]
        object.__setattr__(self, "batch_sampler", Sorted(inner))


def test_a_loader_that_never_ends_is_the_one_that_trains_and_its_batches_are_varied() -> None:
    for kind in (Endless, Begun):
        with watched() as borders:
            train(kind(Numbers(636), 8))
            profile, feed, seams = borders.profile, borders.tracker.epoch.feed, borders.seams
            assert profile is not None, kind
            assert feed is not None, kind
            for knob in ("batch_size", "workers"):
                offered = registry()[knob].domain(Here(make_hardware(), profile))
                assert isinstance(offered, Domain), (kind, offered)
            assert seams.loader.sizes.round_of(feed.loader) == 80, kind
            seams.loader.options.request(batch_size=32)
            assert [len(next(feed)) for _ in range(21)] == [*[32] * 19, 28, 32], kind
            seams.loader.options.request(batch_size=8)
            assert len(next(feed)) == 8, kind
        with running(profile.loaders[0], {"batch_size": 8}, batch_size=32) as seams:
            loader = kind(Numbers(636), 8)
            assert [len(batch) for batch in loader] == [*[32] * 19, 28], kind
            assert len(loader) == 20, kind
            assert seams.loader.built.found_target, kind


class Replaced(Begun):
    """Draws its batches by a sampler that it was not built with."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        other = BatchSampler(range(0, 636, 2), 8, drop_last=True)
        object.__setattr__(self, "batch_sampler", Again(other))


def test_batches_of_another_sampler_than_the_loader_was_built_with_are_left_alone() -> None:
    with watched() as borders:
        train(Replaced(Numbers(636), 8))
        profile, feed = borders.profile, borders.tracker.epoch.feed
        assert profile is not None
        assert feed is not None
        assert isinstance(
            registry()["batch_size"].domain(Here(make_hardware(), profile)), NotOffered
        )
        assert all(int(x) % 2 == 0 for x in next(feed).flatten())


def test_a_batch_sampler_of_a_kind_that_is_not_clear_is_refused_by_its_name() -> None:
    with watched() as borders:
        train(Unclear(Numbers(640), 8))
    profile = borders.profile
    assert profile is not None
    offered = registry()["batch_size"].domain(Here(make_hardware(), profile))
    assert isinstance(offered, NotOffered)
    assert "its own batch sampler, a Sorted" in offered.reason
    assert isinstance(registry()["workers"].domain(Here(make_hardware(), profile)), Domain)


class Unmeasured(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.randn(60, 2))

    def __len__(self) -> int:
        raise RuntimeError("not yet known")


def test_a_dataset_that_cannot_tell_its_length_trains_as_one_without() -> None:
    with watched() as borders:
        train(DataLoader(Unmeasured(), 4))
    assert borders.profile is not None
    assert borders.profile.loaders[0].dataset_len is None
