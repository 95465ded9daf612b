"""Whole searches with real processes: what is written, resumed and left behind.

What a search finds and claims is shown in virtual time (tuning/test_whole_search.py); here no test
depends on how fast anything was.
"""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml

import autotune
from autotune.errors import BudgetError, ProgramError, RunDirectoryError
from autotune.measurement.claim import LEAST_PROCESSES
from autotune.results import bestfile
from autotune.tuning.storage import search_dir
from tests.rigging import PROGRAMS, run_command

pytestmark = [pytest.mark.usefixtures("warm_starts"), pytest.mark.slow, pytest.mark.timeout(400)]
TOP_LEVEL = [
    "version", "program", "config", "baseline", "speedup", "throughput", "memory",
    "learning", "training_steps",
    "hardware", "versions", "search",
]  # fmt: skip


def test_a_search_on_the_command_line_writes_what_it_claims(workplace: Path) -> None:
    program = str(PROGRAMS / "slow_items.py")
    done = run_command("search", "--budget", "70s", "--tune", "workers", program)
    assert done.returncode == 0, done.stderr
    text = (workplace / "best.yaml").read_text()
    assert list(yaml.safe_load(text)) == TOP_LEVEL
    best = bestfile.read(workplace / "best.yaml")
    assert ("x faster" in done.stdout) is best.search.confirmed is (best.config != best.baseline)
    assert ("autotune run best.yaml" in done.stdout) is best.search.confirmed
    assert best.search.confirmed is (best.speedup.low > 1.0)
    assert best.baseline["workers"] == 0
    assert "-bound" in done.stderr or "share the time" in done.stderr
    run = search_dir.SearchDir(workplace / ".autotune" / "slow_items")
    assert (run.path / "best.yaml").read_text() == text
    measured = [r for r in run.load_study().records if r.measurement is not None]
    assert len(measured) >= 2
    assert len({r.rig for r in measured}) == 1, "one process measures all of them"
    # Its items sleep, so workers are faster on any machine: fresh processes have run both configs
    assert len(run.load_study().claim) >= LEAST_PROCESSES


def test_a_killed_search_leaves_nothing_and_resumes_with_all_trials(workplace: Path) -> None:
    run = search_dir.SearchDir(workplace / ".autotune" / "stopped")
    program = str(PROGRAMS / "slow_items.py")
    with _started("search", "--budget", "9m", "--name", "stopped", program) as killed:
        _wait_until(lambda: len(run.load_study().records) > 1, killed)
        tree = psutil.Process(killed.pid).children(recursive=True)
        assert tree, "a rig runs while the search does"
    _, alive = psutil.wait_procs(tree, timeout=10)
    assert not alive
    study = run.load_study()
    before, rounds = [r.config for r in study.records], len(study.rounds)

    with _started("resume", "stopped") as resumed:
        _wait_until(lambda: len(run.load_study().rounds) > rounds, resumed)
        tree = psutil.Process(resumed.pid).children(recursive=True)
        resumed.send_signal(signal.SIGTERM)
        stdout, stderr = resumed.communicate(timeout=180)
    assert resumed.returncode == 128 + signal.SIGTERM, stderr
    assert "ended by SIGTERM" in stdout
    _, alive = psutil.wait_procs(tree, timeout=10)
    assert not alive
    assert bestfile.read(workplace / "best.yaml").baseline["workers"] == 0
    configs = [r.config for r in run.load_study().records]
    assert configs[: len(before)] == before


@contextlib.contextmanager
def _started(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command, and kill it in the end if it has not come to its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", *command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _wait_until(holds: Callable[[], bool], search: subprocess.Popen[str]) -> None:
    while True:
        with contextlib.suppress(RunDirectoryError):  # not begun yet
            if holds():
                return
        assert search.poll() is None, "the search should live until it is stopped"
        time.sleep(1.0)


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
