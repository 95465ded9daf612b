"""Forecast: whether a larger batch fits into the memory, from the peaks of smaller ones.

Within one cell (configs that are alike in all that saves memory) the peak is taken for a straight
line in the batch size. It is trusted up to twice the largest batch that was seen; a batch beyond
that is not tried before one in between was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from autotune.measurement.outcome import Outcome
from autotune.program.config import Config, KnobValue
from autotune.results.record import TrialRecord

MEMORY: Final = frozenset({Outcome.OUT_OF_MEMORY, Outcome.HOST_OUT_OF_MEMORY})
# Knobs by which a batch may fit that did not fit before
SAVES_MEMORY: Final = frozenset(
    {
        "activation_checkpointing",
        "accumulation_steps",
        "precision",
        "devices",
        "fsdp_options",
    }
)
SAVES_HOST_MEMORY: Final = SAVES_MEMORY | {"workers", "prefetch_factor"}
# Left free: the longest batch and an evaluation, which a few turns may not meet, must fit as well
MARGIN: Final = 0.08
TRUSTED: Final = 2.0  # times the largest batch that was seen


class Forecast:
    """Tells whether a config is expected to fit."""

    def __init__(self, records: Sequence[TrialRecord], limit_bytes: float | None) -> None:
        self._limit_bytes = limit_bytes
        self._peaks: dict[tuple[KnobValue | None, ...], dict[int, int]] = {}
        for record in records if limit_bytes is not None else ():
            size = record.config.get("batch_size")
            if record.measurement is not None and size is not None:
                peak = record.measurement.memory.peak_bytes
                if peak is not None:
                    seen = self._peaks.setdefault(_cell(record.config), {})
                    seen[int(size)] = max(peak, seen.get(int(size), 0))

    def fits(self, config: Config) -> bool:
        """Return whether a config fits, as far as anything is known about it."""
        size, seen = config.get("batch_size"), self._peaks.get(_cell(config))
        if self._limit_bytes is None or size is None or not seen:
            return True
        smallest, largest, wanted = min(seen), max(seen), int(size)
        if wanted <= largest:
            return True
        least_free = MARGIN * self._limit_bytes
        if seen[largest] * wanted / largest <= self._limit_bytes - least_free:
            return True  # even if all of it grew with the batch
        if wanted > TRUSTED * largest:
            return False
        if smallest == largest:
            return True  # a try tells
        slope = (seen[largest] - seen[smallest]) / (largest - smallest)
        return seen[largest] + slope * (wanted - largest) <= self._limit_bytes - least_free


def _cell(config: Config) -> tuple[KnobValue | None, ...]:
    return tuple(config.get(knob) for knob in sorted(SAVES_MEMORY))
