"""Programs that do not fit into their budget: whole searches end in time, and say what was seen."""

import time
from pathlib import Path

import pytest

import autotune
from autotune.errors import BudgetError, ProgramError
from tests.rigging import PROGRAMS

pytestmark = [pytest.mark.usefixtures("warm_starts"), pytest.mark.slow, pytest.mark.timeout(120)]
MOST_S = 60.0  # how near to its budget a search ends is shown in virtual time


def test_endless_start_ups_and_forked_training_end_in_time(workplace: Path) -> None:
    for program, budget_s, error, said in (
        ("prepares_for_ever.py", 8.0, BudgetError, "--budget"),
        ("hogwild.py", 300.0, ProgramError, "processes that it forks itself"),
    ):
        began = time.monotonic()
        with pytest.raises(error, match=said):
            autotune.search(PROGRAMS / program, budget=budget_s)
        assert time.monotonic() - began < MOST_S, program
