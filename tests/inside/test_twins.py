"""Of loaders that look alike the one that trains gets the options; the others stay as written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.utils.data import DataLoader, TensorDataset

from autotune.inside.hubs.iterate import IterateHub
from autotune.inside.ranks.exchange import SignedStore
from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.loader import LoaderSeam
from autotune.program.profile import LoaderFacts

SAMPLES, BATCH = 64, 8
Loaders = dict[str, DataLoader[Any]]


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(SAMPLES)), BATCH, shuffle=True)


def one_by_one() -> Loaders:
    valid = loader()
    train = loader()
    return {"train": train, "valid": valid}


def at_one_place() -> Loaders:
    return {name: loader() for name in ("train", "valid")}


@contextmanager
def installed(target: LoaderFacts | None, group: Group = ALONE) -> Iterator[LoaderSeam]:
    hub = IterateHub()
    seam = LoaderSeam(hub, None, AccumulationSeam(list), target)
    if group.world_size > 1:
        seam.share(group, lambda: None)
    seam.install()
    try:
        yield seam
    finally:
        hub.remove()


def second_of_two() -> Group:
    """Return the second of two ranks; the first has told the order of an epoch."""
    store = SignedStore(HashStore(), "the run's key")
    for number, chunk in enumerate(([*range(SAMPLES)], [])):
        store.set(f"order/loader 0/1/{number}", chunk)
    return Group(1, 1, 2, 2, store)


def facts_of_training(build: Any) -> LoaderFacts:
    """Return the facts of the loader that trains, as a search notes them."""
    with installed(None) as seam:
        built = build()
        seam.built.training_begins()
        return seam.built.facts(built["train"])


@pytest.mark.parametrize("build", [one_by_one, at_one_place])
def test_the_loader_that_trains_is_shared_out_and_its_twin_is_whole(build: Any) -> None:
    target = facts_of_training(build)
    with installed(target, second_of_two()) as seam:
        built = build()
        assert seam.built.is_target(built["train"])
        assert not seam.built.is_target(built["valid"])
        assert (len(built["train"]), len(built["valid"])) == (4, 8)
        found = {
            name: sorted(torch.cat([x for (x,) in one]).tolist()) for name, one in built.items()
        }
    assert found["train"] == list(range(1, SAMPLES, 2))
    assert found["valid"] == list(range(SAMPLES))


def test_a_loader_that_is_built_again_for_each_epoch_goes_on_being_the_one_that_trains() -> None:
    target = facts_of_training(one_by_one)
    with installed(target) as seam:
        seam.options.request(batch_size=16)
        for _ in range(3):
            built = one_by_one()
            assert (len(built["train"]), len(built["valid"])) == (4, 8)


def test_a_loader_that_trains_is_whole_while_it_evaluates() -> None:
    target = facts_of_training(one_by_one)
    with installed(target, second_of_two()):
        train = one_by_one()["train"]
        with torch.no_grad():
            every = torch.cat([x for (x,) in train])
        assert sorted(every.tolist()) == list(range(SAMPLES))
        assert len(train) == 8, "by which scripts divide what they have summed up"
        share = torch.cat([x for (x,) in train])
        assert (len(share), len(train)) == (SAMPLES // 2, 4)
