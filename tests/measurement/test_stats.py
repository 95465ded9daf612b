"""The arithmetic of claims: intervals enclose a known truth, and noise alone claims nothing."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest

from autotune.measurement.block import Block
from autotune.measurement.interference import Interference
from autotune.measurement.interval import Interval
from autotune.measurement.stats import (
    autocorrelation,
    is_steady,
    relative_half_width,
    spread,
    student_t,
    t_quantile,
    widen_for_disturbance,
)
from autotune.measurement.throughput import EpochEdge, throughput

RATE = 2000.0  # samples/s between two starts of the loader
BLOCK_SAMPLES = 200
TOLERANCE = 0.05


def noisy_blocks(count: int, *, noise: float, seed: int = 0) -> list[Block]:
    """Blocks of RATE samples/s whose duration carries log-normal noise."""
    rng = random.Random(seed)
    return [plain_block(math.exp(rng.gauss(0, noise))) for _ in range(count)]


def plain_block(slowness: float = 1.0) -> Block:
    return Block(BLOCK_SAMPLES, 4, BLOCK_SAMPLES / RATE * slowness, 0.01)


def edge_block(edge_s: float, edges: int = 1) -> Block:
    return Block(BLOCK_SAMPLES, 4, BLOCK_SAMPLES / RATE + edges * edge_s, 0.01, epoch_edges=edges)


# --- throughput -----------------------------------------------------------------------------------


def test_a_throughput_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        throughput([], None)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("count", [1, 4, 12, 40])
def test_the_interval_lies_around_the_true_rate(count: int, noise: float) -> None:
    found = throughput(noisy_blocks(count, noise=noise), None)
    assert found.edge_s is None
    assert found.interval.estimate == pytest.approx(RATE, rel=2.5 * noise + 1e-9)


def test_the_interval_of_a_window_encloses_the_true_rate_as_often_as_it_says() -> None:
    hits = 0
    windows = 400
    for seed in range(windows):
        interval = throughput(noisy_blocks(20, noise=0.03, seed=seed), None, seed=seed).interval
        hits += interval.low <= RATE <= interval.high
    assert 0.90 <= hits / windows <= 0.99


def test_more_blocks_narrow_the_interval() -> None:
    few = throughput(noisy_blocks(8, noise=0.05), None).interval
    many = throughput(noisy_blocks(128, noise=0.05), None).interval
    assert many.half_width_pct < few.half_width_pct / 2


@pytest.mark.parametrize("drained_share", [0.0, 1.0])
def test_however_disturbed_a_window_its_rate_is_above_zero(drained_share: float) -> None:
    """Comparisons take logarithms; a half-width of more than 100 % was seen in a real search."""
    blocks = [plain_block(10.0 if number % 2 else 0.1) for number in range(9)]
    found = throughput(blocks, None, drained_share=drained_share)
    assert 0 < found.interval.low < found.interval.estimate


def test_below_five_blocks_the_interval_is_their_range() -> None:
    blocks = [plain_block(slowness) for slowness in (0.9, 1.0, 1.1)]
    interval = throughput(blocks, None).interval
    assert interval.low == pytest.approx(RATE / 1.1)
    assert interval.high == pytest.approx(RATE / 0.9)


def test_the_rate_is_samples_over_time_however_unevenly_they_come() -> None:
    """Workers deliver in bursts: the median of such blocks is the speed of none of them."""
    blocks = [plain_block(slowness) for slowness in (0.5, 0.5, 2.0) * 8]
    found = throughput(blocks, None).interval
    assert found.estimate == pytest.approx(RATE)
    assert found.low < 0.9 * RATE


def test_the_same_blocks_give_the_same_interval() -> None:
    blocks = noisy_blocks(20, noise=0.05)
    assert throughput(blocks, None, seed=3) == throughput(blocks, None, seed=3)


@pytest.mark.parametrize("edge_s", [0.0, 0.05, 0.8])
def test_the_cost_of_an_epoch_edge_is_spread_over_the_samples_of_an_epoch(edge_s: float) -> None:
    epoch = 10 * BLOCK_SAMPLES
    blocks = [*[plain_block()] * 9, edge_block(edge_s)] * 3
    found = throughput(blocks, EpochEdge(start_s=123.0, samples=epoch))
    true_rate = epoch / (epoch / RATE + edge_s)
    assert found.edge_s == pytest.approx(edge_s, abs=1e-9)
    assert found.interval.estimate == pytest.approx(true_rate)
    assert found.interval.low <= true_rate * (1 + 1e-9)
    assert found.interval.high >= true_rate * (1 - 1e-9)


def test_noise_does_not_hide_the_cost_of_an_epoch_edge() -> None:
    epoch = 20 * BLOCK_SAMPLES
    edge_s = 0.5
    blocks = noisy_blocks(60, noise=0.02)
    for place in (10, 30, 50):
        blocks[place] = edge_block(edge_s)
    found = throughput(blocks, EpochEdge(start_s=0.0, samples=epoch))
    true_rate = epoch / (epoch / RATE + edge_s)
    assert found.edge_s == pytest.approx(edge_s, rel=0.02)
    assert found.interval.low <= true_rate <= found.interval.high


def test_several_starts_in_one_block_share_its_extra_time() -> None:
    blocks = [*[plain_block()] * 9, edge_block(0.2, edges=2)]
    found = throughput(blocks, EpochEdge(start_s=0.0, samples=1000))
    assert found.edge_s == pytest.approx(0.2)


def test_a_window_that_saw_no_start_uses_what_the_last_one_cost() -> None:
    found = throughput([plain_block()] * 10, EpochEdge(start_s=0.5, samples=1000))
    assert found.edge_s == pytest.approx(0.5)
    assert found.interval.estimate == pytest.approx(1000 / (1000 / RATE + 0.5))


def test_without_epochs_nothing_is_spread() -> None:
    blocks = [*[plain_block()] * 9, edge_block(0.5)]
    found = throughput(blocks, None)
    assert found.edge_s is None
    assert found.interval.estimate == pytest.approx(2000 / sum(b.seconds for b in blocks))


def test_where_most_blocks_hold_a_start_it_is_the_ordinary_case_and_counts_once() -> None:
    blocks = [edge_block(0.1)] * 9 + [plain_block()]
    found = throughput(blocks, EpochEdge(start_s=5.0, samples=BLOCK_SAMPLES))
    assert found.edge_s is None
    seconds = sum(block.seconds for block in blocks)
    assert found.interval.estimate == pytest.approx(10 * BLOCK_SAMPLES / seconds)


# --- steadiness -----------------------------------------------------------------------------------


def ramp(step: float) -> list[float]:
    return [1000 * (1 + step) ** place for place in range(6)]


@pytest.mark.parametrize("count", range(6))
def test_fewer_than_six_blocks_are_not_known_to_be_steady(count: int) -> None:
    assert not is_steady([1000.0] * count, tolerance=TOLERANCE)


@pytest.mark.parametrize(
    "rates",
    [
        [1000.0] * 6,
        [1000, 1010, 990, 1005, 995, 1000],
        ramp(0.01),
        [500, 700, 900, 1000, 1000, 1000, 1001, 1002, 1003],
    ],
    ids=["level", "small noise", "drift within the tolerance", "level after a ramp"],
)
def test_level_rates_are_steady(rates: Sequence[float]) -> None:
    assert is_steady(rates, tolerance=TOLERANCE)


@pytest.mark.parametrize(
    "rates",
    [ramp(0.05), ramp(-0.05), ramp(0.25), [1000.0] * 3 + [1200.0] * 3, [1000.0] * 5 + [500.0] * 3],
    ids=["warming up", "slowing down", "warming up fast", "a step up", "a step down"],
)
def test_a_trend_is_not_steady(rates: Sequence[float]) -> None:
    assert not is_steady(rates, tolerance=TOLERANCE)


def test_a_drift_within_the_noise_of_both_halves_is_steady() -> None:
    assert is_steady([900, 1000, 1150, 960, 1075, 1200], tolerance=TOLERANCE)


def test_noise_excuses_no_drift_beyond_three_tolerances() -> None:
    assert not is_steady([600, 1000, 1700, 700, 1200, 2000], tolerance=TOLERANCE)


# --- the quick interval between two blocks --------------------------------------------------------


@pytest.mark.parametrize("rates", [[], [1000.0], [1000.0, 1001.0]])
def test_fewer_than_three_rates_say_nothing(rates: Sequence[float]) -> None:
    assert relative_half_width(rates) == math.inf


def test_equal_rates_have_no_width() -> None:
    assert relative_half_width([1000.0] * 5) == 0


def test_the_quick_half_width_has_the_size_of_the_medians_error() -> None:
    """1.2533 sigma / sqrt(n) is the median's standard error for normal rates, times t or 1.96."""
    noise, count = 0.02, 40
    rng = random.Random(0)
    widths = [
        relative_half_width([rng.gauss(1000, 1000 * noise) for _ in range(count)])
        for _ in range(200)
    ]
    expected = t_quantile(count - 1) * 1.2533 * noise / math.sqrt(count)
    assert statistics.fmean(widths) == pytest.approx(expected, rel=0.1)


