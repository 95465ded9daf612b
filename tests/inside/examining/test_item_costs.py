"""Where the time of an item goes, on items that spend it in a known way."""

from __future__ import annotations

import os
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
)

from autotune.inside.examining import item_costs
from autotune.inside.examining.item_costs import examine_items
from autotune.inside.examining.thread_sampler import waits_for
from autotune.measurement.examination import Cost, ItemsExamined
from autotune.results.advice.input_bound import are_many_small, cause


class Items(Dataset[Any]):
    """Items that are loaded by a function."""

    def __init__(self, load: Any) -> None:
        self._load = load

    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int) -> Any:
        self._load(index)
        return torch.zeros(100), index


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_costs, "SAMPLED_S", 0.4)  # the real time, only less of it
    monkeypatch.setattr(item_costs, "PROFILED_S", 0.1)


def examined(load: Any) -> ItemsExamined:
    found = examine_items(DataLoader(Items(load), batch_size=8))
    assert found is not None
    assert sum(found.shares.values()) == pytest.approx(1.0)
    return found


def by_python(_: int) -> None:
    total = 0
    for number in range(20_000):
        total = (total * 31 + number) % 1009


def test_python_code_is_told_with_its_line() -> None:
    found = examined(by_python)
    assert cause(found) is Cost.PYTHON
    assert found.where.startswith("test_item_costs.py:")
    assert found.item_bytes == 404 + 4, "a row of floats, and an index that collating makes int64"


def test_native_code_is_told() -> None:
    packed = zlib.compress(os.urandom(1 << 16) * 16)
    shares = examined(lambda _: zlib.decompress(packed)).shares
    # Of what it computes: on a machine that others use, it also waits for a core
    computed = {cost: shares[cost] for cost in (Cost.PYTHON, Cost.NATIVE, Cost.FILES)}
    assert max(computed, key=lambda cost: computed[cost]) is Cost.NATIVE


def test_sleeping_is_told() -> None:
    assert cause(examined(lambda _: time.sleep(0.003))) is Cost.WAITING


def test_many_small_files_are_told(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / str(number)).write_bytes(b"x" * 100)

    def load(_: int) -> None:
        for number in range(30):
            (tmp_path / str(number)).read_bytes()

    found = examined(load)
    assert cause(found) is Cost.FILES
    assert found.opens == pytest.approx(30)


def test_one_file_of_the_same_size_is_not_many(tmp_path: Path) -> None:
    (tmp_path / "all").write_bytes(b"x" * 3000)
    found = examined(lambda _: (tmp_path / "all").read_bytes())
    assert found.opens == pytest.approx(1)
    assert not are_many_small(found)


@pytest.fixture
def server() -> Iterator[tuple[str, int]]:
    """A server on this machine that answers late, as a distant one does."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listening.accept()
        with client:
            while client.recv(1):
                time.sleep(0.003)
                client.sendall(b"x")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listening.getsockname()
    listening.close()
    thread.join(5)


def test_a_network_is_told(server: tuple[str, int]) -> None:
    with socket.create_connection(server) as client:

        def load(_: int) -> None:
            client.sendall(b"?")
            client.recv(1)

        assert cause(examined(load)) is Cost.NETWORK


def test_random_items_are_noticed() -> None:
    class Noisy(Items):
        def __getitem__(self, index: int) -> Any:
            return torch.randn(3), index

    noisy = examine_items(DataLoader(Noisy(lambda _: None), batch_size=8))
    assert noisy is not None
    assert noisy.is_random
    assert examined(lambda _: None).is_random is False


def test_a_stream_is_examined_too() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for index in range(100):
                by_python(index)
                yield torch.zeros(3)

    found = examine_items(DataLoader(Stream(), batch_size=8))
    assert found is not None
    assert cause(found) is Cost.PYTHON
    assert found.len_items is None


def test_data_that_do_not_start_over_are_no_reading() -> None:
    once = iter([[0, 1], [2, 3]])
    loader = DataLoader(Items(by_python), batch_sampler=once)
    assert examine_items(loader) is None


def test_a_sampler_of_lists_is_passed_on_as_it_is() -> None:
    asked: list[Any] = []

    class Whole(Items):
        def __getitem__(self, index: Any) -> Any:
            asked.append(index)
            return torch.zeros(len(index))

    batches = BatchSampler(SequentialSampler(range(40)), 4, drop_last=False)
    loader = DataLoader(Whole(lambda _: None), sampler=batches, batch_size=None)
    assert examine_items(loader) is not None
    assert asked[0] == [0, 1, 2, 3]


def test_a_large_file_is_not_read_as_a_whole_again(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 34)  # it would take seconds

    def load(_: int) -> None:
        with (tmp_path / "large").open("rb") as file:
            file.read(64)
            by_python(0)

    assert cause(examined(load)) is Cost.PYTHON


def test_items_that_raise_are_no_reading() -> None:
    def fails(_: int) -> None:
        raise RuntimeError("once only")

    assert examine_items(DataLoader(Items(fails), batch_size=8)) is None


def test_a_pipe_is_another_process_and_a_file_is_a_disk(tmp_path: Path) -> None:
    read, write = os.pipe()
    number = {"x86_64": 0, "aarch64": 63}[os.uname().machine]  # read(2)
    try:
        assert waits_for(f"{number} {read:#x} 0x0") is Cost.WAITING
    finally:
        os.close(read)
        os.close(write)
    with (tmp_path / "data").open("wb") as file:
        assert waits_for(f"{number} {file.fileno():#x} 0x0") is Cost.DISK
    assert waits_for("-1 0x7f00 0x7f01") is Cost.DISK, "a page of a mapped file"
    assert waits_for("") is Cost.WAITING, "this system does not tell"
