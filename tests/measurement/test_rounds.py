"""Speeds of configs that took turns: whatever the machine does to whole rounds cancels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from autotune.measurement.interval import LogRatio
from autotune.measurement.rounds import LEAST_VARIANCE, OMEGA, TAU, TAU_GROWTH, Speeds, speeds
from autotune.measurement.turn import Played

Round = Mapping[str, Played]


def of(*processes: Sequence[Round]) -> Speeds:
    found = speeds([processes], "own")
    assert found is not None
    return found


def rounds_at(
    speedups: Mapping[str, float], paces: Sequence[float] = (1.0, 3.0, 0.5, 2.0)
) -> list[Round]:
    """Return rounds in which a machine of changing pace runs configs of these speedups."""
    every = {"own": 1.0, **speedups}
    return [
        {name: Played(0.2 * pace / speedup, 32) for name, speedup in every.items()}
        for pace in paces
    ]


def test_a_speedup_is_the_ratio_of_totals_whatever_the_rounds_had_in_common() -> None:
    found = of(rounds_at({"fast": 2.0, "slow": 0.5}))
    assert found.configs == ("own", "fast", "slow")
    assert found.of("fast").value == pytest.approx(math.log(2))
    assert found.of("fast", over="slow").value == pytest.approx(math.log(4))
    assert found.of("own") == LogRatio(0.0, math.sqrt(LEAST_VARIANCE))
    assert found.of("fast").interval.estimate == pytest.approx(2.0)
    assert "fast" in found
    assert "other" not in found


def test_batches_that_come_in_bursts_do_not_make_a_config_fast() -> None:
    # every fourth step waits for a worker: 31 of 40 ms; a mean of logarithms would say 2.7x
    bursts = [Played(0.003 if n % 4 else 0.031, 8) for n in range(400)]
    found = of([{"own": Played(0.010, 8), "bursts": one} for one in bursts])
    assert found.of("bursts").value == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("wander", "least"), [(0.0, 0.9), (0.5, 0.8)])
def test_the_error_holds_for_noise_that_is_common_and_noise_that_is_not(
    wander: float, least: float
) -> None:
    """Also, nearly, where what befalls a config goes on over some rounds."""
    rng = np.random.default_rng(1)
    held, trials, count = 0, 200, 100
    for _ in range(trials):
        common, own = np.exp(0.2 * rng.standard_normal(count)), rng.standard_normal((count, 2))
        for n in range(1, count):
            own[n] = wander * own[n - 1] + math.sqrt(1 - wander**2) * own[n]
        pace = common[:, None] * np.exp(0.1 * own)
        rounds = [{"own": Played(0.12 * a, 1), "other": Played(0.1 * b, 1)} for a, b in pace]
        found = of(rounds).of("other")
        held += abs(found.value - math.log(1.2)) <= 1.96 * found.error
    assert least <= held / trials <= 0.98


def test_a_config_is_compared_over_the_rounds_that_it_was_in() -> None:
    # it enters when the machine has become slow
    found = of([*rounds_at({"first": 1.5}, [1.0] * 6), *rounds_at({"late": 1.2}, [9.0] * 4)])
    assert found.of("late").value == pytest.approx(math.log(1.2))
    assert found.of("first").value == pytest.approx(math.log(1.5))
    assert found.of("late").error > found.of("first").error


def test_several_processes_count_by_their_noise_and_differ_among_each_other() -> None:
    one, other = rounds_at({"a": 1.2, "b": 1.2}, [1.0] * 400), rounds_at({"a": 1.3}, [1.0] * 400)
    together = of(one, other)
    assert together.configs == ("own", "a", "b")
    assert 1.2 < together.of("a").interval.estimate < 1.3
    usual = math.hypot(TAU, TAU_GROWTH * math.log(1.25)) / math.sqrt(2)
    assert together.of("a").error == pytest.approx(usual, rel=0.2)
    assert together.of("b").error > together.of("a").error
    assert together.by_rounds is not None
    assert together.by_rounds.of("a").error < 0.2 * usual, "what more rounds could tell"


def test_machines_differ_among_each_other_and_more_of_their_rounds_do_not_help() -> None:
    one, other = rounds_at({"a": 1.2, "b": 1.2}, [1.0] * 400), rounds_at({"a": 1.3}, [1.0] * 400)
    found = speeds([[one], [other]], "own")
    assert found is not None
    assert found.configs == ("own", "a", "b")
    assert 1.2 < found.of("a").interval.estimate < 1.3
    usual = math.hypot(OMEGA, TAU_GROWTH * math.log(1.25)) / math.sqrt(2)
    assert found.of("a").error == pytest.approx(usual, rel=0.2)
    assert found.by_rounds is not None
    assert found.by_rounds.of("a").error < 0.2 * usual, "what more rounds could tell"


def test_a_machine_of_many_processes_counts_little_more_than_one_of_few() -> None:
    fast, slow = rounds_at({"a": 1.3}, [1.0] * 400), rounds_at({"a": 1.2}, [1.0] * 400)
    found, alone = speeds([[fast] * 8, [slow] * 2], "own"), of(*[fast] * 8, *[slow] * 2)
    assert found is not None
    assert 1.24 < found.of("a").interval.estimate < 1.26 < alone.of("a").interval.estimate
    assert speeds([[fast] * 8, [], [[]]], "own") is not None, "machines that played nothing yet"
