"""The arithmetic behind every claim: robust centres, intervals, and comparisons.

All functions are pure; intervals are two-sided 95 % intervals.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autotune.measurement.measurement import Block, Interval

RESAMPLES = 400
STEADY_BLOCKS = 6
MAX_DRAINED = 0.95  # of a window: even one out of full buffers had a rate above 0
MIN_FOR_AUTOCORRELATION = 8
# Standard deviation of the log ratio of two equal fresh processes, beyond the noise of windows.
# Chosen: in simulations it keeps the coverage of 95 % intervals at 93 % or more when processes
# differ by up to 2 %, as much as their windows do (tests/test_stats.py).
PROCESS_SPREAD = 0.01

# The same where there is but one round, which cannot show it. Chosen: in simulations equal configs
# are called faster in at most 2.5 % where it is up to 3 % (tests/test_stats.py).
PROCESS_SPREAD_UNSEEN = 0.02

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

    Infinite below three rates. Normal theory on the median absolute deviation, with as many rates
    as independent ones would tell the same: cheap enough to run between two blocks of a running
    program.
    """
    if len(rates) < 3:
        return math.inf
    centre = statistics.median(rates)
    deviation = 1.4826 * statistics.median(abs(r - centre) for r in rates)
    rho = autocorrelation(rates)
    effective = max(3.0, len(rates) * (1 - rho) / (1 + rho))
    standard_error = 1.2533 * deviation / math.sqrt(effective)
    return t_quantile(effective - 1) * standard_error / centre


def autocorrelation(rates: Sequence[float]) -> float:
    """Return how alike neighbouring rates are: lag-1 autocorrelation, 0 to 0.9.

    Rates beyond three robust deviations count as if they lay there, so that one disturbed block
    does not decide. Below eight rates the estimate is mostly noise, and 0 is returned.
    """
    count = len(rates)
    if count < MIN_FOR_AUTOCORRELATION:
        return 0.0
    centre = statistics.median(rates)
    reach = 3 * 1.4826 * statistics.median(abs(r - centre) for r in rates)
    near = [min(max(r, centre - reach), centre + reach) for r in rates]
    mean = statistics.fmean(near)
    total = sum((r - mean) ** 2 for r in near)
    if not total:
        return 0.0
    lagged = sum((a - mean) * (b - mean) for a, b in pairwise(near))
    unbiased = lagged / total + 1 / count  # the mean is taken from the same rates
    return min(max(unbiased, 0.0), 0.9)


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


