"""Rank notes: what communication costs and which rank is slow, as sentences for the user.

Pure functions of the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.measurement.measurement import Measurement
from autotune.program.config import Config
from autotune.program.domain import strategy_in
from autotune.results.record import TrialRecord

# Shares of a step. Imbalance below the first is not reported: that much was seen to come and go
# between equal measurements of two ranks on a 2-core machine.
WORTH_A_WORD = 0.1
MUCH = 0.3  # above, communication gets advice and waiting for data is reported


def parallel_notes(records: Sequence[TrialRecord], best: Config) -> tuple[str, ...]:
    """Return what was seen of the ranks, one sentence each.

    The sentences are about the best config if it trains on several ranks, else about the fastest
    config that does, so that users learn why it lost. Empty if no config with ranks was measured.
    """
    measured = [r for r in records if r.measurement is not None and r.measurement.ranks]
    own = [r for r in measured if r.config == best]
    fastest = sorted(measured, key=lambda r: -(r.speedup.estimate if r.speedup else 0.0))
    for record in (*own, *fastest[:1]):
        assert record.measurement is not None, "only measured records are left"
        strategy = strategy_in(record.config)
        head = f"{len(record.measurement.ranks)} ranks"
        if strategy not in {"", "own"}:
            head += f" by {strategy}"
        if record.config != best and record.speedup is not None:
            head += f" reached {record.speedup.estimate:.2f}x"
        return tuple(f"{head}: {note}" for note in _notes(record.measurement))
    return ()


def _notes(measurement: Measurement) -> Iterator[str]:
    share, imbalance = measurement.communication_share, measurement.imbalance_share
    if share is None or imbalance is None:
        yield "the share of communication could not be recorded"
        return
    mend = ""
    if share > MUCH:
        mend = "; a larger batch or accumulation_steps would send less often"
    yield f"communication is under way in {share:.0%} of a step{mend}"
    if imbalance > WORTH_A_WORD:
        yield (
            f"rank {measurement.slowest_rank} is the slowest, and the others wait {imbalance:.0%} "
            "of a step for it: its samples take longer, or something else runs on its cores"
        )
    waits = max(load.wait_s / load.step_s for load in measurement.ranks)
    if waits > MUCH:
        yield f"a rank waits for its data {waits:.0%} of a step: workers are per rank"
