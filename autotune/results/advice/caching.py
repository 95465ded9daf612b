"""What it gives to keep loaded items in memory."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.measurement.examination import Cost
from autotune.results.advice.base import MIN_GAIN, MIN_WAIT, Advice, Gain, Readings, size

MOST_OF_MEMORY = 0.5  # tf.data's autotuner gives its buffers half of the memory that is free
MIN_LOADING = 0.5  # of an item's time, besides waiting for something that is not data


def caching(readings: Readings) -> Iterator[Advice]:
    """Say what keeping all items in memory gives at most, where they fit into it."""
    items = readings.examination.items
    is_waiting = readings.measurement.wait_share >= MIN_WAIT and readings.data_gain >= MIN_GAIN
    if items is None or not items.len_items or not items.item_bytes or not is_waiting:
        return
    workers = max((loader.num_workers for loader in readings.profile.loaders), default=0)
    needed = items.len_items * items.item_bytes * max(1, workers)
    if (
        items.shares.get(Cost.WAITING, 0.0) > 1 - MIN_LOADING
        or needed > MOST_OF_MEMORY * readings.hardware.memory_bytes
    ):
        return
    random = " Its items are random: keep what they are before the random part."
    in_each = f", a copy in each of {workers} workers"
    keep = " Workers need persistent_workers=True to keep it between epochs."
    yield Advice(
        "cache items",
        "The items fit into memory as tensors, and loading them takes the program's time.",
        f"All {items.len_items:,} items take {size(needed)}{in_each if workers else ''}.",
        f"Keep what was loaded once.{random if items.is_random else ''}{keep if workers else ''}",
        where=items.where,
        gain=Gain(readings.data_gain, "as if all data were always ready"),
    )