def test_the_quick_half_width_is_relative_and_ignores_an_outlier() -> None:
    rates = [990, 1000, 1010, 1005, 995, 1000, 1000.0]
    assert relative_half_width([10 * r for r in rates]) == pytest.approx(relative_half_width(rates))
    assert relative_half_width([*rates, 10.0]) < 2 * relative_half_width(rates) + 0.01


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706), (2, 4.303), (7, 2.365), (20, 2.086), (30, 2.042), (60, 2.000), (1000, 1.962)],
)
def test_students_quantiles_agree_with_the_tables(degrees: int, quantile: float) -> None:
    """NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2."""
    assert t_quantile(degrees) == pytest.approx(quantile, rel=0.005)


def test_students_quantiles_of_rare_levels_agree_with_the_tables() -> None:
    """NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2: one tail of 0.005 and 0.001."""
    for level, degrees, quantile in (
        (0.01, 1, 63.657),
        (0.01, 3, 5.841),
        (0.01, 5, 4.032),
        (0.01, 9, 3.250),
        (0.002, 2, 22.327),
        (0.002, 4, 7.173),
        (0.002, 10, 4.144),
    ):
        assert student_t(level, degrees) == pytest.approx(quantile, rel=0.002)


def test_fractional_degrees_of_freedom_are_rounded_to_the_wider_side() -> None:
    assert t_quantile(2.9) == t_quantile(2)
    assert t_quantile(0.3) == t_quantile(1)


