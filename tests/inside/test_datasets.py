"""Datasets in workers that the program did not ask for: the same items, in the same order."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    Subset,
    WeightedRandomSampler,
)

from autotune.inside.seam_set import SeamSet
from autotune.inside.step_counts import Step
from autotune.knobs import registry
from autotune.knobs.base import Here
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.lr import LrRule
from autotune.program.profile import LoaderFacts
from tests import watching
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


def running(
    facts: LoaderFacts, own: Mapping[str, KnobValue], **changes: KnobValue
) -> AbstractContextManager[SeamSet]:
    """The seams of ``autotune run`` with some knobs changed."""
    baseline, traits = Config({"workers": 0, **own}), ProgramTraits("cpu", facts)
    return watching.running(
        AppliedConfig(baseline.replace(**changes), baseline, traits, LrRule.NONE)
    )


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
        return borders.seams.loader.built.facts(loader)


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


class Stored(Numbers):
    def __init__(self, path: Path, opens: Callable[[Path], Any], *, at_once: bool) -> None:
        super().__init__()
        self.path, self.opens = path, opens
        self.file = opens(path) if at_once else None

    def more(self, index: int) -> float:
        if self.file is None:
            self.file = self.opens(self.path)
        if not hasattr(self.file, "readinto"):
            return float(index)
        self.file.seek(8 * index)
        return float(numpy.frombuffer(self.file.read(8))[0])


OPENERS: dict[str, Callable[[Path], Any]] = {
    "file": lambda path: path.open("rb"),
    "h5py": lambda path: h5py.File(path.with_suffix(".h5"), "a"),
}


@pytest.mark.parametrize("opener", OPENERS)
def test_what_a_dataset_holds_open_refuses_workers_unless_items_open_it(
    tmp_path: Path, opener: str
) -> None:
    """Live workers open it for themselves, and the program keeps its own."""
    path = tmp_path / "numbers"
    path.write_bytes(numpy.arange(float(SAMPLES)).tobytes())
    for at_once in (True, False):
        dataset = Stored(path, OPENERS[opener], at_once=at_once)
        with watched() as borders:
            if not at_once:
                borders.then = lambda: borders.seams.loader.options.request(num_workers=2)
            seen = train(DataLoader(Subset(dataset, range(SAMPLES)), 4), steps=24)
            feed = borders.tracker.epoch.feed
            assert feed is not None
            assert feed.present.loader.num_workers == (0 if at_once else 2)
        assert torch.equal(*torch.cat(seen).unbind(1))
        assert borders.profile is not None
        offered = registry()["workers"].domain(Here(make_hardware(), borders.profile))
        assert isinstance(offered, NotOffered) is at_once
        assert not at_once or "holds open (dataset.file)" in offered.reason  # type: ignore[union-attr]
        assert dataset.file is not None
        if opener == "file" and not at_once:
            assert dataset.file.tell() == 8 * (int(torch.cat(seen[:7])[:, 0].max()) + 1)
        dataset.file.close()


class Epochs(Numbers):
    """Changes from epoch to epoch; ``pid`` tells which process has read an item."""

    def __init__(self) -> None:
        super().__init__(8)
        self.held: Any = [0.0]

    def __getitem__(self, index: int) -> torch.Tensor:
        value = self.held() if callable(self.held) else float(sum(self.held))
        return torch.tensor([float(os.getpid() % 100_000), value])


CHANGES: dict[str, Callable[[int], Any]] = {
    "number": lambda epoch: [epoch],
    "array": lambda epoch: numpy.full(200_000, epoch),
    "opaque": lambda epoch: iter([float(epoch)] * 3).__next__,
    "nothing": lambda _: [0.0],
}


@pytest.mark.parametrize("change", CHANGES)
def test_workers_that_stay_are_started_anew_where_the_dataset_has_changed(change: str) -> None:
    def program() -> list[list[float]]:
        dataset = Epochs()
        loader = DataLoader(dataset, 2, num_workers=1)
        seen = []
        for epoch in (1, 2):
            dataset.held = CHANGES[change](epoch)
            read = torch.cat([*islice(loader, 1)]) if change == "opaque" else torch.cat([*loader])
            seen += [read[:, 0].tolist()[:2], read[:, 1].tolist()]
        return seen

    facts = facts_of(lambda: DataLoader(Epochs(), 2, num_workers=1))
    first, one, second, other = seen_under(program, facts, {"workers": 1}, workers=2)
    assert (first == second) is (change == "nothing")
    assert [one, other] == program()[1::2]


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
@pytest.mark.parametrize("name", loaders())
def test_no_loader_knob_changes_which_samples_come_in_which_order(name: str) -> None:
    """Nor what the program itself draws meanwhile."""
    build = loaders()[name]

    def program() -> list[list[float]]:
        torch.manual_seed(0)
        loader = build()
        return [
            [x for batch in loader for x in (*batch[:, 0].tolist(), float(torch.rand(1)))]
            for _ in range(2)
        ]

    alone, facts = program(), facts_of(build)
    own: dict[str, KnobValue] = {
        "workers": facts.num_workers,
        "prefetch_factor": 2,
        "pinning": "off",
    }
    changes: tuple[dict[str, KnobValue], ...] = (
        {"workers": 0},
        {"workers": 2, "prefetch_factor": 3},
        {"workers": 1, "pinning": "blocking"},
    )
    for change in changes:
        assert seen_under(program, facts, own, **change) == alone, change


def read_ahead(loader: Loader, pool: ThreadPoolExecutor) -> Iterator[torch.Tensor]:
    """Have another thread read the next batch, as prefetch_generator does."""
    batches = iter(loader)
    following = pool.submit(next, batches)
    while True:
        batch, following = following.result(), pool.submit(next, batches)
        yield batch


def test_borders_are_ends_of_steps_where_a_thread_asks_for_batches() -> None:
    with watched() as borders, ThreadPoolExecutor(1) as pool:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        borders.then = lambda: borders.seams.loader.options.request(batch_size=8)
        sizes: list[int] = []
        at_end: list[int] = []
        for batch in islice(read_ahead(DataLoader(Numbers(800), 4), pool), 30):
            sizes.append(len(batch))
            optimizer.zero_grad()
            model(batch).sum().backward()
            before = len(borders.borders)
            optimizer.step()
            at_end.append(len(borders.borders) - before)
    profile = borders.profile
    assert profile is not None
    assert profile.training_loader is not None
    assert profile.loop.reads_ahead
    assert (sizes[:6], sizes[-10:]) == ([4] * 6, [8] * 10)
    assert at_end == [0] * 6 + [1] * 24
    assert [step.samples for step in borders.borders] == sizes[6:]
    assert borders.threads == {threading.get_ident()}


class Again:
    """A batch sampler without an end, as loaders have that keep their workers."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


