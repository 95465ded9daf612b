"""Whether a larger batch fits, forecast from the peaks of smaller ones."""

from __future__ import annotations

from dataclasses import replace

from autotune.measurement.readings import Memory
from autotune.program.config import Config
from autotune.results.record import TrialRecord
from autotune.tuning.choosing.chooser import MARGIN, Forecast
from tests.made import make_measurement, make_record

GIB = 1 << 30


def seen(batch_size: int, peak_gib: float, precision: str = "fp32") -> TrialRecord:
    config = Config({"batch_size": batch_size, "precision": precision})
    memory = Memory(device_reserved_bytes=round(peak_gib * GIB))
    return replace(
        make_record(config, 1.0), measurement=replace(make_measurement(1000.0), memory=memory)
    )


def fits(records: list[TrialRecord], batch_size: int, limit_gib: float = 16.0) -> bool:
    config = Config({"batch_size": batch_size, "precision": "fp32"})
    return Forecast(records, limit_gib * GIB).fits(config)


def test_nothing_is_known_of_a_batch_before_another_was_seen() -> None:
    assert fits([], 4096)
    assert fits([seen(64, 15.9, "bf16")], 4096), "other configs do not tell"
    assert Forecast([seen(64, 15.9)], None).fits(Config({"batch_size": 4096}))


def test_a_batch_fits_that_would_if_all_memory_grew_with_it() -> None:
    assert fits([seen(64, 1.0)], 64 * 14)


def test_two_batches_tell_what_grows() -> None:
    mostly_constant = [seen(64, 10.0), seen(128, 11.0)]
    assert fits(mostly_constant, 256)
    growing = [seen(64, 6.0), seen(128, 11.0)]
    assert not fits(growing, 256)


def test_a_share_is_left_free_for_the_longest_batch_and_the_evaluation() -> None:
    two = [seen(64, 4.0), seen(128, 8.0)]
    assert fits(two, 256, limit_gib=16.0 / (1 - MARGIN) + 0.1)
    assert not fits(two, 256, limit_gib=16.0)
