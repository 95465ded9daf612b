from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from autotune.inside import meter as meters
from autotune.inside.meter import Flow, Instruments, Meter
from autotune.measurement import Measurement, Memory
from autotune.wire import WindowPlan

PLAN = WindowPlan(warmup_min_s=1.0, warmup_max_s=30.0, window_min_s=1.0, window_max_s=5.0)


class Clock:
    """Time that only passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    # The meter times a running program by perf_counter; a test of its arithmetic needs exact times.
    monkeypatch.setattr(meters, "perf_counter", clock)
    return clock


def make_meter(plan: WindowPlan = PLAN, flow: Flow | None = None) -> Meter:
    return Meter(plan, Instruments(lambda: flow or Flow(), lambda: None, lambda: 0.5))


def drive(meter: Meter, clock: Clock, step_s: Iterator[float], samples: int = 10) -> Measurement:
    for seconds in step_s:
        clock.now += seconds
        meter.step(samples, wait_s=seconds / 4)
        if meter.is_done:
            return meter.measurement(Memory())
    raise AssertionError("the window should have ended")


def test_blocks_last_a_tenth_of_a_second_and_the_rate_is_exact(clock: Clock) -> None:
    result = drive(make_meter(), clock, itertools.repeat(0.004))
    assert {b.steps for b in result.blocks} == {25}
    assert result.throughput.estimate == pytest.approx(10 / 0.004)
    assert result.wait_share == pytest.approx(0.25)
    assert result.warmup_reason == "steady"
    assert result.stop_reason.startswith("interval within")


def test_a_slow_start_is_not_measured(clock: Clock) -> None:
    slow_then_fast = itertools.chain(
        (0.02 - 0.0001 * n for n in range(100)), itertools.repeat(0.01)
    )
    result = drive(make_meter(), clock, slow_then_fast)
    assert result.throughput.estimate == pytest.approx(1000, rel=0.01)
    assert result.warmup_s > 1.0


def test_a_program_that_never_settles_is_cut_and_says_so(clock: Clock) -> None:
    faster_and_faster = (0.05 * 0.99**n for n in itertools.count())
    plan = WindowPlan(warmup_min_s=0.5, warmup_max_s=2.0, window_min_s=0.1, window_max_s=1.0)
    result = drive(make_meter(plan), clock, faster_and_faster)
    assert result.warmup_reason.startswith("cut after 2 s")


def test_full_prefetch_buffers_drain_before_anything_counts(clock: Clock) -> None:
    meter = make_meter(flow=Flow(buffered_steps=64))
    drive(meter, clock, itertools.chain(itertools.repeat(0.02, 128), itertools.repeat(0.1)))
    assert all(b.seconds / b.steps == pytest.approx(0.1) for b in meter.blocks)


def test_a_step_with_something_else_in_it_is_left_out_of_its_block(clock: Clock) -> None:
    meter = make_meter()

    def steps() -> Iterator[float]:
        for number in itertools.count(1):
            if number % 7 == 0:
                meter.disturb()
                yield 5.0
            else:
                yield 0.01

    result = drive(meter, clock, steps())
    assert result.throughput.estimate == pytest.approx(1000)


def test_epochs_shorter_than_a_block_are_measured_whole(clock: Clock) -> None:
    result = drive(make_meter(flow=Flow(steps_per_epoch=8)), clock, itertools.repeat(0.01))
    assert {b.steps for b in result.blocks} == {16}


def test_a_config_that_is_clearly_slower_is_given_up_early(clock: Clock) -> None:
    plan = WindowPlan(0.5, 30.0, 60.0, 60.0, give_up_below=2000.0)
    result = drive(make_meter(plan), clock, itertools.repeat(0.01))
    assert result.stop_reason == "clearly slower"
    assert len(result.blocks) == 3


def test_steps_longer_than_the_whole_window_still_give_a_measurement(clock: Clock) -> None:
    result = drive(make_meter(), clock, itertools.repeat(40.0))
    assert result.throughput.estimate == pytest.approx(0.25)
    assert len(result.blocks) >= 3


def test_blocks_of_whole_epochs_reach_a_steady_state_too(clock: Clock) -> None:
    starts = itertools.count()
    meter = Meter(
        PLAN,
        Instruments(
            lambda: Flow(steps_per_epoch=8, samples_per_epoch=80, starts=next(starts)),
            lambda: None,
            lambda: None,
        ),
    )
    assert drive(meter, clock, itertools.repeat(0.01)).warmup_reason == "steady"
