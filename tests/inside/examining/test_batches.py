"""Padding and shapes of batches: each kind of fault planted, and the same batches without it."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from autotune.inside.examining.batches import MOST_BATCHES, look_at_batches
from autotune.measurement.examination import Batches

ROWS, WIDTH = 8, 40
SHARE = 0.4  # of padding that is planted
Make = Callable[[torch.Tensor], Any]


class Delivered:
    """A feed of made batches; an epoch has as many as a look takes."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches, self.present = batches, self
        self.number = 0

    def take(self) -> tuple[Any, int]:
        self.number += 1
        return next(self._batches), ROWS


def looked(make: Make, lengths: Callable[[], torch.Tensor]) -> Batches:
    torch.manual_seed(0)
    feed: Any = Delivered(make(lengths()) for _ in iter(int, 1))
    return look_at_batches(feed, 60.0)


def uneven() -> torch.Tensor:
    """Lengths of 8 to 40 in any order, 24 in the mean: 40 % of a batch is padding."""
    lengths = 8 + torch.randperm(33)[: ROWS - 2]
    return torch.cat([lengths, torch.tensor([WIDTH, 8])])


def even() -> torch.Tensor:
    return torch.full((ROWS,), WIDTH)


def ids(lengths: torch.Tensor, fill: int = 0) -> torch.Tensor:
    found = torch.randint(2, 1000, (ROWS, WIDTH))
    return torch.where(kept(lengths), found, fill)


def kept(lengths: torch.Tensor) -> torch.Tensor:
    return torch.arange(WIDTH) < lengths[:, None]


WAYS: dict[str, Make] = {
    "ids": lambda n: (ids(n), torch.randint(2, (ROWS,))),
    "labels of -100": lambda n: (torch.randn(ROWS, 3), ids(n, -100)),
    "attention_mask": lambda n: UserDict(input_ids=ids(n), attention_mask=kept(n).long()),
    "a mask without a name": lambda n: [torch.randn(ROWS, WIDTH, 4), kept(n).int()],
    "padding on the left": lambda n: {"x": torch.rand(ROWS, 9), "mask": kept(n).flip(1).float()},
    "True where nothing is": lambda n: {"ids": ids(n), "pad": ~kept(n)},
}


@pytest.mark.parametrize("way", WAYS)
def test_padding_is_known_within_two_points_and_its_twin_has_none(way: str) -> None:
    padding = looked(WAYS[way], uneven).padding
    assert padding is not None
    assert padding.share == pytest.approx(SHARE, abs=0.02)
    assert padding.sorted_share == pytest.approx(1 - SHARE, abs=0.03), "hardly any if sorted"
    assert padding.largest_share == 1.0, "the longest ones are as long as before"
    twin = looked(WAYS[way], even).padding
    assert twin is None or twin.share == 0.0


def test_the_mask_counts_more_than_other_matrices_and_says_where_it_was_seen() -> None:
    both = looked(lambda n: {"input_ids": ids(n), "attention_mask": kept(even()).long()}, uneven)
    assert both.padding is not None
    assert (both.padding.seen_in, both.padding.share) == ("attention_mask", 0.0)
    seen = looked(WAYS["labels of -100"], uneven).padding
    assert seen is not None
    assert seen.seen_in == "integers that end in -100"


def test_texts_filled_up_to_a_fixed_length_would_need_less_memory_in_batches_of_their_own() -> None:
    wide = looked(lambda n: {"mask": torch.cat([kept(n), kept(n) & False], 1).long()}, uneven)
    assert wide.padding is not None
    assert wide.padding.share == pytest.approx(1 - (1 - SHARE) / 2, abs=0.02)
    assert wide.padding.largest_share == 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda _: torch.randint(3, (ROWS, WIDTH)),  # its zeros stand anywhere
        lambda _: torch.nn.functional.one_hot(torch.randint(WIDTH, (ROWS,)), WIDTH),
        lambda n: (torch.rand(ROWS, 3, 9, 9), kept(n).long()),  # labels of ordered classes
        lambda _: torch.cat([torch.randint(2, 99, (ROWS, 20)), torch.zeros(ROWS, 9).long()], 1),
        lambda n: ids(n)[:, :4],  # too narrow
        lambda n: ids(n).float(),
        lambda _: torch.zeros(ROWS, WIDTH).long(),
        lambda _: [],
    ],
)
def test_what_only_resembles_padding_is_none(make: Make) -> None:
    assert looked(make, uneven).padding is None


def test_sparse_nested_and_empty_tensors_hide_no_other() -> None:
    ragged = torch.nested.nested_tensor([torch.rand(3), torch.rand(4)], layout=torch.jagged)
    others = [torch.eye(9).long().to_sparse(), ragged, torch.ones(ROWS, 9, device="meta").long()]
    found = looked(lambda n: {"ids": ids(n), "others": others}, uneven)
    assert found.padding is not None
    assert (found.padding.seen_in, found.shapes) == ("ids", 1)


def test_shapes_are_counted_and_the_last_batch_of_an_epoch_is_none_of_them() -> None:
    sizes = iter(range(1000))
    varied = looked(lambda _: torch.zeros(ROWS, 3, 64 + next(sizes) % 30), even)
    assert (varied.count, varied.shapes) == (MOST_BATCHES, 30)
    feed: Any = Delivered(torch.zeros(3 if n % 5 == 4 else ROWS, 2) for n in range(1000))
    take = feed.take

    def started_over() -> tuple[Any, int]:
        taken: tuple[Any, int] = take()
        feed.number = (feed.number - 1) % 5 + 1
        return taken

    feed.take = started_over
    assert look_at_batches(feed, 60.0).shapes == 1
