"""Commands that end from outside: signals, readers and terminals that go away.

What a search has measured counts, whatever ends it: ``tests.endings`` runs the cases.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.endings import CASES, Came

KEPT = {
    ".autotune/.gitignore", ".autotune/train/study.db", ".autotune/train/candidate.yaml",
    ".autotune/train/report.html", ".autotune/train/result.json", "train.py",
}  # fmt: skip
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Came]:
    folder = tmp_path_factory.mktemp("ended")
    line = [sys.executable, "-m", "tests.endings", str(folder)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name: Came(**came) for name, came in json.loads(done.stdout).items()}


def test_a_search_that_is_ended_has_its_result_before_its_rigs_are_closed(
    ended: dict[str, Came],
) -> None:
    for case, status in (
        ("SIGTERM twice", 128 + signal.SIGTERM),
        ("SIGTERM in the claim", 128 + signal.SIGTERM),
        ("a terminal that is closed", 128 + signal.SIGHUP),
        ("a terminal that is closed under nohup", 0),
        ("a reader that goes away", 0),
        ("a reader of results that goes away", 0),
    ):
        came = ended[case]
        assert came.status == status, (case, came.printed)
        assert {*came.files} >= KEPT, f"{case}: when the fence is taken down"
        assert {*came.left} - {CASES[case].stderr} == KEPT, case
        assert "Traceback" not in came.printed, case
        assert "Exception ignored" not in came.printed, case
        if CASES[case].signals:
            name = signal.Signals(CASES[case].signals[0]).name
            assert f"Not confirmed (ended by {name})" in came.printed
            assert "During the search, workers=1 gave" in came.printed


def test_what_is_ended_before_it_knows_anything_says_so_in_one_line_and_leaves_nothing(
    ended: dict[str, Came],
) -> None:
    for case, name, mend in (
        ("SIGTERM before the baseline", "SIGTERM", " 'autotune resume' goes on from here."),
        ("doctor", "SIGTERM", ""),
        ("dry run", "SIGHUP", ""),
    ):
        came = ended[case]
        assert came.status == 128 + signal.Signals[name]
        assert came.printed.splitlines()[-1] == f"autotune: This command was ended by {name}.{mend}"
        assert {*came.left} <= {".autotune/.gitignore", ".autotune/train/study.db", "train.py"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
def test_a_disk_that_is_full_in_the_middle_of_a_search_takes_nothing_from_its_result(
    ended: dict[str, Came],
) -> None:
    for case, finding in (
        ("a full disk", "Not confirmed (The record"),
        ("a full disk in the claim", "x faster"),
    ):
        came = ended[case]
        assert came.status == 0, (case, came.printed)
        assert finding in came.printed
        assert "database or disk is full" in came.printed
        assert "Traceback" not in came.printed
        is_faster = finding == "x faster"
        assert ("best.yaml" in came.left) is is_faster, "which lies on another disk"
