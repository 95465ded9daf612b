"""The throughput of a window: samples over time, with an interval by resampling its blocks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.measurement.block import Block
from autotune.measurement.interval import Interval
from autotune.measurement.stats import (
    autocorrelation,
    relative_half_width,
    widen_for_disturbance,
)

RESAMPLES = 400  # the bounds of a 95 % interval are then the 11th values from both ends


@dataclass(frozen=True)
class EpochEdge:
    """What it costs to start the training loader again at the end of an epoch.

    Attributes:
        start_s: Seconds that one start took before its first batch, seen outside the blocks.
        samples: Samples between two starts.
    """

    start_s: float
    samples: int


@dataclass(frozen=True)
class Throughput:
    """The end-to-end throughput of a window.

    Attributes:
        interval: Samples per second.
        edge_s: Extra seconds per start of the training loader; None if starts are not counted
            separately.
    """

    interval: Interval
    edge_s: float | None


def throughput(
    blocks: Sequence[Block],
    edge: EpochEdge | None,
    *,
    drained_share: float = 0.0,
    seed: int = 0,
) -> Throughput:
    """Return the end-to-end samples/s of a window, with its interval.

    The centre is samples over time. A median of the blocks would be wrong for configs whose batches
    come in bursts. A start of the training loader (at the end of an epoch workers end and start
    again, with empty buffers) is rare and expensive, and few blocks hold one. Therefore the extra
    time of blocks with a start is measured separately and spread over the samples of an epoch. If
    no block saw a start, *edge* gives the cost of the last one. If most blocks saw one, starts are
    the ordinary case and nothing is spread.

    Resampling cannot see two effects, which widen the interval. First, nobody knows how fast
    disturbed blocks would have been: with m of them, the interval reaches as far as the rates that
    lie m/2 ranks from the middle one. Second, samples that were taken from prefetch buffers
    were not produced within the window, so the lower bound is reduced by their share.

    Args:
        blocks: The window, in order of time.
        edge: What the starts of the loader cost; None if the loader never starts again.
        drained_share: Share of the samples that came out of buffers, 0 to 1.
        seed: Seed of the resampling.

    Raises:
        ValueError: There is no block.
    """
    if not blocks:
        raise ValueError("a throughput needs at least one block")
    plain = [b for b in blocks if not b.epoch_edges]
    if edge is None or len(plain) < max(3, len(blocks) // 4):
        return Throughput(
            widen_for_disturbance(blocks, _bootstrap(blocks, 0.0, seed), drained_share), None
        )
    pace = sum(b.samples for b in plain) / sum(b.seconds for b in plain)
    extras = [
        max(0.0, b.seconds - b.samples / pace) / b.epoch_edges for b in blocks if b.epoch_edges
    ]
    edge_s = statistics.median(extras) if extras else edge.start_s
    resampled = _bootstrap(plain, edge_s / edge.samples, seed)
    return Throughput(widen_for_disturbance(plain, resampled, drained_share), edge_s)


def _bootstrap(blocks: Sequence[Block], extra_s: float, seed: int) -> Interval:
    """Return samples over time with the percentile bootstrap interval; the range below five blocks.

    Runs of neighbouring blocks are drawn, so that resamples keep the autocorrelation (circular
    block bootstrap; run length for AR(1) by Carlstein, Annals of Statistics 14, 1986). A short
    window with strong autocorrelation holds too few runs for that. The interval is therefore at
    least as wide as the normal theory of ``relative_half_width``.

    Args:
        blocks: What is resampled.
        extra_s: Seconds that each sample takes besides those of the blocks.
        seed: The same seed gives the same interval for the same blocks.
    """
    samples = np.array([b.samples for b in blocks], float)
    seconds = np.array([b.seconds for b in blocks]) + extra_s * samples
    estimate, rates = float(samples.sum() / seconds.sum()), samples / seconds
    count = len(rates)
    if count < 5:
        return Interval(estimate, min(estimate, *rates.tolist()), max(estimate, *rates.tolist()))
    run = _run_length(rates.tolist())
    starts = np.random.default_rng(seed).integers(
        count, size=(RESAMPLES, math.ceil(count / run), 1)
    )
    # A run may go on at the beginning: circular
    drawn = ((starts + np.arange(run)) % count).reshape(RESAMPLES, -1)[:, :count]
    centres = np.sort(samples[drawn].sum(axis=1) / seconds[drawn].sum(axis=1))
    cut = round(0.025 * RESAMPLES)
    half = relative_half_width(rates.tolist())
    low = min(float(centres[cut]), estimate / (1 + half))  # a rate is above 0, however noisy
    return Interval(estimate, low, max(float(centres[-cut - 1]), estimate * (1 + half)))


def _run_length(rates: Sequence[float]) -> int:
    rho = autocorrelation(rates)
    best: float = (2 * rho / (1 - rho**2)) ** (2 / 3) * len(rates) ** (1 / 3)
    return min(max(1, round(best)), len(rates) // 2)
