"""Whole searches with real processes: what is written, resumed and left behind.

What a search finds and claims is shown in virtual time (tuning/test_whole_search.py); here no test
depends on how fast anything was.
"""

import json
import signal
import time
from pathlib import Path

import pytest
import yaml

import autotune
from autotune.errors import BudgetError, ProgramError
from autotune.measurement.claim import LEAST_PROCESSES
from autotune.results import bestfile
from autotune.tuning.storage import search_dir
from tests.rigging import PROGRAMS
from tests.world import RECORD, Command, search, world

pytestmark = [pytest.mark.usefixtures("warm_starts"), pytest.mark.slow, pytest.mark.timeout(400)]
TOP_LEVEL = [
    "version", "program", "config", "as_written", "speedup", "made_on", "search", "facts",
]  # fmt: skip


def test_a_search_on_the_command_line_writes_what_it_claims_and_nothing_else() -> None:
    with world() as here:
        done = here.end(search("70s"), None)
        assert not done.faults, done.said
        text = (here.folder / "best.yaml").read_text()
        assert list(yaml.safe_load(text)) == TOP_LEVEL
        best = bestfile.read(here.folder / "best.yaml")
        assert "x faster" in done.said
        assert "autotune run best.yaml" in done.said
        assert best.speedup.low > 1.0
        assert best.as_written["workers"] == 0
        assert len(text.splitlines()) <= 16, text
        assert "it waits for data" in done.said
        run = search_dir.SearchDir(here.folder / ".autotune" / "train")
        assert (run.path / "best.yaml").read_text() == text
        measured = [r for r in run.load_study().records if r.measurement is not None]
        assert len(measured) >= 2
        assert len({r.rig for r in measured}) == 1, "one process measures all of them"
        # Its items sleep, so workers are faster on any machine: fresh processes ran both configs
        assert len(run.load_study().claim) >= LEAST_PROCESSES


def test_a_killed_search_leaves_nothing_and_resumes_with_all_trials() -> None:
    with world() as here:
        killed = here.end(search("9m"), signal.SIGKILL)
        assert not killed.faults, killed.said
        run = search_dir.SearchDir(here.folder / ".autotune" / "train")
        before = [r.config for r in run.load_study().records]
        assert before, "the baseline at least"
        resume = Command(("resume", "train"), ": workers\n", may=RECORD, has_result=True)
        resumed = here.end(resume, signal.SIGINT)
        assert not resumed.faults, resumed.said
        assert "! Ending" in resumed.said
        assert (
            json.loads((run.path / "result.json").read_text())["best"]["as_written"]["workers"] == 0
        )
        configs = [r.config for r in run.load_study().records]
        assert configs[: len(before)] == before


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
