"""The arithmetic behind every claim: robust centres, intervals, and comparisons.

All functions are pure; intervals are two-sided 95 % intervals.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.measurement import Block, Interval

RESAMPLES = 400
STEADY_BLOCKS = 6
# Standard deviation of the log ratio of two equal fresh processes, beyond the noise of windows.
# Chosen: in simulations it keeps the coverage of 95 % intervals at 93 % or more when processes
# differ by up to 2 %, as much as their windows do (tests/test_stats.py).
PROCESS_SPREAD = 0.01

# Two-sided 95 % quantiles of Student's t by degrees of freedom
# (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2)
T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
T_975_NORMAL = 1.960


@dataclass(frozen=True)
class EpochEdge:
    """What the starts of the training loader cost.

    Attributes:
        start_s: Seconds that one start took before its first batch, seen outside the blocks.
        samples: Samples between two starts.
    """

    start_s: float
    samples: int


@dataclass(frozen=True)
class Throughput:
    """Samples per second with its interval, and the cost of one epoch edge if it has one."""

    interval: Interval
    edge_s: float | None


def t_quantile(degrees_of_freedom: float) -> float:
    """Return the two-sided 95 % quantile of Student's t; fractions are rounded down."""
    row = max(1, math.floor(degrees_of_freedom))
    return T_975[row - 1] if row <= len(T_975) else T_975_NORMAL * (1 + 1.2 / row)


def relative_half_width(rates: Sequence[float]) -> float:
    """Return a quick estimate of the half-width of the median's interval, relative to the median.

    Infinite below three rates. Normal theory on the median absolute deviation: cheap enough to run
    between two blocks of a running program.
    """
    if len(rates) < 3:
        return math.inf
    centre = statistics.median(rates)
    deviation = 1.4826 * statistics.median(abs(r - centre) for r in rates)
    standard_error = 1.2533 * deviation / math.sqrt(len(rates))
    return t_quantile(len(rates) - 1) * standard_error / centre


def is_steady(rates: Sequence[float], *, tolerance: float) -> bool:
    """Tell whether the later half of the last ``STEADY_BLOCKS`` rates lies level with the earlier.

    Level means: the medians differ by less than *tolerance* or by less than the noise in both.
    """
    if len(rates) < STEADY_BLOCKS:
        return False
    half = STEADY_BLOCKS // 2
    before, after = rates[-STEADY_BLOCKS:-half], rates[-half:]
    drift = abs(statistics.median(after) / statistics.median(before) - 1)
    noise = max(max(part) / min(part) - 1 for part in (before, after)) / 2
    return drift < max(tolerance, min(noise, 3 * tolerance))


def throughput(blocks: Sequence[Block], edge: EpochEdge | None, *, seed: int = 0) -> Throughput:
    """Return end-to-end samples/s of a window.

    The centre is the median of the blocks, so a disturbed block does not move it. Starts of the
    training loader (an epoch's end: workers end and start, buffers are empty) are rare and dear, so
    a median would hide them: what a block with a start takes longer than its samples need is
    counted apart and spread over the samples of an epoch. When no block saw a start, *edge* tells
    what the last one cost; when most blocks did, they are the ordinary case and nothing is spread.

    Raises:
        ValueError: when there is no block.
    """
    if not blocks:
        raise ValueError("a throughput needs at least one block")
    plain = [b for b in blocks if not b.epoch_edges]
    if edge is None or len(plain) < max(3, len(blocks) // 4):
        rates = [b.samples_per_s for b in blocks]
        return Throughput(_bootstrap(rates, statistics.median, seed), None)
    rates = [b.samples_per_s for b in plain]
    pace = statistics.median(rates)
    extras = [
        max(0.0, b.seconds - b.samples / pace) / b.epoch_edges for b in blocks if b.epoch_edges
    ]
    edge_s = statistics.median(extras) if extras else edge.start_s

    def with_edges(sample: Sequence[float]) -> float:
        return 1 / (1 / statistics.median(sample) + edge_s / edge.samples)

    return Throughput(_bootstrap(rates, with_edges, seed), edge_s)


def _bootstrap(
    rates: Sequence[float], centre: Callable[[Sequence[float]], float], seed: int
) -> Interval:
    """Percentile bootstrap of a centre; wide by the rates' own range below five of them."""
    estimate = centre(rates)
    if len(rates) < 5:
        bounds = [centre([r]) for r in rates]
        return Interval(estimate, min(bounds), max(bounds))
    rng = random.Random(seed)
    centres = sorted(centre(rng.choices(rates, k=len(rates))) for _ in range(RESAMPLES))
    cut = round(0.025 * RESAMPLES)
    return Interval(estimate, min(centres[cut], estimate), max(centres[-cut - 1], estimate))


def live_ratio(candidate: Interval, reference: Interval) -> Interval:
    """Return candidate over reference, both measured near in time, by error propagation in logs."""
    log_ratio = math.log(candidate.estimate / reference.estimate)
    below = math.hypot(
        math.log(candidate.estimate / candidate.low), math.log(reference.high / reference.estimate)
    )
    above = math.hypot(
        math.log(candidate.high / candidate.estimate), math.log(reference.estimate / reference.low)
    )
    return Interval(math.exp(log_ratio), math.exp(log_ratio - below), math.exp(log_ratio + above))


def paired_ratio(rounds: Sequence[Sequence[float]]) -> Interval:
    """Return the speedup from the ratios of neighbouring windows, grouped by round.

    Student's t intervals on the logarithms, the wider of two. One takes the pairs as they are, plus
    ``PROCESS_SPREAD`` for the processes of each round, which differ in speed by themselves (memory
    layout, placement on cores). The other takes the means of whole rounds alone, with the few
    degrees of freedom that they have.

    Raises:
        ValueError: with fewer than two pairs: one has no spread.
    """
    logs = [[math.log(ratio) for ratio in pairs] for pairs in rounds]
    pooled = [x for pairs in logs for x in pairs]
    if len(pooled) < 2:
        raise ValueError("a paired ratio needs at least two pairs of windows")
    centre, count = statistics.fmean(pooled), len(logs)
    of_pairs = statistics.variance(pooled) / len(pooled) + PROCESS_SPREAD**2 / count
    half = t_quantile(len(pooled) - 1) * math.sqrt(of_pairs)
    if count > 1:
        of_rounds = statistics.variance(map(statistics.fmean, logs)) / count
        half = max(half, t_quantile(count - 1) * math.sqrt(of_rounds))
    return Interval(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


def spread(windows: Sequence[Interval]) -> Interval:
    """Return the median of several windows with their range; one window keeps its own interval."""
    if len(windows) == 1:
        return windows[0]
    estimates = [w.estimate for w in windows]
    return Interval(statistics.median(estimates), min(estimates), max(estimates))
