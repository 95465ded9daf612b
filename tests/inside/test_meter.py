from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from autotune.inside import meter as meters
from autotune.inside.meter import MAX_DISCARDED, Flow, Instruments, Meter
from autotune.machine.probes.host_load import Counters
from autotune.measurement.measurement import Measurement
from autotune.measurement.memory import Memory
from autotune.program.config import Config
from autotune.results.record import Round, Side, WindowRecord
from autotune.rig.wire import WindowPlan
from autotune.tuning.confirming.confirm import WINDOW
from autotune.tuning.confirming.confirmation import TURNS, read

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
        if meter.step(samples, wait_s=seconds / 4):
            meter.go_on()
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


def test_page_faults_are_counted_in_the_time_that_counts_alone(clock: Clock) -> None:
    """Three in each step; many more in a step with something else in it, and between epochs."""
    faults = 0
    meter = Meter(PLAN, Instruments(Flow, lambda: None, lambda: 0.5, faults=lambda: faults))

    def steps() -> Iterator[float]:
        nonlocal faults
        for number in itertools.count(1):
            is_other = number % 7 == 0
            if is_other:
                meter.disturb()
            faults += 100_000 if is_other else 3
            yield 5.0 if is_other else 0.01
            if number % 10 == 0:
                meter.pause()
                faults += 100_000
                clock.now += 2.0
                meter.resume(0.0)

    measured = drive(meter, clock, steps())
    assert {block.faults for block in measured.blocks} == {3 * b.steps for b in measured.blocks}
    share = replace(measured, fault_s=1e-4).fault_share
    assert share.estimate == pytest.approx(3 * 1e-4 / 0.01)
    assert share.high == pytest.approx(share.estimate)


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
    assert len(result.blocks) == 2


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


def test_tokens_are_summed_over_the_steps_of_a_block(clock: Clock) -> None:
    meter = make_meter()
    for step in itertools.count():
        clock.now += 0.01
        if meter.step(10, wait_s=0.0, tokens=100 if step % 2 else 300):
            meter.go_on()
        if meter.is_done:
            break
    assert {b.tokens for b in meter.blocks} == {2000}
    tokens_per_s = meter.measurement(Memory()).tokens_per_s
    assert tokens_per_s is not None
    assert tokens_per_s.estimate == pytest.approx(20_000)


# --- disturbed blocks -----------------------------------------------------------------------------

FIXED = WindowPlan(warmup_min_s=1.0, warmup_max_s=30.0, window_min_s=2.0, window_max_s=2.0)


@dataclass
class Host:
    """A machine of two cores whose counters a test moves."""

    clock: Clock
    foreign_s: float = 0.0

    def counters(self) -> Counters:
        return Counters(
            at_s=self.clock.now,
            cores=2,
            busy_s=self.foreign_s + 7.0,
            ours_s=7.0,
            steal_s=None,
            pressure_s=None,
            throttled_s=None,
            switches=0,
        )


def measure_on(
    host: Host, is_disturbed: Callable[[int], bool], step_s: float = 0.01, plan: WindowPlan = FIXED
) -> Measurement:
    """A window in which other processes halve the speed of the steps that a test names."""
    meter = Meter(plan, Instruments(Flow, lambda: None, lambda: 0.5, lambda: 0, host.counters))

    def steps() -> Iterator[float]:
        in_window = itertools.count()
        while True:
            if meter.phase == "window" and is_disturbed(next(in_window)):
                host.foreign_s += step_s
                yield 2 * step_s
            else:
                yield step_s

    return drive(meter, host.clock, steps())


def test_what_happened_in_a_block_is_read_from_the_counters_at_its_edges(clock: Clock) -> None:
    result = measure_on(Host(clock), lambda _: False)
    assert result.discarded_blocks == 0
    assert result.disturbed_share == 0
    assert {b.interference is not None for b in result.blocks} == {True}


def test_without_counters_no_block_is_called_clean_or_disturbed(clock: Clock) -> None:
    result = drive(make_meter(), clock, itertools.repeat(0.01))
    assert {b.interference for b in result.blocks} == {None}


