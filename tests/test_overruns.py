"""Programs that do not fit into their budget: whole searches end in time, and say what was seen."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import autotune
from autotune.errors import BudgetError, ProgramError
from autotune.results.result import Finding
from autotune.tuning.budget import OVERDRAFT
from tests.rigging import PROGRAMS

pytestmark = [pytest.mark.usefixtures("warm_starts"), pytest.mark.slow, pytest.mark.timeout(120)]
SLACK_S = 2.0  # for files and processes, where several tests run on two cores


@contextmanager
def within(budget_s: float) -> Iterator[float]:
    began = time.monotonic()
    yield budget_s
    assert time.monotonic() - began < (1 + OVERDRAFT) * budget_s + SLACK_S


@contextmanager
def suppress_beyond(said: str) -> Iterator[None]:
    """Let a budget be too short for the baseline, where the error says what matters."""
    try:
        yield
    except BudgetError as error:
        if not re.search(said, str(error)):
            raise


def test_slow_steps_end_in_time_with_what_was_measured(workplace: Path) -> None:
    """A busy machine may take too long to start for that: then it is said what took how long."""
    with within(16.0) as budget_s, suppress_beyond(r"a step takes 1\.\d s|no step"):
        result = autotune.search(PROGRAMS / "slow_steps.py", args=["1.2"], budget=budget_s)
        assert result.finding in {Finding.UNCONFIRMED, Finding.NO_GAIN}, "time may allow a trial"
        assert result.best == result.baseline
        assert 0 < result.throughput[0].estimate <= 1.05 * 8 / 1.2, "its steps sleep 1.2 s"


def test_a_start_up_without_end_is_ended_and_told_where_it_stood(workplace: Path) -> None:
    with within(8.0) as budget_s, pytest.raises(BudgetError, match="made no step") as caught:
        autotune.search(PROGRAMS / "prepares_for_ever.py", budget=budget_s)
    assert "--budget" in str(caught.value)


def test_training_in_forked_processes_is_refused_within_seconds(workplace: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ProgramError, match="processes that it forks itself"):
        autotune.search(PROGRAMS / "hogwild.py", budget="5m")
    assert time.monotonic() - began < 60


def test_a_silent_worker_does_not_take_what_was_measured_with_it(workplace: Path) -> None:
    with within(14.0) as budget_s, suppress_beyond("DataLoader|no step"):
        result = autotune.search(PROGRAMS / "silent_worker.py", args=["100"], budget=budget_s)
        assert result.finding in {Finding.UNCONFIRMED, Finding.NO_GAIN}, "time may allow a trial"
        assert result.throughput[0].estimate > 0
