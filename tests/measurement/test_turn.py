"""Turns: how long they are, and what counts of them."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from autotune.measurement.turn import (
    DEVICE_TURN_S,
    TURN_S,
    USUAL_NOISE,
    Length,
    Played,
    Turn,
    in_random_order,
    length_of,
    played,
    rate,
)


@pytest.mark.parametrize(("on_device", "least_s"), [(False, TURN_S), (True, DEVICE_TURN_S)])
@pytest.mark.parametrize("step_s", [0.001, 0.01, 0.07])
def test_a_turn_counts_for_long_enough_and_its_first_step_does_not(
    step_s: float, on_device: bool, least_s: float
) -> None:
    length = length_of(step_s, on_device=on_device)
    assert length.settling == 1
    assert least_s <= (length.steps - length.settling) * step_s < least_s + 1.01 * step_s
    assert length.seconds == pytest.approx(length.steps * step_s)


def test_what_lay_ready_or_was_loaded_by_another_config_does_not_count() -> None:
    """But whole cycles of workers do."""
    for step_s in (0.001, 0.01, 0.02):
        length = length_of(step_s, cycle=4, ready=8)
        assert (length.steps - length.settling) % 4 == 0
        assert length.settling == 1 + 8
    for step_s in (0.001, 0.05, 0.5, 2.0):
        usual, ahead = length_of(step_s), length_of(step_s, ahead=1)
        assert ahead.settling == 2
        assert ahead.steps - ahead.settling == usual.steps - usual.settling
        assert ahead.seconds == pytest.approx(ahead.steps * step_s)


TURN = Turn(0, (5.0, 1.0, 1.0, 3.0), (8, 8, 8, 4), 0.5, wait_s=1.0)


def test_settling_and_disturbed_steps_of_a_turn_do_not_count() -> None:
    assert played(TURN) == Played(10.0, 28, 10.0, 28, 4, 1.0)
    assert played(TURN, settling=1) == Played(5.0, 20, 5.0, 20, 3, 0.5)
    assert played(replace(TURN, disturbed=(0, 3)), settling=1) == Played(2.0, 16, 2.0, 16, 2, 0.2)
    for disturbed in ((1, 2), (1, 2, 3)):
        assert played(replace(TURN, disturbed=disturbed), settling=1) is None


def test_each_round_has_each_config_once_and_not_always_in_the_same_order() -> None:
    lengths = [Length(1, 0, 1.0)] * 4
    order = in_random_order(lengths, 30, random.Random(0))
    rounds = {tuple(order[at : at + 4]) for at in range(0, len(order), 4)}
    assert len(order) == 120
    assert {tuple(sorted(one)) for one in rounds} == {(0, 1, 2, 3)}
    assert len(rounds) > 10


def test_a_rate_is_work_over_cost_in_total() -> None:
    found = rate([Played(1.0, 100), Played(4.0, 100), Played(1.0, 100)])
    assert found.estimate == pytest.approx(50.0)
    assert found.low < 50 < found.high
    alone = rate([Played(2.0, 100)])
    assert alone.high / alone.estimate == pytest.approx(math.exp(1.96 * USUAL_NOISE))


def test_the_interval_of_a_rate_holds_for_turns_that_differ_by_themselves() -> None:
    dice, held = random.Random(0), 0
    for _ in range(300):
        turns = [Played(math.exp(dice.gauss(0, 0.15)), 100) for _ in range(40)]
        found = rate(turns)
        held += found.low <= 100 / math.exp(0.15**2 / 2) <= found.high
    assert 0.89 <= held / 300 <= 0.98
