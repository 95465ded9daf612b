"""Each rank's share of the data, with the ranks of one process and a store in memory."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.utils.data import DistributedSampler, TensorDataset

from autotune.inside.ranks.data_sharding import ShardedSampler
from autotune.inside.ranks.exchange import SignedStore
from autotune.inside.ranks.group import Group


def ranks(count: int) -> list[Group]:
    store = SignedStore(HashStore(), "the run's key")
    return [Group(rank, rank, count, count, store) for rank in range(count)]


class Shuffled:
    """A sampler of another order on each rank and in each epoch, as unseeded ones are."""

    def __init__(self, length: int, start: int) -> None:
        self.length, self.start = length, start

    def __iter__(self) -> Iterator[int]:
        self.start += 1
        return ((7 * i + self.start) % self.length for i in range(self.length))

    def __len__(self) -> int:
        return self.length


def test_the_first_ranks_order_is_shared_out_as_by_distributed_sampler() -> None:
    for length, count, drop_last in product((1, 3, 20, 100), (1, 2, 3), (False, True)):
        samplers = [
            ShardedSampler(Shuffled(length, 5 * group.rank), group, "test", drop_last=drop_last)
            for group in ranks(count)
        ]
        data = TensorDataset(torch.zeros(length))
        for epoch in (1, 2):
            order = [(7 * i + epoch) % length for i in range(length)]
            found = [list(sampler) for sampler in samplers]
            for rank, sampler in enumerate(samplers):
                theirs: DistributedSampler[Any] = DistributedSampler(
                    data, count, rank, shuffle=False, drop_last=drop_last
                )
                expected = [order[i] for i in theirs]
                if drop_last and length < count:
                    expected = []  # torch's own fills up here
                assert found[rank] == expected, (length, count, drop_last)
                assert len(sampler) == len(expected)


def test_a_long_order_is_sent_in_parts_and_taken_away_when_it_was_read() -> None:
    store = HashStore()
    groups = [Group(rank, rank, 2, 2, SignedStore(store, "key")) for rank in range(2)]
    samplers = [ShardedSampler(range(50_000), g, "long", drop_last=False) for g in groups]
    first, second = (list(sampler) for sampler in samplers)
    batches: list[list[int]] = [[0, 1], [2], [3, 4, 5], [6]]
    found = [list(ShardedSampler(batches, g, "b", drop_last=False)) for g in ranks(2)]
    assert found == [[[0, 1], [3, 4, 5]], [[2], [6]]], "those of a batch sampler are left whole"
    assert first == list(range(0, 50_000, 2))
    assert second == list(range(1, 50_000, 2))
    assert store.num_keys() <= 1
