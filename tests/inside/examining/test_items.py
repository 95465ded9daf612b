"""Where the time of an item goes, on items that spend it in a known way."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from autotune.inside.examining import items
from autotune.inside.examining.items import examine_items
from autotune.measurement.examination import ItemsExamined


class Items(Dataset[Any]):
    """Items that are loaded by a function."""

    def __init__(self, load: Callable[[int], Any]) -> None:
        self._load = load

    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int) -> Any:
        self._load(index)
        return torch.zeros(100), index


class Stream(IterableDataset[Any]):
    """A stream of a hundred items."""

    def __iter__(self) -> Iterator[Any]:
        for _ in range(100):
            yield torch.zeros(3)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "WATCHED_S", 0.4)  # the real time, only less of it


def examined(load: Callable[[int], Any]) -> ItemsExamined:
    found = examine_items(DataLoader(Items(load), batch_size=64))
    assert found is not None
    return found


def by_python(_: int) -> None:
    total = 0
    for number in range(20_000):
        total = (total * 31 + number) % 1009


def test_items_that_compute_are_told_from_those_that_wait_with_their_line(tmp_path: Path) -> None:
    packed = zlib.compress(b"x" * (1 << 24))
    for number in range(30):
        (tmp_path / str(number)).write_bytes(b"x" * 100)

    def read(_: int) -> None:
        for number in range(30):
            (tmp_path / str(number)).read_bytes()

    def waits(_: int) -> None:
        threading.Event().wait(0.003)

    for load, computes, opens in (
        (by_python, True, 0),
        (lambda _: zlib.decompress(packed), True, 0),
        (lambda _: time.sleep(0.003), False, 0),
        (waits, False, 0),
        (read, True, 30),
    ):
        found = examined(load)
        assert (found.computing_share > 0.5) is computes, load
        assert found.where.startswith("test_items.py:"), load
        assert found.opens == pytest.approx(opens), load
        if load is not read:  # its time is spent in several lines of pathlib, by turns
            assert found.within.startswith("threading.py:") is (load is waits), load


def test_a_stream_and_a_sampler_of_lists_are_loaded_as_their_loader_does() -> None:
    streamed = examine_items(DataLoader(Stream(), batch_size=8))
    assert streamed is not None
    assert streamed.items > 100, "it begins anew"
    asked: list[Any] = []

    class Whole(Items):
        def __getitem__(self, index: Any) -> Any:
            asked.append(index)
            return torch.zeros(len(index))

    batches = BatchSampler(SequentialSampler(range(40)), 4, drop_last=False)
    assert examine_items(DataLoader(Whole(by_python), sampler=batches, batch_size=None))
    assert asked[0] == [0, 1, 2, 3]


def test_data_that_end_at_once_or_raise_are_no_reading() -> None:
    def fails(_: int) -> None:
        raise RuntimeError("once only")

    once = iter([[0, 1], [2, 3]])
    assert examine_items(DataLoader(Items(by_python), batch_sampler=once)) is None
    assert examine_items(DataLoader(Items(fails), batch_size=8)) is None
