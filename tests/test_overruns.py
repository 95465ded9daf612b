"""Programs that do not fit into their budget: whole searches end in time, and say what was seen."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import autotune
from autotune.errors import BudgetError, ProgramError
from autotune.tuning.budget import OVERDRAFT
from tests.rigging import PROGRAMS

pytestmark = [pytest.mark.usefixtures("warm_starts"), pytest.mark.slow, pytest.mark.timeout(120)]
SLACK_S = 2.0  # for files and processes, where several tests run on two cores


def test_a_start_up_without_end_is_ended_and_told_where_it_stood(workplace: Path) -> None:
    began = time.monotonic()
    with pytest.raises(BudgetError, match="made no step") as caught:
        autotune.search(PROGRAMS / "prepares_for_ever.py", budget=8.0)
    assert time.monotonic() - began < (1 + OVERDRAFT) * 8.0 + SLACK_S
    assert "--budget" in str(caught.value)


def test_training_in_forked_processes_is_refused_within_seconds(workplace: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ProgramError, match="processes that it forks itself"):
        autotune.search(PROGRAMS / "hogwild.py", budget="5m")
    assert time.monotonic() - began < 60