class Endless(Loader):
    """As in timm and ultralytics: it makes one iterator, by the method by which PyTorch does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))
        self.iterator: Any = None

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr]

    def __iter__(self) -> Any:
        self.iterator = self.iterator or self._get_iterator()
        return (next(self.iterator) for _ in range(len(self)))


def test_a_loader_that_never_ends_is_the_one_that_trains_and_its_batches_are_varied() -> None:
    with watched() as borders:
        train(Endless(Numbers(636), 8))
        profile, feed, seams = borders.profile, borders.tracker.epoch.feed, borders.seams
        assert profile is not None
        assert feed is not None
        for knob in ("batch_size", "workers"):
            offered = registry()[knob].domain(Here(make_hardware(), profile))
            assert isinstance(offered, Domain), offered
        assert seams.loader.sizes.round_of(feed.loader) == 80
        seams.loader.options.request(batch_size=32)
        assert [len(next(feed)) for _ in range(21)] == [*[32] * 19, 28, 32]
        seams.loader.options.request(batch_size=8)
        assert len(next(feed)) == 8
    with running(profile.loaders[0], {"batch_size": 8}, batch_size=32) as seams:
        loader = Endless(Numbers(636), 8)
        assert [len(batch) for batch in loader] == [*[32] * 19, 28]
        assert len(loader) == 20
        assert seams.loader.built.found_target
