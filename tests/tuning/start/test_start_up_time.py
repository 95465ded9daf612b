"""What is said of a program whose budget ended before its baseline was measured."""

from pathlib import Path

import pytest

from autotune.rig.wire import Progress
from autotune.tuning.start.start_up_time import StartUp, unmeasured
from tests.made import PROGRAM
from tests.scripted import VirtualClock

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
        assert "made no step in its budget of 8s" in text
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