# --- several windows ------------------------------------------------------------------------------


def test_a_spread_is_the_median_with_the_range() -> None:
    windows = [Interval(e, e - 1, e + 1) for e in (980.0, 1000.0, 1050.0)]
    assert spread(windows) == Interval(1000.0, 980.0, 1050.0)
    assert spread(windows[:1]) == windows[0]


# --- neighbours that are alike --------------------------------------------------------------------


def ar1(count: int, rho: float, seed: int) -> list[float]:
    """A stationary series of unit variance whose neighbours correlate by *rho*."""
    rng = random.Random(seed)
    series = [rng.gauss(0, 1)]
    for _ in range(count - 1):
        series.append(rho * series[-1] + math.sqrt(1 - rho**2) * rng.gauss(0, 1))
    return series


def ar1_rates(count: int, rho: float, seed: int) -> list[float]:
    return [1000 * math.exp(0.03 * x) for x in ar1(count, rho, seed)]


def mean_autocorrelation(rho: float, count: int) -> float:
    return statistics.fmean(autocorrelation(ar1_rates(count, rho, seed)) for seed in range(100))


def test_independent_rates_are_hardly_alike() -> None:
    assert mean_autocorrelation(0.0, 200) < 0.06  # negative estimates count as 0


def test_the_autocorrelation_of_a_series_is_found() -> None:
    assert mean_autocorrelation(0.6, 200) == pytest.approx(0.6, abs=0.05)


def test_an_outlier_neither_hides_nor_makes_autocorrelation() -> None:
    alike = ar1_rates(200, 0.6, seed=1)
    found = autocorrelation(alike)
    alike[100] = 20.0
    assert autocorrelation(alike) == pytest.approx(found, abs=0.05)
    assert autocorrelation([*ar1_rates(200, 0.0, seed=1), 20.0, 20.0]) < 0.15


def test_rates_that_alternate_count_as_independent() -> None:
    assert autocorrelation([1000.0, 1100.0] * 10) == 0


def test_equal_rates_are_not_alike() -> None:
    assert autocorrelation([1000.0] * 20) == 0


@pytest.mark.parametrize("count", [0, 1, 7])
def test_fewer_than_eight_rates_say_nothing_of_autocorrelation(count: int) -> None:
    assert autocorrelation([1000.0 + place for place in range(count)]) == 0


def test_a_trend_is_autocorrelation_and_bounded() -> None:
    assert autocorrelation([1000.0 + place for place in range(100)]) == pytest.approx(0.9)


