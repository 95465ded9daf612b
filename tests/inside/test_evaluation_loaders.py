"""Options of evaluation's own loaders change neither its figures nor the training after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from autotune.inside.data.batch_digest import NotComparableError, batch_digest
from autotune.inside.data.evaluation_loaders import EvaluationLoaders
from autotune.inside.data.loader_facts import read_facts
from autotune.inside.rehearsing.evaluation_turns import (
    OWN,
    EvaluationTurns,
    is_last_chance,
    passes_for,
)
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.loader import LoaderSeam
from autotune.program.evaluation import EvaluationLoader, EvaluationPlan, candidates
from autotune.program.profile import LoaderFacts

FEATURES, KINDS, EPOCHS = 6, 3, 3
Figures = list[float]


class Noisy(Dataset[Any]):
    """Samples whose training items draw from torch's generator, as an augmentation does."""

    def __init__(self, samples: int, *, draws: bool) -> None:
        made = torch.Generator().manual_seed(samples)
        self.x = torch.randn(samples, FEATURES, generator=made)
        self.y = torch.arange(samples) % KINDS
        self.draws = draws

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = 0.1 * torch.randn(FEATURES) if self.draws else torch.zeros(FEATURES)
        return self.x[index] + noise, self.y[index]


class Stream(IterableDataset[Any]):
    """Samples one after the other, without an index."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        made = torch.Generator().manual_seed(1)
        for number in range(20):
            yield torch.randn(FEATURES, generator=made), torch.tensor(number % KINDS)


def training_data() -> DataLoader[Any]:
    return DataLoader(Noisy(24, draws=True), 8, shuffle=True)


def held_out(**options: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(20, draws=False), 8, **options)


def either(data: Dataset[Any], *, trains: bool) -> DataLoader[Any]:
    return DataLoader(data, 8, shuffle=trains)


@dataclass
class Net:
    """A small net in training, and the figures of its evaluations."""

    def __post_init__(self) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(FEATURES, 16), nn.Dropout(0.2), nn.Linear(16, KINDS))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.figures: Figures = []

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def train(self, loader: DataLoader[Any]) -> None:
        self.model.train()
        for x, y in loader:
            self.step(x, y)

    @torch.no_grad()
    def evaluate(self, loader: DataLoader[Any], *, means: bool = False) -> None:
        self.model.eval()
        reduction = "mean" if means else "sum"
        losses = [
            nn.functional.cross_entropy(self.model(x), y, reduction=reduction).item()
            for x, y in loader
        ]
        self.figures.append(sum(losses) / (len(losses) if means else 1))
        self.model.train()

    @property
    def outcome(self) -> tuple[Figures, list[float]]:
        weights = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        return self.figures, [*weights.tolist(), torch.rand(()).item()]


def sums(net: Net) -> None:
    train, valid = training_data(), held_out()
    for _ in range(EPOCHS):
        net.train(train)
        net.evaluate(valid)


def batch_means(net: Net) -> None:
    train, valid = training_data(), held_out(num_workers=1)
    for _ in range(EPOCHS):
        net.train(train)
        net.evaluate(valid, means=True)


def iterable(net: Net) -> None:
    train, valid = training_data(), DataLoader(Stream(), 8)
    for _ in range(EPOCHS):
        net.train(train)
        net.evaluate(valid)


def two_loaders(net: Net) -> None:
    train, valid, test = training_data(), held_out(), DataLoader(Noisy(12, draws=False), 8)
    for _ in range(EPOCHS):
        net.train(train)
        net.evaluate(valid)
        net.evaluate(test)


def shared(net: Net) -> None:
    both = DataLoader(Noisy(24, draws=False), 8)
    for _ in range(EPOCHS):
        net.train(both)
        net.evaluate(both)


def helper(net: Net) -> None:
    for _ in range(EPOCHS):  # built anew for each epoch, all in one line of code
        net.train(either(Noisy(20, draws=True), trains=True))
        net.evaluate(either(Noisy(20, draws=False), trains=False))


def in_the_middle(net: Net) -> None:
    train, valid = training_data(), held_out()
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(train):
            net.step(x, y)
            if number == 1:
                net.evaluate(valid)


def persistent(net: Net) -> None:
    train, valid = training_data(), held_out(num_workers=2, persistent_workers=True)
    for _ in range(EPOCHS):
        net.train(train)
        net.evaluate(valid)


PROGRAMS: dict[str, Callable[[Net], None]] = {
    one.__name__: one
    for one in (
        sums,
        batch_means,
        iterable,
        two_loaders,
        shared,
        helper,
        in_the_middle,
        persistent,
    )
}


def outcome(program: Callable[[Net], None]) -> tuple[Figures, list[float]]:
    net = Net()
    program(net)
    return net.outcome


def facts_of(program: Callable[[Net], None]) -> LoaderFacts:
    """Return the facts of the loader that the program evaluates on, as a search notes them."""
    found: list[LoaderFacts] = []
    seam = LoaderSeam(None, AccumulationSeam(), None)
    seam.install()
    evaluate = Net.evaluate

    def noting(net: Net, loader: DataLoader[Any], **options: Any) -> None:
        seam.training_begins()
        found.append(seam.facts(loader))
        evaluate(net, loader, **options)

    try:
        Net.evaluate = noting  # type: ignore[method-assign, assignment]
        program(Net())
    finally:
        Net.evaluate = evaluate  # type: ignore[method-assign]
        seam.remove()
    return found[0]


def noted(seam: LoaderSeam) -> list[bool]:
    """Return a list that tells of each pass whether its loader had other options."""
    given: list[bool] = []
    variant = seam.evaluation.variant

    def noting(loader: DataLoader[Any]) -> DataLoader[Any]:
        found = variant(loader)
        given.append(found is not loader)
        return found

    seam.evaluation.variant = noting  # type: ignore[method-assign]
    return given


@pytest.mark.parametrize("name", PROGRAMS)
def test_evaluation_and_training_stay_the_same_bit_for_bit(name: str) -> None:
    program = PROGRAMS[name]
    written, facts = outcome(program), facts_of(program)
    tries = candidates(facts, cores=2, pins=False)
    assert tries
    for options in tries:
        seam = LoaderSeam(None, AccumulationSeam(), facts if name == "shared" else None)
        seam.evaluation.give((EvaluationLoader(facts, options),))
        given = noted(seam)
        seam.install()
        try:
            assert outcome(program) == written, options
        finally:
            seam.remove()
        assert any(given) is (name not in {"iterable", "shared"}), (options, given)


def test_pinning_alone_and_deeper_prefetching_are_tried_too() -> None:
    tries = candidates(read_facts(held_out()), cores=2, pins=True)
    assert {"pin_memory": True} in tries
    assert any(options.get("prefetch_factor") == 4 for options in tries)
    assert not any("batch_size" in options for options in tries)


def test_a_loader_that_is_recognised_loads_under_its_options() -> None:
    loader = held_out()
    made = EvaluationLoaders(lambda _, options: dict(options))
    made.give((EvaluationLoader(read_facts(loader), {"num_workers": 2}),))
    other = DataLoader(TensorDataset(torch.zeros(3)))
    for one in (loader, other):
        made.built(one, read_facts(one))
    assert made.variant(loader).num_workers == 2
    assert made.variant(loader) is made.variant(loader)  # whose workers may persist
    assert made.variant(other) is other


def test_a_loader_that_is_not_there_is_missed() -> None:
    facts = replace(read_facts(held_out()), twins=1)
    made = EvaluationLoaders(lambda _, options: dict(options))
    made.give((EvaluationLoader(facts, {"num_workers": 2}),))
    made.built(other := DataLoader(TensorDataset(torch.zeros(3))), read_facts(other))
    (sentence,) = made.training_begins()
    assert "(Noisy of 20 samples), so num_workers were not applied" in sentence


def turns(*tries: dict[str, int]) -> EvaluationTurns:
    return EvaluationTurns(read_facts(held_out()), tries, most=100)


class Seeds(Dataset[Any]):
    """Items that seed the generator which all code shares, to crop in the same way each time."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        torch.manual_seed(index)
        return torch.rand(2)


