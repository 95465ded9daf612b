"""Budgets: durations as people write them, and time that counts down."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from autotune.budget import Budget, format_duration, parse_duration
from autotune.errors import UsageError


@dataclass
class Clock:
    """A clock that goes only when it is told to."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("3m", 180),
        ("1h", 3600),
        ("1h30m", 5400),
        ("1h30m15s", 5415),
        ("1.5h", 5400),
        ("0.5m", 30),
        (" 3m ", 180),
    ],
)
def test_a_duration_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "m",
        "soon",
        "3 minutes",
        "3x",
        "-3m",
        "0",
        "0s",
        "1e3",
        "3m!",
        "1,5h",
        "nan",
        "inf",
    ],
)
def test_what_is_no_duration_above_zero_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_duration(text)
    assert f"'{text}' is no duration" in str(refusal.value)
    assert "1h30m" in str(refusal.value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-5, "0s"),
        (0.4, "0s"),
        (45, "45s"),
        (59.6, "1m 00s"),
        (185, "3m 05s"),
        (3599.7, "1h 00m"),
        (3720, "1h 02m"),
        (90000, "25h 00m"),
    ],
)
def test_a_duration_is_written_as_people_say_it(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_budget_counts_down_by_its_clock() -> None:
    clock = Clock()
    budget = Budget(180.0, clock=clock)
    assert budget.left_s == pytest.approx(180)
    clock.now_s += 50
    assert budget.spent_s == pytest.approx(50)
    assert budget.left_s == pytest.approx(130)


def test_a_resumed_budget_counts_what_was_spent_before() -> None:
    clock = Clock()
    budget = Budget(180.0, spent_s=100.0, clock=clock)
    clock.now_s += 30
    assert budget.spent_s == pytest.approx(130)
    assert budget.left_s == pytest.approx(50)


def test_an_overdrawn_budget_says_by_how_much() -> None:
    clock = Clock()
    budget = Budget(60.0, clock=clock)
    clock.now_s += 75
    assert budget.left_s == pytest.approx(-15)
