"""Whether a larger batch fits, forecast from the peaks of smaller ones."""

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


def test_a_larger_batch_fits_by_what_smaller_ones_took() -> None:
    """If all memory grew with it, or by the line through two; a share is left free."""
    growing, half = [seen(64, 6.0), seen(128, 11.0)], [seen(64, 4.0), seen(128, 8.0)]
    for records, batch_size, limit_gib, wanted in (
        ([], 4096, 16.0, True),
        ([seen(64, 15.9, "bf16")], 4096, 16.0, True),  # other configs do not tell
        ([seen(64, 1.0)], 64 * 14, 16.0, True),
        ([seen(64, 10.0), seen(128, 11.0)], 256, 16.0, True),
        (growing, 256, 16.0, False),
        (half, 256, 16.0 / (1 - MARGIN) + 0.1, True),
        (half, 256, 16.0, False),
    ):
        assert fits(records, batch_size, limit_gib) is wanted, (records, batch_size, limit_gib)
    assert Forecast([seen(64, 15.9)], None).fits(Config({"batch_size": 4096}))