def test_alike_neighbours_widen_the_quick_interval() -> None:
    """As many independent rates as n (1 - rho) / (1 + rho): half as many at rho = 1/3."""
    alike = ar1_rates(200, 0.6, seed=2)
    shuffled = random.Random(0).sample(alike, len(alike))
    assert 1.6 < relative_half_width(alike) / relative_half_width(shuffled) < 2.6


@pytest.mark.parametrize("count", [12, 30])
def test_the_interval_encloses_the_truth_where_neighbours_are_alike(count: int) -> None:
    windows = 300
    hits = 0
    for seed in range(windows):
        slowness = [math.exp(-0.03 * x) for x in ar1(count, 0.5, seed)]
        blocks = [plain_block(s) for s in slowness]
        interval = throughput(blocks, None, seed=seed).interval
        hits += interval.low <= RATE <= interval.high
    assert hits / windows >= 0.88


# --- what no resampling sees ----------------------------------------------------------------------

RATES = [1000.0 + 10 * place for place in range(11)]  # median 1,050
HALF_A_RANK = 5.0  # between the quantile of a share and the rank that so many blocks can move to


def marked_blocks(*disturbed: int) -> list[Block]:
    """Blocks of RATES, those at these places disturbed."""
    blocks = [Block(round(rate), 1, 1.0, 0.0) for rate in RATES]
    for place in disturbed:
        blocks[place] = replace(blocks[place], interference=Interference(foreign_share=0.5))
    return blocks


def test_without_disturbed_blocks_the_interval_stays() -> None:
    interval = Interval(1050.0, 1049.0, 1051.0)
    assert widen_for_disturbance(marked_blocks(), interval) == interval


def test_disturbed_blocks_widen_the_interval_to_the_quantiles_where_the_truth_may_lie() -> None:
    """With 4 of 11 disturbed, the clean ones' median lies between the quantiles 0.5 -+ 2/11."""
    widened = widen_for_disturbance(marked_blocks(0, 1, 2, 3), Interval(1050.0, 1049.0, 1051.0))
    assert widened.estimate == 1050.0
    assert widened.low == pytest.approx(1000 + 100 * (0.5 - 2 / 11), abs=HALF_A_RANK)
    assert widened.high == pytest.approx(1000 + 100 * (0.5 + 2 / 11), abs=HALF_A_RANK)


def test_where_all_blocks_are_disturbed_the_interval_is_their_range() -> None:
    widened = widen_for_disturbance(marked_blocks(*range(11)), Interval(1050.0, 1049.0, 1051.0))
    assert widened.low == pytest.approx(1000)
    assert widened.high == pytest.approx(1100)


def test_disturbed_blocks_never_narrow_an_interval() -> None:
    wide = Interval(1050.0, 500.0, 1500.0)
    assert widen_for_disturbance(marked_blocks(*range(11)), wide) == wide


@pytest.mark.parametrize("disturbed", [3, 6])
def test_the_widened_interval_holds_the_median_of_the_clean_blocks(disturbed: int) -> None:
    """Whichever blocks they were: the fastest, the slowest, or some of both."""
    point = Interval(1050.0, 1050.0, 1050.0)
    for seed in range(50):
        places = random.Random(seed).sample(range(11), disturbed)
        for chosen in (places, range(disturbed), range(11 - disturbed, 11)):
            blocks = marked_blocks(*chosen)
            clean = statistics.median(b.samples_per_s for b in blocks if not b.is_disturbed)
            widened = widen_for_disturbance(blocks, point)
            assert widened.low <= clean + HALF_A_RANK
            assert widened.high >= clean - HALF_A_RANK


def test_drained_buffers_lower_only_the_low_end() -> None:
    interval = Interval(1050.0, 1000.0, 1100.0)
    assert widen_for_disturbance(marked_blocks(), interval, drained_share=0.3) == replace(
        interval, low=700.0
    )


@pytest.mark.parametrize("edge", [None, EpochEdge(start_s=0.0, samples=1000)])
def test_a_throughput_allows_for_disturbed_blocks_and_drained_buffers(
    edge: EpochEdge | None,
) -> None:
    disturbed = throughput(marked_blocks(0, 1, 2, 3), edge).interval
    assert disturbed.low <= 1000 + 100 * (0.5 - 2 / 11) + HALF_A_RANK
    assert disturbed.high >= 1000 + 100 * (0.5 + 2 / 11) - HALF_A_RANK
    calm = throughput(marked_blocks(), edge)
    drained = throughput(marked_blocks(), edge, drained_share=0.5)
    assert drained.interval == replace(calm.interval, low=calm.interval.low / 2)