def test_items_that_leave_another_random_state_are_not_loaded_elsewhere() -> None:
    tried = turns({"num_workers": 2})
    for _ in range(3):
        tried.begins()
        for batch in DataLoader(Seeds(), 2, num_workers=int(tried.options.get("num_workers", 0))):
            tried.batch(batch)
        tried.pass_ended(1.0)
    assert [p.options for p in tried.found.passes] == [OWN, OWN, {"num_workers": 2}]
    assert tried.found.refusal == "other options change its batches, or the random numbers after it"


def test_batches_are_compared_by_all_that_they_hold_or_not_at_all() -> None:
    one = {"x": torch.zeros(2), "name": ["a"], "n": numpy.ones(2)}
    assert batch_digest(one) == batch_digest({**one, "x": torch.zeros(2)})
    for other in (
        {**one, "name": ["b"]},
        {**one, "n": numpy.zeros(2)},
        {**one, "x": torch.ones(2)},
    ):
        assert batch_digest(other) != batch_digest(one)
    assert batch_digest([torch.zeros(4)]) != batch_digest([torch.zeros(2, 2)])
    for unknown in (object(), torch.zeros(2, 2).to_sparse(), numpy.array([object()])):
        with pytest.raises(NotComparableError):
            batch_digest([unknown])
    tried = turns({"num_workers": 2})
    tried.begins()
    tried.batch(object())
    assert tried.found.refusal == "its batches cannot be compared"


