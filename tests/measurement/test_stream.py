"""The stream model on machines that do not follow it: drift, jumps, tails, processes, pilots."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import fmean, median

import pytest

from autotune.measurement.pilot import Pace
from autotune.measurement.stream import LATEST, MOST_MERGED, StreamModel
from autotune.measurement.visit import Visit

VISIT_S = 1.3
SEARCHES = 20


@dataclass(frozen=True)
class Machine:
    """What disturbs visits; each is a standard deviation of log rates or a time in seconds.

    Attributes:
        noise: Of a visit alone.
        drift: Of a pace that wanders and is forgotten within ``drift_s``.
        jumps: Whether the machine becomes a third slower for a while, and fast again.
        tails: Whether one visit of 14 is four times as noisy.
        shown: What part of the pace a pilot shows; None without pilots.
        process: Of processes.
        is_partly: Whether every second config has no pilots, because its workers stay busy.
    """

    noise: float = 0.02
    drift: float = 0.0
    drift_s: float = 10.0
    jumps: bool = False
    tails: bool = False
    shown: float | None = None
    process: float = 0.0
    is_partly: bool = False


@dataclass(frozen=True)
class Searched:
    """A simulated search and the truth."""

    model: StreamModel
    truth: dict[int, float]

    def holds(self) -> Iterable[bool]:
        for config, log_speed in self.truth.items():
            found = self.model.speedup(config, "baseline")
            assert found is not None
            yield found.low <= math.exp(log_speed) <= found.high

    def half_widths(self) -> Iterable[float]:
        for config in self.truth:
            found = self.model.speedup(config, "baseline")
            assert found is not None
            yield math.log(found.high / found.low) / 2


def searched(seed: int, machine: Machine, configs: int = 30) -> Searched:
    """Visit configs in the order of a search: good ones again, the baseline each eighth time."""
    rng = random.Random(seed)
    truth = {config: rng.gauss(0, 0.25) for config in range(configs)}
    order: list[int | str] = ["baseline"]
    for tried in truth:
        order.append(tried)
        order += ["baseline", tried] if rng.random() < 0.25 else []
        order += ["baseline"] if len(order) % 8 == 0 else []
    pace, step, process, seen = rng.gauss(0, machine.drift), 0.0, 1, []
    apart = {1: 0.0}
    for number, config in enumerate(order):
        kept = math.exp(-VISIT_S / machine.drift_s)
        pace = kept * pace + rng.gauss(0, machine.drift * math.sqrt(1 - kept**2))
        if machine.jumps and rng.random() < 0.02:
            step = rng.choice([0.0, -0.3])
        if machine.process and number % 10 == 9:
            process += 1
            apart[process] = rng.gauss(0, machine.process)
        wide = 4 if machine.tails and rng.random() < 0.07 else 1
        log_rate = 7 + truth.get(config, 0.0) if isinstance(config, int) else 7.0
        log_rate += pace + step + apart[process] + rng.gauss(0, machine.noise * wide)
        shown = None
        is_silent = machine.is_partly and isinstance(config, int) and config % 2
        if machine.shown is not None and not is_silent:
            part = machine.shown * (pace + step)
            shown = Pace(part + rng.gauss(0, 0.02), part / 2 + rng.gauss(0, 0.06))
        at_s = number * VISIT_S
        seen.append((config, Visit(process, at_s, log_rate, machine.noise * 0.3, shown)))
    return Searched(StreamModel(seen), truth)


QUIET = Machine()
BUSY = Machine(noise=0.04, drift=0.15, drift_s=2.0, jumps=True, tails=True)
MACHINES = {
    "quiet": QUIET,
    "very quiet": Machine(noise=0.004),
    "slow drift": Machine(drift=0.05),
    "fast drift": Machine(drift=0.1, drift_s=1.0),
    "tails": Machine(noise=0.03, drift=0.05, tails=True),
    "several processes": Machine(process=0.04),
    "pilots that show nothing": Machine(shown=0.0),
    "busy": BUSY,
    "busy, with pilots": replace(BUSY, shown=1.0),
    "busy, with pilots for half of the configs": replace(BUSY, shown=1.0, is_partly=True),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_the_intervals_hold_the_truth_about_as_often_as_they_say(machine: Machine) -> None:
    holds = [h for seed in range(SEARCHES) for h in searched(seed, machine).holds()]
    assert fmean(holds) >= 0.89
    few = [h for seed in range(2 * SEARCHES) for h in searched(seed, machine, 8).holds()]
    assert fmean(few) >= 0.88


def widths(machine: Machine, change: Callable[[Searched], Searched] = lambda s: s) -> float:
    return median(
        width for seed in range(20) for width in change(searched(seed, machine)).half_widths()
    )


def test_pilots_narrow_the_intervals_of_a_busy_machine_and_cost_a_quiet_one_nothing() -> None:
    assert widths(replace(BUSY, shown=1.0)) < 0.65 * widths(BUSY)
    assert widths(replace(QUIET, shown=0.0)) < 1.1 * widths(QUIET)


def test_shuffled_pilots_narrow_nothing() -> None:
    machine = replace(BUSY, shown=1.0)

    def shuffled(seed: int) -> list[float]:
        found = searched(seed, machine)
        visits = list(zip(found.model.configs, found.model.visits, strict=True))
        paces = [visit.pace for _, visit in visits]
        random.Random(seed).shuffle(paces)
        mixed = [(c, replace(v, pace=p)) for (c, v), p in zip(visits, paces, strict=True)]
        return [*Searched(StreamModel(mixed), found.truth).half_widths()]

    assert median(w for seed in range(20) for w in shuffled(seed)) > 0.9 * widths(BUSY)


def test_what_a_pilot_explains_is_learned_within_configs() -> None:
    """A config that is always visited at a slow pace is not made fast by it."""
    rng = random.Random(0)
    seen = []
    for number in range(40):
        slow = number % 2
        pace = Pace(-0.3 * slow + rng.gauss(0, 0.02), rng.gauss(0, 0.05))
        log_rate = 7 + 0.5 * slow + rng.gauss(0, 0.02)  # the pace has no effect on this program
        seen.append(
            ("other" if slow else "baseline", Visit(1, number * VISIT_S, log_rate, 0.0, pace))
        )
    found = StreamModel(seen).speedup("other", "baseline")
    assert found is not None
    assert found.low < math.exp(0.5) < found.high
    assert found.half_width_pct < 15


def test_a_visit_far_off_the_others_hardly_counts() -> None:
    steady = [("baseline", Visit(1, t, 7.0, 0.0)) for t in range(6)]
    steady += [("other", Visit(1, 6.0 + t, 7.2, 0.0)) for t in range(4)]
    spoiled = [*steady, ("other", Visit(1, 11.0, 6.2, 0.0))]
    before, after = (StreamModel(seen).speedup("other", "baseline") for seen in (steady, spoiled))
    assert before is not None
    assert after is not None
    assert after.estimate == pytest.approx(before.estimate, rel=0.04)


def test_a_config_in_a_process_alone_is_known_less_well() -> None:
    baseline = [("baseline", Visit(1, t, 7.0, 0.0)) for t in range(6)]
    here = [*baseline, ("other", Visit(1, 7.0, 7.1, 0.0))]
    there = [*baseline, ("other", Visit(2, 7.0, 7.1, 0.0))]
    same, other = (StreamModel(seen).speedup("other", "baseline") for seen in (here, there))
    assert same is not None
    assert other is not None
    assert other.half_width_pct > same.half_width_pct + 3


def test_configs_that_were_not_visited_have_no_speedup() -> None:
    model = StreamModel([("baseline", Visit(1, 0.0, 7.0, 0.01))])
    assert model.speedup("other", "baseline") is None
    assert model.rate("other") is None
    assert StreamModel([]).speedup("baseline", "baseline") is None
    found = model.speedup("baseline", "baseline")
    assert found is not None
    assert (found.low, found.high) == (1.0, 1.0)
    rate = model.rate("baseline")
    assert rate is not None
    assert rate.estimate == pytest.approx(math.exp(7.0), rel=1e-3)


def test_a_long_search_costs_no_more_than_a_short_one_and_keeps_what_it_knows() -> None:
    """Earlier visits of a config are read as one, and of many configs the fastest stay."""
    rng = random.Random(0)
    truth = {config: rng.gauss(0.0, 0.2) for config in range(300)}
    order: list[int | str] = []
    for number, config in enumerate(truth):
        order += ["baseline"] * (number % 8 == 0) + [config]
    best = sorted(truth, key=lambda config: -truth[config])[:10]
    order += ["baseline", *best] * 8
    seen = [
        (which, Visit(1, VISIT_S * at, truth.get(which, 0.0) + rng.gauss(0.0, 0.02), 0.01))  # type: ignore[arg-type]
        for at, which in enumerate(order)
    ]
    model = StreamModel(seen)
    assert len(model.visits) <= LATEST + MOST_MERGED
    for config in best:
        found = model.speedup(config, "baseline")
        assert found is not None
        assert found.low <= math.exp(truth[config]) <= found.high


def test_what_configs_differ_by_is_not_forgotten_when_a_search_ends_with_equal_ones() -> None:
    """70 visits of configs at twice the speed of a baseline that was visited once, long before."""
    seen: list[tuple[str, Visit]] = [("baseline", Visit(1, 0.0, math.log(1000.0), 0.005))]
    seen += [
        (f"config {number % 12}", Visit(1, VISIT_S * (number + 1), math.log(2000.0), 0.005))
        for number in range(70)
    ]
    found = StreamModel(seen).speedup("config 3", "baseline")
    assert found is not None
    assert found.estimate == pytest.approx(2.0, rel=0.1)
