"""Looks at what the training loader delivers: the shapes of its batches, and their padding.

Padding is known by matrices of one row a sample: a mask of ones and zeros, or integers of which
each row ends in the same value. A mask by its name, such as ``attention_mask``, counts more than
one by its values, and that more than integers: a value that also stands among others is none that
fills up.

Not covered: padding in matrices of floating-point numbers, on the left of integers without a mask,
or in the middle; batches that the program pads after loading; sparse and nested tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from autotune.inside.data.feed import Feed
from autotune.inside.data.nested import named_tensors
from autotune.measurement.examination import Batches, Padding

MOST_BATCHES = 100
LEAST_WIDTH = 8  # columns of a matrix of tokens; narrower ones hold classes, coordinates, flags
INTEGERS = {torch.int64, torch.int32}


def look_at_batches(feed: Feed, seconds: float) -> Batches:
    """Return what was seen of the batches that a feed delivers within some seconds, at least one.

    The last batch of an epoch is left out: it may be smaller than all others.
    """
    seen: list[list[tuple[str, torch.Size, _Rows | None]]] = []
    until = perf_counter() + seconds
    while not seen or (perf_counter() < until and len(seen) < MOST_BATCHES):
        batch, _ = feed.take()
        if feed.present.number == 1 and seen:
            del seen[-1]
        parts = [(name, t) for name, t in named_tensors(batch) if _is_dense(t)]
        sizes = Counter(size for _, t in parts for size in {*t.shape[1:]})
        seen.append([(name, t.shape, _rows(name, t, sizes)) for name, t in parts])
    shapes = {tuple(shape for _, shape, _ in parts) for parts in seen}
    return Batches(len(seen), len(shapes), _padding(seen))


@dataclass(frozen=True)
class _Rows:
    """What a matrix shows of the lengths of a batch's samples.

    Attributes:
        rank: How much it counts, 0 for most: a mask by name, a mask by values, integers.
        kept: For each row, the ones of a mask, or the integers before the filling ones.
        fill: The value that fills up; None of a mask, and where none was seen.
        begins: Of a mask: whether all rows begin with their ones, or are full.
        ends: Of a mask: whether all rows end with their ones, or are full.
    """

    rank: int
    width: int
    kept: tuple[int, ...]
    fill: int | None = None
    begins: bool = False
    ends: bool = False
    is_bool: bool = False


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_meta)


def _rows(name: str, tensor: torch.Tensor, sizes: Mapping[int, int]) -> _Rows | None:
    if tensor.dim() != 2 or tensor.shape[1] < LEAST_WIDTH or not tensor.shape[0]:
        return None
    is_named, is_bool = "mask" in name.lower(), tensor.dtype is torch.bool
    if not (is_named or is_bool or tensor.dtype in INTEGERS):
        return None
    ones = tensor == 1
    if bool((ones | (tensor == 0)).all()):
        left, right = ones[:, :-1], ones[:, 1:]
        begins, ends = bool((left >= right).all()), bool((left <= right).all())
        # One that is as wide as nothing else in the batch masks nothing: such are labels of ranks
        if not (begins or ends) or (not is_named and sizes[tensor.shape[1]] < 2):
            return None
        kept = tuple(ones.sum(1).tolist())
        return _Rows(int(not is_named), tensor.shape[1], kept, None, begins, ends, is_bool)
    return _filled(tensor) if tensor.dtype in INTEGERS else None


def _filled(tensor: torch.Tensor) -> _Rows | None:
    """Return the lengths of rows that end in the same value, which stands nowhere else."""
    width, last = tensor.shape[1], tensor[:, -1]
    others = (tensor != last[:, None]).flip(1)
    runs = torch.where(others.any(1), others.byte().argmax(1), width)
    longest = int(runs.argmax())
    if int(runs[longest]) < 2:
        return _Rows(2, width, (width,) * len(tensor))
    fill = int(last[longest])
    runs = torch.where(last == fill, runs, 0)
    if not torch.equal(runs, (tensor == fill).sum(1)):
        return None
    return _Rows(2, width, tuple((width - runs).tolist()), fill)


def _padding(seen: Sequence[Sequence[tuple[str, torch.Size, _Rows | None]]]) -> Padding | None:
    """Return the padding by the matrix that counts most; None if no matrix shows lengths."""
    best: tuple[int, Padding] | None = None
    for columns in zip(*seen, strict=False):
        rows = [one for _, _, one in columns if one is not None]
        if len(rows) < len(seen) or (best is not None and rows[0].rank >= best[0]):
            continue
        lengths = [*_lengths(rows)]
        if lengths:
            what = columns[0][0] or ("a mask" if rows[0].rank < 2 else "")
            fills = [one.fill for one in rows if one.fill is not None]
            what = what or f"integers that end in {fills[0]}"
            best = rows[0].rank, _padding_of([one.width for one in rows], lengths, what)
    return None if best is None else best[1]


def _lengths(rows: Sequence[_Rows]) -> Iterator[Sequence[int]]:
    """Yield the lengths of each batch's samples; nothing if the matrices show none."""
    every = [(kept, one.width) for one in rows for kept in one.kept]
    if len({one.rank for one in rows}) > 1:
        return
    if rows[0].rank == 2:
        fills = [one.fill for one in rows if one.fill is not None]
        is_one_value = len(set(fills)) == 1 and 2 * len(fills) > len(rows)  # and not by chance
        if is_one_value and len({kept for kept, _ in every}) > 1:
            yield from (one.kept for one in rows)
        return
    begins, ends = all(one.begins for one in rows), all(one.ends for one in rows)
    if not (begins or ends) or not any(kept for kept, _ in every):
        return
    # torch's own masks of padding are True where there is nothing. No sample is empty, and where
    # batches are as wide as their longest sample, one is full
    is_full = any(kept == width for kept, width in every)
    is_inverted = any(not kept for kept, _ in every)
    is_inverted |= rows[0].is_bool and not begins and not is_full
    for one in rows:
        yield tuple(one.width - kept for kept in one.kept) if is_inverted else one.kept


def _padding_of(widths: Sequence[int], lengths: Sequence[Sequence[int]], what: str) -> Padding:
    now = [width * len(rows) for width, rows in zip(widths, lengths, strict=True)]
    alike = sorted(length for rows in lengths for length in rows)
    size = max(map(len, lengths))
    parts = [alike[begin : begin + size] for begin in range(0, len(alike), size)]
    then = [max(rows) * len(rows) for rows in parts]
    share = 1 - sum(alike) / sum(now)
    return Padding(share, sum(then) / sum(now), max(then) / max(now), what)