def test_options_that_change_what_the_dataset_holds_are_refused() -> None:
    held = [0]
    facts = read_facts(held_out(num_workers=2))
    tried = EvaluationTurns(facts, [{"num_workers": 0}], 100, picture=lambda: [*held])
    for _ in range(3):
        tried.begins()
        held[0] += bool(tried.options)
        tried.pass_ended(1.0)
    assert tried.found.refusal == "other options change its batches, or the random numbers after it"


def test_options_that_another_process_chose_are_compared_after_one_pass_of_each() -> None:
    facts = read_facts(held_out())
    for most, refusal in ((3, "there was no time to try others"), (4, "")):
        tried = EvaluationTurns(facts, [{"num_workers": 2}], most, were_chosen=True)
        assert tried.found.refusal == refusal
    for _ in range(6):
        tried.begins()
        tried.batch(torch.arange(4.0))
        tried.pass_ended(0.5 if tried.options else 1.0)
    assert tried.found.ratios == [2.0, 2.0]


def test_the_fastest_options_take_turns_with_the_programs_own() -> None:
    tried = turns({"num_workers": 1}, {"num_workers": 2})
    seconds = {0: 1.0, 1: 0.9, 2: 0.4}
    for _ in range(6 + 8):
        tried.begins()
        workers = int(tried.options.get("num_workers", 0))
        tried.batch(torch.arange(4.0))
        tried.pass_ended(seconds[workers])
    found = tried.found
    assert found.chosen == {"num_workers": 2}
    assert [p.options for p in found.passes if p.is_chosen] == [
        OWN,
        {"num_workers": 2},
        {"num_workers": 2},
        OWN,
    ]
    assert found.ratios == pytest.approx([2.5] * 2)


def test_as_many_options_are_tried_as_there_is_time_for() -> None:
    none, persistent = {"num_workers": 0}, {"num_workers": 2, "persistent_workers": True}
    facts = read_facts(held_out())
    for most, passes in (
        (4, [OWN, OWN, OWN, OWN]),
        (5, [OWN, OWN, none, OWN, none]),
        (7, [OWN, OWN, none, persistent, persistent, OWN, none]),
    ):
        tried = EvaluationTurns(facts, [none, persistent], most)
        seen = []
        for _ in range(most):
            tried.begins()
            tried.batch(torch.arange(4.0))
            seen.append(tried.options)
            tried.pass_ended({0: 0.1, 2: 0.2}.get(int(tried.options.get("num_workers", 4)), 1.0))
        assert seen == passes
        is_tried = most > 4
        assert tried.found.ratios == pytest.approx([10.0] if is_tried else [])
        assert bool(tried.found.refusal) is not is_tried


def test_trying_begins_while_there_is_time_for_it() -> None:
    for spare_s, is_last in ((3.2, False), (3.0, True), (2.5, True), (2.4, False)):
        assert is_last_chance(2.5, spare_s, epoch_s=0.6) is is_last, spare_s


def test_the_least_turns_are_those_in_which_options_can_be_compared() -> None:
    own = read_facts(held_out())
    for facts, were_chosen, least in (
        (replace(own, num_workers=0, persistent_workers=False), False, 6),
        (replace(own, num_workers=4, persistent_workers=False), False, 5),
        (replace(own, num_workers=4, persistent_workers=True), False, 6),
        (replace(own, num_workers=4, persistent_workers=False), True, 4),
    ):
        tries = EvaluationPlan(cores=2).tries(facts)
        assert passes_for(facts, tries[:1], were_chosen=were_chosen) == least
        for most, refusal in ((least, ""), (least - 1, "there was no time to try others")):
            turns = EvaluationTurns(facts, tries, most, were_chosen=were_chosen)
            assert turns.found.refusal == refusal, (facts, most)


@pytest.mark.parametrize(
    ("batches", "why"),
    [
        ([1, 2], "its passes differ, or change what it loads from"),
        ([1, 1, 2], "other options change its batches, or the random numbers after it"),
        ([1, 1, 1], "no other option was faster"),
    ],
)
def test_options_that_change_batches_or_gain_nothing_are_refused(
    batches: list[int], why: str
) -> None:
    tried = turns({"num_workers": 2})
    for value in batches:
        tried.begins()
        tried.batch(torch.full((3,), float(value)))
        tried.pass_ended(1.0)
    assert tried.is_over
    assert tried.found.refusal == why
    assert tried.options == OWN