def test_a_disturbed_block_is_measured_again(clock: Clock) -> None:
    result = measure_on(Host(clock), lambda step: step // 10 in {2, 3, 7})
    assert result.discarded_blocks == 3
    assert result.disturbed_share == 0
    assert {round(b.samples_per_s) for b in result.blocks} == {1000}


def test_the_time_of_blocks_that_are_measured_again_does_not_eat_the_window(clock: Clock) -> None:
    clean = measure_on(Host(clock), lambda _: False)
    disturbed = measure_on(Host(clock), lambda step: step // 10 % 3 == 0)
    assert disturbed.discarded_blocks >= 8
    assert len(disturbed.blocks) == len(clean.blocks)


def test_where_every_block_is_disturbed_they_count_in_the_end_and_are_marked(clock: Clock) -> None:
    plan = replace(FIXED, window_max_s=5.0)
    result = measure_on(Host(clock), lambda _: True, plan=plan)
    assert result.discarded_blocks == MAX_DISCARDED
    assert result.disturbed_share == 1
    assert result.throughput.estimate == pytest.approx(500)
    assert "other processes used the CPU" in result.warnings[0]


def test_no_more_time_is_spent_on_measuring_again_than_on_the_window(clock: Clock) -> None:
    plan = replace(FIXED, window_max_s=5.0)
    result = measure_on(Host(clock), lambda _: True, step_s=1.0, plan=plan)  # disturbed: 2 s
    assert result.discarded_blocks == 2
    assert result.disturbed_share == 1


def test_only_blocks_of_the_window_are_measured_again(clock: Clock) -> None:
    host = Host(clock)
    meter = Meter(FIXED, Instruments(Flow, lambda: None, lambda: 0.5, lambda: 0, host.counters))

    def steps() -> Iterator[float]:
        while True:
            host.foreign_s += 0.01 if meter.phase == "warm-up" else 0.0
            yield 0.01

    result = drive(meter, clock, steps())
    assert result.warmup_s == pytest.approx(1.0, abs=0.15)
    assert result.discarded_blocks == 0


def test_a_disturbed_block_that_is_measured_again_has_no_say_in_the_loss(clock: Clock) -> None:
    result = measure_on(Host(clock), lambda step: step // 10 in {2, 3, 7})
    assert len(result.losses) == len(result.blocks)


# --- evidence that the program has settled --------------------------------------------------------


@dataclass
class Evidence:
    """What a program shows at block edges, as a test wants it."""

    ready_steps: float | None = None
    has_idle_workers: bool | None = None
    activity: int = 0

    def meter(self, plan: WindowPlan, buffered_steps: int = 0) -> Meter:
        return Meter(
            plan,
            Instruments(
                lambda: Flow(
                    buffered_steps=buffered_steps,
                    ready_steps=self.ready_steps,
                    has_idle_workers=self.has_idle_workers,
                ),
                lambda: None,
                lambda: None,
                lambda: self.activity,
            ),
        )


LASTS_S = 4.0


@dataclass(frozen=True)
class Settling:
    """How buffers move for LASTS_S.

    Attributes:
        ready_steps: What they hold, by the seconds since the program began.
        idle_then: Workers are idle from then on.
    """

    ready_steps: Callable[[float], float]
    idle_then: bool = False
    step_s: float = 0.01


SETTLING = {
    "drain": Settling(lambda s: 50 * (LASTS_S - s)),
    "drain in small steps": Settling(lambda s: 50 * (LASTS_S - s), step_s=0.001),
    "drain too slowly for few steps to tell": Settling(lambda s: 1.5 * (LASTS_S - s) + 1),
    "fill": Settling(lambda s: 50 * s + 10, idle_then=True),
    "fill, and empty now and then": Settling(lambda s: 50 * s if s % 0.5 > 0.2 else 0, True),
}


@pytest.mark.parametrize("settling", SETTLING.values(), ids=SETTLING)
def test_warm_up_goes_on_while_buffers_drain_or_fill(clock: Clock, settling: Settling) -> None:
    evidence = Evidence()
    meter = evidence.meter(PLAN)
    began = clock.now

    def steps() -> Iterator[float]:
        while True:
            moved_s = min(clock.now - began, LASTS_S)
            evidence.ready_steps = settling.ready_steps(moved_s)
            evidence.has_idle_workers = settling.idle_then and moved_s == LASTS_S
            yield settling.step_s

    result = drive(meter, clock, steps())
    assert result.warmup_reason == "steady"
    assert LASTS_S - 0.5 < result.warmup_s < LASTS_S + 1.0  # the last steps are within tolerance
    assert result.drained_share == 0


@pytest.mark.parametrize(
    ("ready_steps", "is_idle", "step_s"),
    [(400.0, True, 0.01), (0.0, False, 0.01), (200.0, False, 0.001)],
    ids=["full", "empty", "as much produced as consumed, over many steps"],
)
def test_level_buffers_end_the_warm_up_however_much_they_hold(
    clock: Clock, ready_steps: float, is_idle: bool, step_s: float
) -> None:
    meter = Evidence(ready_steps, is_idle).meter(PLAN, buffered_steps=100_000)
    result = drive(meter, clock, itertools.repeat(step_s))
    assert result.warmup_reason == "steady"
    assert result.warmup_s == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(("is_idle", "step_s"), [(True, 0.01), (False, 0.001)])
def test_buffers_that_go_up_and_down_with_the_beat_of_the_workers_are_level(
    clock: Clock, is_idle: bool, step_s: float
) -> None:
    evidence = Evidence(has_idle_workers=is_idle)
    meter = evidence.meter(PLAN)

    def steps() -> Iterator[float]:
        for step in itertools.count():
            evidence.ready_steps = 3 + step // 10 % 7 % 2
            yield step_s

    result = drive(meter, clock, steps())
    assert result.warmup_s == pytest.approx(1.0, abs=0.15)
    assert result.stop_reason.startswith("interval within")
    assert result.drained_share == 0


def test_warm_up_goes_on_while_something_compiles(clock: Clock) -> None:
    evidence = Evidence()
    meter = evidence.meter(PLAN)

    def steps() -> Iterator[float]:
        for step in itertools.count():
            evidence.activity += step * 0.01 < LASTS_S and step % 20 == 0
            yield 0.01

    result = drive(meter, clock, steps())
    assert result.warmup_reason == "steady"
    assert LASTS_S < result.warmup_s < LASTS_S + 1.0


@pytest.mark.parametrize(
    ("drains", "compiles", "drifts", "missing"),
    [
        (True, False, False, "data buffers still filling or draining"),
        (False, True, False, "torch still compiling or taking memory"),
        (False, False, True, "speed still changing"),
        (
            True,
            True,
            True,
            (
                "data buffers still filling or draining, torch still compiling or taking memory, "
                "speed still changing"
            ),
        ),
    ],
    ids=["drains", "compiles", "drifts", "all"],
)
def test_a_warm_up_that_is_cut_says_which_evidence_was_missing(
    clock: Clock, drains: bool, compiles: bool, drifts: bool, missing: str
) -> None:
    plan = WindowPlan(warmup_min_s=0.5, warmup_max_s=3.0, window_min_s=0.1, window_max_s=1.0)
    evidence = Evidence(ready_steps=1e6, has_idle_workers=not drains)
    meter = evidence.meter(plan)

    def steps() -> Iterator[float]:
        for step in itertools.count():
            if drains:
                evidence.ready_steps = 1e6 - step
            evidence.activity += compiles
            yield 0.05 * 0.99**step if drifts else 0.01

    assert drive(meter, clock, steps()).warmup_reason == f"cut after 3 s: {missing}"


def drain_in_the_window(clock: Clock, per_step: float, at_most: float = 1000.0) -> Measurement:
    """A window on full buffers, which lose so many steps in each step from its opening on."""
    evidence = Evidence(ready_steps=1000.0, has_idle_workers=True)
    meter = evidence.meter(PLAN)

    def steps() -> Iterator[float]:
        in_window = itertools.count(1)
        while True:
            if meter.phase == "window":
                evidence.ready_steps = 1000 - min(per_step * next(in_window), at_most)
            yield 0.01

    return drive(meter, clock, steps())


def test_a_window_that_drained_the_buffers_runs_to_its_end_and_says_how_much(clock: Clock) -> None:
    result = drain_in_the_window(clock, per_step=0.5)
    assert result.stop_reason == "cut after 5.0 s"
    assert result.drained_share == pytest.approx(0.5, abs=0.01)
    assert result.throughput.low == pytest.approx(500, abs=10)
    assert result.throughput.high == pytest.approx(1000)
    assert "were loaded before it began" in result.warnings[0]


def test_one_step_less_in_the_buffers_is_the_beat_of_the_workers(clock: Clock) -> None:
    assert drain_in_the_window(clock, per_step=1.0, at_most=1.0).drained_share == 0


def test_a_window_whose_buffers_filled_ends_as_any_other(clock: Clock) -> None:
    result = drain_in_the_window(clock, per_step=-0.5)
    assert result.stop_reason.startswith("interval within")
    assert result.drained_share == 0


def test_a_window_whose_buffers_cannot_be_seen_is_not_said_to_have_drained(clock: Clock) -> None:
    result = drive(Evidence(ready_steps=None).meter(PLAN), clock, itertools.repeat(0.01))
    assert result.drained_share == 0
    assert result.stop_reason.startswith("interval within")


# --- giving up ------------------------------------------------------------------------------------

WINDOWS = 300
INCUMBENT = 1000.0  # samples/s
FLOOR = 0.85


def given_up(clock: Clock, ratio: float) -> float:
    """Share of windows given up, of a config that is *ratio* as fast as the incumbent.

    Blocks carry log-normal noise of 3 %, alike between neighbours: AR(1) with rho 0.5.
    """
    plan = replace(PLAN, give_up_below=FLOOR * INCUMBENT)
    return sum(is_given_up(clock, plan, ratio, seed) for seed in range(WINDOWS)) / WINDOWS


def is_given_up(clock: Clock, plan: WindowPlan, ratio: float, seed: int) -> bool:
    rng = random.Random(seed)
    meter = make_meter(plan)
    noise = rng.gauss(0, 1)
    while not meter.is_done:
        noise = 0.5 * noise + math.sqrt(1 - 0.5**2) * rng.gauss(0, 1)
        clock.now += 0.15 * math.exp(0.03 * noise) / ratio  # longer than a block: one step in each
        if meter.step(round(0.15 * INCUMBENT), wait_s=0.0):
            meter.go_on()
    return meter.measurement(Memory()).stop_reason == "clearly slower"


def test_a_config_as_fast_as_the_incumbent_is_never_given_up(clock: Clock) -> None:
    assert given_up(clock, ratio=1.0) == 0


def test_a_config_within_ten_percent_of_the_incumbent_is_hardly_ever_given_up(
    clock: Clock,
) -> None:
    assert given_up(clock, ratio=0.9) <= 0.01


def test_a_config_at_the_floor_is_given_up_in_few_windows(clock: Clock) -> None:
    """The first look is at three blocks, each later one is another chance: more than 2.5 %."""
    assert 0.05 <= given_up(clock, ratio=FLOOR) <= 0.4


def test_a_config_far_below_the_floor_is_nearly_always_given_up(clock: Clock) -> None:
    assert given_up(clock, ratio=0.8) >= 0.95


# --- slow steps, and the end of time --------------------------------------------------------------

VISIT = WindowPlan(warmup_min_s=0.4, warmup_max_s=5.0, window_min_s=0.6, window_max_s=2.0)


def switched(plan: WindowPlan, read: Instruments | None = None) -> Meter:
    """Return a meter as after a switch: the first step is left out."""
    meter = make_meter(plan) if read is None else Meter(plan, read)
    meter.disturb()
    return meter


def go(meter: Meter, clock: Clock, *step_s: float) -> None:
    for seconds in step_s:
        clock.now += seconds
        if meter.step(10, wait_s=0.0):
            meter.go_on()


def test_of_slow_steps_one_is_left_out_and_two_are_taken(clock: Clock) -> None:
    meter = switched(VISIT)
    go(meter, clock, 9.0, 2.0)
    assert not meter.is_done
    go(meter, clock, 3.0)
    result = meter.measurement(Memory())
    assert meter.is_done
    assert [b.seconds for b in result.blocks] == pytest.approx([2.0, 3.0])


def test_the_interval_of_few_blocks_is_as_wide_as_machines_are_unsteady(clock: Clock) -> None:
    meter = switched(VISIT)
    go(meter, clock, 2.0, 2.0, 2.0)
    interval = meter.measurement(Memory()).throughput
    assert interval.estimate == pytest.approx(5.0)
    assert 12 < interval.half_width_pct < 25


def test_steps_of_a_fresh_process_count_once_it_has_warmed_up(clock: Clock) -> None:
    plan = WindowPlan(warmup_min_s=3.0, warmup_max_s=20.0, window_min_s=2.0, window_max_s=2.5)
    meter = switched(plan)
    go(meter, clock, *[1.5] * 3)
    assert not meter.is_done
    go(meter, clock, 2.0)
    assert meter.is_done
    assert [b.seconds for b in meter.blocks] == pytest.approx([1.5, 2.0])


def test_a_step_that_compiles_does_not_count_however_slow_steps_are(clock: Clock) -> None:
    activity = iter([0, 1, 2, 2, 2, 2, 2])
    read = Instruments(Flow, lambda: None, lambda: None, lambda: next(activity))
    meter = switched(VISIT, read)
    go(meter, clock, 20.0, 4.0, 1.0, 1.0)
    assert [b.seconds for b in meter.blocks] == pytest.approx([1.0, 1.0])


def test_a_slow_beginning_does_not_make_a_program_slow(clock: Clock) -> None:
    meter = switched(VISIT)
    result = drive(meter, clock, itertools.chain([2.0, 0.7], itertools.repeat(0.01)))
    assert result.throughput.estimate == pytest.approx(1000)
    assert result.warmup_reason == "steady"
    assert max(b.seconds for b in result.blocks) < 0.2


def test_a_window_ends_with_what_it_has_when_its_time_is_up(clock: Clock) -> None:
    noisy = (0.005 * (1 + n % 7) for n in itertools.count())
    plan = WindowPlan(0.5, 1.0, 600.0, 600.0, half_width=0.0, most_s=10.0)
    began = clock.now
    result = drive(make_meter(plan), clock, noisy)
    assert clock.now - began == pytest.approx(10.0, abs=0.5)
    assert result.stop_reason.startswith("out of time")
    assert len(result.blocks) > 20


def test_a_step_that_would_end_too_late_is_not_waited_for(clock: Clock) -> None:
    plan = WindowPlan(0.4, 5.0, 600.0, 600.0, most_s=10.0)
    began = clock.now
    result = drive(switched(plan), clock, itertools.repeat(3.0))
    assert clock.now - began == pytest.approx(9.0)
    assert len(result.blocks) == 2


def test_a_warm_up_that_time_ends_gives_its_later_half(clock: Clock) -> None:
    meter = switched(WindowPlan(100.0, 200.0, 600.0, 600.0))
    go(meter, clock, 2.0, 2.0, 1.0, 1.0)
    assert meter.end_now()
    result = meter.measurement(Memory())
    assert [b.seconds for b in result.blocks] == pytest.approx([1.0, 1.0])
    assert result.warmup_reason == "cut after 6 s: out of time"
    assert result.losses == (0.5, 0.5)
    assert result.warnings


def test_one_step_is_a_measurement_where_there_is_no_time_for_more(clock: Clock) -> None:
    meter = switched(WindowPlan(3.0, 20.0, 2.0, 5.0, most_s=6.0))
    go(meter, clock, 5.0, 5.0)
    assert meter.is_done
    interval = meter.measurement(Memory()).throughput
    assert interval.estimate == pytest.approx(2.0)
    assert interval.half_width_pct > 20


def test_a_window_that_has_just_opened_gives_what_came_before_it(clock: Clock) -> None:
    meter = switched(replace(VISIT, warmup_min_s=0.0, warmup_max_s=0.0))
    go(meter, clock, *[0.05] * 6)
    while meter.phase == "warm-up":
        go(meter, clock, 0.05)
    assert not meter.blocks
    assert meter.end_now()
    assert meter.measurement(Memory()).blocks


def test_a_window_without_a_block_cannot_end_and_an_ended_one_not_again(clock: Clock) -> None:
    meter = switched(VISIT)
    go(meter, clock, 2.0)
    assert not meter.end_now()
    go(meter, clock, 2.0)
    assert meter.end_now()
    assert not meter.end_now()


# --- slow steps that workers feed -----------------------------------------------------------------

SAMPLES = 8


@dataclass
class Fed:
    """A program of slow steps whose batches workers load in turn, as torch's do.

    Attributes:
        load_s: A worker takes so long for a batch.
        is_seen: torch shows what the buffers hold.
    """

    clock: Clock
    workers: int
    prefetch: int
    compute_s: float
    load_s: float
    is_full: bool = True
    is_seen: bool = True

    def __post_init__(self) -> None:
        self.free_at = [self.clock.now] * self.workers
        self.done_at: list[float] = []
        self.taken = 0
        for _ in range(self.workers * self.prefetch):
            if self.is_full:
                self.done_at.append(self.clock.now)
            else:
                self.load()

    @property
    def truth(self) -> float:
        """Samples/s in the long run."""
        return SAMPLES * min(1 / self.compute_s, self.workers / self.load_s)

    def load(self) -> None:
        worker = len(self.done_at) % self.workers
        self.free_at[worker] = max(self.clock.now, self.free_at[worker]) + self.load_s
        self.done_at.append(self.free_at[worker])

    def step(self) -> float:
        """Make a step; return how long it waited for its batch."""
        wait_s = max(0.0, self.done_at[self.taken] - self.clock.now)
        self.clock.now += wait_s
        self.taken += 1
        self.load()
        self.clock.now += self.compute_s
        return wait_s

    def flow(self) -> Flow:
        now = self.clock.now
        ready = sum(at <= now for at in self.done_at[self.taken :])
        is_idle = any(at <= now for at in self.free_at)
        return Flow(
            buffered_steps=self.workers * self.prefetch,
            cycle_steps=self.workers,
            ready_steps=ready if self.is_seen else None,
            has_idle_workers=is_idle if self.is_seen else None,
        )

    def measured(self, plan: WindowPlan = WINDOW) -> Measurement:
        meter = switched(plan, Instruments(self.flow, lambda: None, lambda: None))
        while not meter.is_done:
            if meter.step(SAMPLES, self.step()):
                meter.go_on()
        return meter.measurement(Memory())


SLOWER_LOADERS = [
    (1, 2, 0.6, 1.2),
    (1, 2, 0.6, 0.65),
    (2, 2, 0.6, 2.0),
    (2, 2, 0.6, 1.6),
    (2, 2, 0.6, 1.3),
    (2, 8, 0.6, 1.6),
    (4, 1, 0.6, 3.0),
    (4, 2, 0.6, 3.0),
    (8, 2, 0.6, 8.0),
    (1, 2, 2.0, 3.0),
]


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize(("workers", "prefetch", "compute_s", "load_s"), SLOWER_LOADERS)
def test_full_buffers_do_not_make_slow_steps_faster_than_their_loader(
    clock: Clock, workers: int, prefetch: int, compute_s: float, load_s: float, is_seen: bool
) -> None:
    program = Fed(clock, workers, prefetch, compute_s, load_s, is_seen=is_seen)
    result = program.measured()
    least = result.throughput.estimate * (1 - result.drained_share)
    assert least <= 1.001 * program.truth
    assert result.throughput.low <= program.truth <= 1.001 * result.throughput.high
    if result.throughput.estimate > 1.02 * program.truth:
        assert "data buffers still filling or draining" in result.warmup_reason
        assert any("were loaded before it began" in warning for warning in result.warnings)


def test_slow_steps_wait_for_their_buffers_where_there_is_time(clock: Clock) -> None:
    for numbers in SLOWER_LOADERS:
        program = Fed(clock, *numbers)
        result = program.measured(replace(WINDOW, warmup_max_s=1000.0))
        assert result.throughput.estimate == pytest.approx(program.truth, rel=0.03)


@pytest.mark.parametrize("load_s", [0.1, 0.25, 0.5])
@pytest.mark.parametrize(("workers", "prefetch"), [(1, 2), (2, 2), (2, 8), (4, 1), (4, 2), (8, 2)])
def test_buffers_that_stay_full_do_not_hold_up_slow_steps(
    clock: Clock, workers: int, prefetch: int, load_s: float
) -> None:
    result = Fed(clock, workers, prefetch, 0.6, load_s * workers).measured()
    assert result.warmup_reason == "steady"
    assert result.drained_share == 0
    assert sum(b.steps for b in result.blocks) <= max(3, 2 * workers)


def test_slow_steps_cut_short_are_an_upper_bound_where_buffers_served_them(clock: Clock) -> None:
    """Time may be up before anything showed whether they did."""
    for most_s in (1.5, 2.5, 3.5, 5.0):
        program = Fed(clock, 2, 2, 0.6, 2.0)
        result = program.measured(replace(WINDOW, warmup_min_s=3.0, most_s=most_s))
        assert result.throughput.low <= program.truth
        assert result.throughput.estimate * (1 - result.drained_share) <= program.truth


@pytest.mark.parametrize(
    ("workers", "load_s"), [(1, 1.2), (1, 2.0), (2, 2.0), (2, 1.6), (2, 1.8), (4, 3.0)]
)
def test_a_confirmation_claims_nothing_for_compute_that_the_loader_holds_back(
    clock: Clock, workers: int, load_s: float
) -> None:
    """After each window of a rig its buffers are full again; the winner computes faster."""
    compute_s = {Side.BASELINE: load_s / workers, Side.WINNER: 0.6}

    def window(side: Side) -> WindowRecord:
        program = Fed(clock, workers, 2, compute_s[side], load_s)
        return WindowRecord(side, Config({"side": side}), program.measured(), 1.0)

    rounds: list[Round] = [[window(side) for side in turns] for turns in TURNS.values()]
    found = read(rounds)
    assert found is not None
    assert not found.is_faster
    assert found.speedup.estimate <= 1.01
