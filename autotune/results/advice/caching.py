"""What it gives to keep loaded items in memory."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.results.advice.base import MIN_GAIN, MIN_WAIT, Advice, Gain, Readings, size

MOST_OF_MEMORY = 0.5  # tf.data's autotuner gives its buffers half of what is free, too


def caching(readings: Readings) -> Iterator[Advice]:
    """Say what keeping all items in memory gives at most, where they fit into it."""
    items = readings.examination.items
    is_waiting = readings.measurement.wait_share >= MIN_WAIT and readings.data_gain >= MIN_GAIN
    if items is None or not items.len_items or not items.item_bytes or not is_waiting:
        return
    needed = items.len_items * items.item_bytes
    if needed > MOST_OF_MEMORY * readings.hardware.memory_bytes:
        return
    random = " Its items are random: keep what they are before the random part."
    yield Advice(
        "cache items",
        "The items fit into memory, and the program loads them again in each epoch.",
        f"All {items.len_items:,} items take {size(needed)} as tensors.",
        f"Keep items that were loaded once.{random if items.is_random else ''}",
        where=items.where,
        gain=Gain(readings.data_gain, "as if all data were always ready"),
    )
