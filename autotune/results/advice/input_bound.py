"""The program waits for its data, and what loading them takes."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.measurement.examination import Cost, ItemsExamined
from autotune.results.advice.base import MIN_GAIN, MIN_WAIT, Advice, Gain, Readings, ms, size

# Many small files: more than a sample with its label and metadata needs, and so small that opening
# costs more than reading (a disk of 500 MB/s reads 64 KiB in 0.13 ms, about as long as an open)
MIN_OPENS, SMALL_BYTES = 4.0, 64 * 1024
MIN_SHARE = 0.25  # of an item's time, for a cause that is told although another one is larger

MENDS = {
    Cost.PYTHON: "Let more workers load in parallel; replace loops over elements, if any, by "
    "operations on whole arrays.",
    Cost.NATIVE: "Let more workers load in parallel; decode and resize once, before the training, "
    "and store the result.",
    Cost.FILES: "Pack many small files into few large ones (tar shards, HDF5, LMDB, Parquet), keep "
    "them open, and read no more of a large one than is used.",
    Cost.DISK: "Let more workers wait at the same time, or copy the data to a faster disk or into "
    "memory (/dev/shm) first.",
    Cost.NETWORK: "Copy the data to a local disk first; if that is impossible, let more workers "
    "wait at the same time.",
    Cost.WAITING: "Find out what the items wait for at this line; more workers can wait at the "
    "same time.",
}
NAMES = {
    Cost.PYTHON: "python",
    Cost.NATIVE: "native",
    Cost.FILES: "files",
    Cost.DISK: "disk",
    Cost.NETWORK: "network",
    Cost.WAITING: "waiting",
}
PROBLEMS = {
    Cost.PYTHON: "its items are computed by Python code",
    Cost.NATIVE: "its items are computed by native code, such as decoding or resizing",
    Cost.FILES: "its items are read from files, whose number or size takes the time",
    Cost.DISK: "its items come from a disk that is too slow",
    Cost.NETWORK: "its items come over a network",
    Cost.WAITING: "its items sleep, or wait for a lock or another process",
}

SMALL = "its items are spread over many small files"


def input_bound(readings: Readings) -> Iterator[Advice]:
    """Say that the program waits for data, and why."""
    wait = readings.measurement.wait_share
    if not readings.profile.loaders or wait < MIN_WAIT:
        return
    items = readings.examination.items
    gain = _gain(readings)
    if gain is not None and gain.most < MIN_GAIN:
        return
    waits = f"It waits for data {wait:.0%} of the time"
    if items is None:
        yield Advice(
            "input-bound",
            "The program waits for its data.",
            f"{waits}. Its items were not loaded one by one, so the cause is not known.",
            "autotune search finds the best number of workers.",
            gain=gain,
        )
        return
    cost = cause(items)
    is_small = are_many_small(items)
    yield Advice(
        "input-bound: small files" if is_small else f"input-bound: {NAMES[cost]}",
        f"The program waits for its data: {SMALL if is_small else PROBLEMS[cost]}.",
        f"{waits}; {_items(items, cost)}.",
        MENDS[cost],
        where=_where(items),
        gain=gain,
    )


def cause(items: ItemsExamined) -> Cost:
    """Return the root cause of slow items.

    The largest share is not always the cause: a disk that is asked for many small files is slow
    because of their number, and both file access and waiting show it.
    """
    if are_many_small(items):
        return Cost.FILES
    largest = max(items.shares, key=lambda cost: items.shares[cost])
    if largest is Cost.FILES and items.shares.get(Cost.DISK, 0.0) > MIN_SHARE:
        return Cost.DISK
    return largest


def are_many_small(items: ItemsExamined) -> bool:
    """Return whether opening many small files takes a good part of an item's time."""
    access = items.shares.get(Cost.FILES, 0.0) + items.shares.get(Cost.DISK, 0.0)
    are_small = items.opens >= MIN_OPENS and items.bytes_per_open < SMALL_BYTES
    return are_small and access >= MIN_SHARE


def _items(items: ItemsExamined, cost: Cost) -> str:
    parts = [f"{share:.0%} {kind}" for kind, share in _told(items)]
    text = f"an item takes {ms(items.item_s)}: {', '.join(parts)}"
    if cost is Cost.FILES and items.opens:
        text += f"; it opens {items.opens:,.3g} files of {size(items.bytes_per_open)}"
    if cost is Cost.DISK and items.disk_bytes:
        text += f"; {size(items.disk_bytes)} of it come from the disk"
    return text


def _told(items: ItemsExamined) -> list[tuple[Cost, float]]:
    found = sorted(items.shares.items(), key=lambda pair: -pair[1])
    return [(kind, share) for kind, share in found if share >= 0.05]


def _where(items: ItemsExamined) -> str:
    if items.where and items.within:
        return f"{items.where} (in {items.within})"
    return items.where or (items.within and f"{items.within}, in a library")


def _gain(readings: Readings) -> Gain | None:
    if readings.breakdown.synthetic_data_throughput is None:
        return None
    return Gain(readings.data_gain, "measured on one batch again and again")