def throughput(
    blocks: Sequence[Block],
    edge: EpochEdge | None,
    *,
    drained_share: float = 0.0,
    seed: int = 0,
) -> Throughput:
    """Return end-to-end samples/s of a window.

    The centre is the median of the blocks, so a disturbed block does not move it. Starts of the
    training loader (an epoch's end: workers end and start, buffers are empty) are rare and dear, so
    a median would hide them: what a block with a start takes longer than its samples need is
    counted apart and spread over the samples of an epoch. When no block saw a start, *edge* tells
    what the last one cost; when most blocks did, they are the ordinary case and nothing is spread.

    Two things that no resampling can see widen the interval. Of disturbed blocks nobody knows how
    fast they would have been: with m of them, the median of the clean ones lies within m/2 ranks of
    the median of all. And a share of samples that came out of buffers, and
    was not produced in the window, may be missing in steady flow.

    Args:
        blocks: The window, in order of time.
        edge: What the starts of the loader cost, None without them.
        drained_share: Share of the samples that came out of buffers, 0 to 1.
        seed: Of the resampling.

    Raises:
        ValueError: when there is no block.
    """
    if not blocks:
        raise ValueError("a throughput needs at least one block")
    plain = [b for b in blocks if not b.epoch_edges]
    if edge is None or len(plain) < max(3, len(blocks) // 4):
        interval = widen_for_disturbance(
            blocks, _bootstrap(blocks, statistics.median, seed), drained_share
        )
        return Throughput(interval, None)
    pace = statistics.median(b.samples_per_s for b in plain)
    extras = [
        max(0.0, b.seconds - b.samples / pace) / b.epoch_edges for b in blocks if b.epoch_edges
    ]
    edge_s = statistics.median(extras) if extras else edge.start_s

    def with_edges(sample: Sequence[float]) -> float:
        return 1 / (1 / statistics.median(sample) + edge_s / edge.samples)

    interval = widen_for_disturbance(plain, _bootstrap(plain, with_edges, seed), drained_share)
    return Throughput(interval, edge_s)


def _bootstrap(
    blocks: Sequence[Block], centre: Callable[[Sequence[float]], float], seed: int
) -> Interval:
    """Percentile bootstrap of a centre; wide by the rates' own range below five of them.

    Runs of neighbours are drawn, so that what makes neighbours alike stays in the resamples
    (circular block bootstrap; run length for AR(1) by Carlstein, Annals of Statistics 14, 1986).
    Short windows of alike neighbours hold too few runs for that: there the normal theory of
    ``relative_half_width`` is wider, and counts.
    """
    rates = [b.samples_per_s for b in blocks]
    estimate = centre(rates)
    if len(rates) < 5:
        bounds = [centre([r]) for r in rates]
        return Interval(estimate, min(bounds), max(bounds))
    rng = random.Random(seed)
    count, run = len(rates), _run_length(rates)
    around = [*rates, *rates[: run - 1]]

    def resample() -> list[float]:
        starts = rng.choices(range(count), k=math.ceil(count / run))
        return [r for start in starts for r in around[start : start + run]][:count]

    centres = sorted(centre(resample()) for _ in range(RESAMPLES))
    cut = round(0.025 * RESAMPLES)
    half = relative_half_width(rates)
    low = min(centres[cut], estimate / (1 + half))  # a rate is above 0, however noisy
    return Interval(estimate, low, max(centres[-cut - 1], estimate * (1 + half)))


def _run_length(rates: Sequence[float]) -> int:
    rho = autocorrelation(rates)
    best: float = (2 * rho / (1 - rho**2)) ** (2 / 3) * len(rates) ** (1 / 3)
    return min(max(1, round(best)), len(rates) // 2)


def widen_for_disturbance(
    blocks: Sequence[Block], interval: Interval, drained_share: float = 0.0
) -> Interval:
    """Return an interval widened by what disturbed blocks and drained buffers may hide."""
    ranks = sum(b.is_disturbed for b in blocks) / 2  # by so many the median may have moved
    rates = sorted(b.samples_per_s for b in blocks)
    middle = statistics.median(rates)
    below = _at_rank(rates, (len(rates) - 1) / 2 - ranks) / middle
    above = _at_rank(rates, (len(rates) - 1) / 2 + ranks) / middle
    low = min(interval.low, interval.estimate * below) * (1 - min(drained_share, MAX_DRAINED))
    return Interval(interval.estimate, low, max(interval.high, interval.estimate * above))


def _at_rank(ordered: Sequence[float], place: float) -> float:
    """Linear interpolation between the two nearest of the ordered values."""
    place = min(max(place, 0.0), len(ordered) - 1.0)
    lower = math.floor(place)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (place - lower) * (ordered[upper] - ordered[lower])


def paired_ratio(rounds: Sequence[Sequence[float]]) -> Interval:
    """Return the speedup from the ratios of neighbouring windows, grouped by round.

    Student's t intervals on the logarithms, the wider of two. One takes the pairs as they are, plus
    ``PROCESS_SPREAD`` for the processes of each round, which differ in speed by themselves (memory
    layout, placement on cores). The other takes the means of whole rounds alone, with the few
    degrees of freedom that they have; of one round there is no such, so more is assumed.

    Raises:
        ValueError: with fewer than two pairs: one has no spread.
    """
    logs = [[math.log(ratio) for ratio in pairs] for pairs in rounds]
    pooled = [x for pairs in logs for x in pairs]
    if len(pooled) < 2:
        raise ValueError("a paired ratio needs at least two pairs of windows")
    centre, count = statistics.fmean(pooled), len(logs)
    process_spread = PROCESS_SPREAD if count > 1 else PROCESS_SPREAD_UNSEEN
    of_pairs = statistics.variance(pooled) / len(pooled) + process_spread**2 / count
    half = t_quantile(len(pooled) - 1) * math.sqrt(of_pairs)
    if count > 1:
        of_rounds = statistics.variance(map(statistics.fmean, logs)) / count
        half = max(half, t_quantile(count - 1) * math.sqrt(of_rounds))
    return Interval(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


def unpaired_ratio(winner: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Return the speedup from the rates of as many fresh processes of each side, run in turn.

    Student's two-sample t interval on the logarithms. Beside the paired one it has twice the
    degrees of freedom, which decides with three processes of each side. Drift that meets both sides
    alike only widens it; sides that differ three times in their spread cost it 3 % of coverage
    (tests/test_stats.py).

    Raises:
        ValueError: with fewer than two rates of a side, or not as many of each.
    """
    count = len(winner)
    if count < 2 or len(baseline) != count:
        raise ValueError("an unpaired ratio needs two rates of each side, and as many of each")
    sides = [[math.log(rate) for rate in rates] for rates in (winner, baseline)]
    centre = statistics.fmean(sides[0]) - statistics.fmean(sides[1])
    variance = (sum(map(statistics.variance, sides)) + PROCESS_SPREAD**2) / count
    half = t_quantile(2 * count - 2) * math.sqrt(variance)
    return Interval(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


def spread(windows: Sequence[Interval]) -> Interval:
    """Return the median of several windows with their range; one window keeps its own interval."""
    if len(windows) == 1:
        return windows[0]
    estimates = [w.estimate for w in windows]
    return Interval(statistics.median(estimates), min(estimates), max(estimates))
