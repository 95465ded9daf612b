"""Budgets: durations as people write them, time that counts down, and who waits for its end."""

import re
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.measurement.outcome import Ending, Outcome
from autotune.results.wording import format_duration, typed_duration
from autotune.rig.wire import Progress
from autotune.tuning.budget import (
    CLOSING_S,
    OVERDRAFT,
    Budget,
    Until,
    parse_duration,
    seconds_left,
)
from autotune.tuning.start.start_up_time import StartUp, unmeasured
from tests.made import PROGRAM
from tests.scripted import VirtualClock

SPELT = {"90": 90, "90s": 90, "3m": 180, "1h30m15s": 5415, "1.5h": 5400, " 3m ": 180}
UNREADABLE = ("", "  ", "m", "soon", "3 minutes", "-3m", "0", "0s", "1e3", "3m!", "1,5h", "nan")
SAID = {
    -5: "0 s",
    0.4: "0 s",
    45: "45 s",
    99.4: "99 s",
    99.6: "1m 40s",
    185: "3m 05s",
    240: "4m",
    629: "10m",
    3599.7: "1h",
    11430: "3h 10m",
    86400: "24h",
}


def test_a_duration_is_read_and_written_as_people_say_it() -> None:
    assert {text: parse_duration(text) for text in SPELT} == SPELT
    assert {seconds: format_duration(seconds) for seconds in SAID} == SAID
    for seconds in (0.5, 47, 148, 612, 4321, 99999):
        assert 0 <= parse_duration(typed_duration(seconds)) - seconds < 10, "rounded up to 10 s"
    for text in UNREADABLE:
        with pytest.raises(UsageError, match=f"'{re.escape(text)}' is not a duration.*1h30m"):
            parse_duration(text)


def test_a_resumed_budget_counts_what_was_spent_before() -> None:
    clock = VirtualClock()
    budget = Budget(180.0, spent_s=100.0, clock=clock)
    clock.now_s += 30
    assert budget.spent_s == pytest.approx(130)
    assert budget.left_s == pytest.approx(50)


def test_waiting_ends_early_enough_to_close_a_program_that_is_deaf() -> None:
    for total_s in (5.0, 8.0, 20.0, 90.0, 3600.0):
        clock = VirtualClock()
        budget = Budget(total_s, clock=clock)
        clock.now_s += budget.wait_s
        assert budget.wait_s == pytest.approx(0)
        assert budget.spent_s < total_s
        assert budget.spent_s + CLOSING_S <= (1 + OVERDRAFT) * total_s + 1e-9


def test_work_goes_on_until_time_is_up_or_the_user_wishes() -> None:
    clock = VirtualClock()
    budget = Budget(60.0, clock=clock)
    wish: list[Ending] = []
    until = Until(lambda: wish[0] if wish else None, lambda: budget.left_s, "no time")
    assert until() is None
    assert seconds_left(until) == pytest.approx(60)
    clock.now_s += 60
    assert until() == Ending(Outcome.OUT_OF_TIME, "no time")
    wish.append(Ending(Outcome.INTERRUPTED, "stopped"))
    assert until() == wish[0]


LOG = Path("rigs/001/log.txt")


def step(number: int, elapsed_s: float) -> Progress:
    return Progress("start-up", number, elapsed_s)


def said(seen: StartUp, budget_s: float = 20.0) -> str:
    return str(unmeasured(PROGRAM, budget_s, seen, LOG))


def test_a_slow_program_is_told_what_took_how_long_and_a_budget_that_will_do() -> None:
    seen = StartUp(VirtualClock())
    for number in range(1, 4):
        seen.hear(step(number, 6.0 + 4.0 * number))
    assert seen.step_s == pytest.approx(4.0)
    text = said(seen)
    assert "start-up and first step took 10.0 s, and each later step takes 4.0 s" in text
    assert f"autotune search --budget 150s {PROGRAM}" in text


def test_the_mend_fits_what_the_program_waited_for() -> None:
    for doing, mend in (
        ("waited for a batch of its DataLoader in main (a.py:7)", "workers=0"),
        ("waited for processes that it had started itself", "autotune can start several ranks"),
        ("", "--budget"),
    ):
        seen = StartUp(VirtualClock())
        seen.hear(Progress("start-up", 0, 7.5, doing))
        text = said(seen, 8.0)
        assert "made no step in its budget of 8 s" in text
        assert doing in text
        assert mend in text
        assert str(LOG) in text


def test_a_program_that_fell_silent_after_some_steps_is_not_called_slow() -> None:
    clock = VirtualClock()
    seen = StartUp(clock)
    for number in range(1, 4):
        seen.hear(step(number, 6.0 + 0.1 * number))
    clock.now_s += 12.0
    assert "made 3 steps and then none for 12.0 s" in said(seen)
