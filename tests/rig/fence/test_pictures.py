"""Nothing of the user's differs after programs wrote in every way, behind each fence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pictures import picture
from tests.rig.fence.ordinary import NOBODY
from tests.rig.fence.writers import UNSEEN, WRITERS, prepare

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can become all these users")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder outside of pytest's own, which only their owner may enter."""
    folder = Path(tempfile.mkdtemp(prefix="fenced-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def prepared(place: Path, *, owner: int) -> Path:
    """Make a folder for each writer, and a home, that belong to a user."""
    folder = place / "programs"
    for writer in WRITERS:
        home = folder / writer.__name__ / "home"
        home.mkdir(parents=True)
        prepare(home)
    (folder / "mounted").mkdir()
    (place / "me" / ".cache").mkdir(parents=True)
    (place / "tmp").mkdir()
    (place / "me" / "notes.txt").write_text("mine")
    if IS_ROOT:
        for path in (place, *place.rglob("*")):
            os.chown(path, owner, owner, follow_symlinks=False)
    place.chmod(0o755)
    if IS_ROOT:
        os.chown(place, 0, 0)  # in between lies a folder of another owner
    return folder


def told_behind(
    kind: str, user: str, place: Path, *, owner: int, shared: bool = False
) -> dict[str, Any]:
    folder = prepared(place, owner=owner)
    if shared:
        os.chown(folder / "saves", owner, 5000)
        (folder / "saves").chmod(0o2775)  # as folders of groups are on clusters
    before = picture(folder, place / "me")
    report = place / "tmp" / "report"
    command = [sys.executable, "-m", "tests.rig.fence.behind", kind, str(folder), str(report)]
    if IS_ROOT:
        command = [sys.executable, "-m", "tests.rig.fence.ordinary", user, *command]
    environment = {
        **os.environ,
        "HOME": str(place / "me"),
        "TMPDIR": str(place / "tmp"),
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(report.read_text())
    assert told["problem"] is None
    assert told["code"] == 0, ended.stderr
    assert picture(folder, place / "me") == before
    left = [*Path("/tmp").glob("autotune-test-*"), *Path("/var/tmp").glob("autotune-test-*")]
    assert not left
    assert sorted(p.name for p in (place / "tmp").iterdir()) == ["report"]
    if told["kind"] == "overlay":
        assert not list(Path("/dev/shm").glob("autotune-test-*"))
        # no way leads to a real file that can be written to
        assert [p for p in told["writable"] if not p.startswith(("/dev/shm", "/sys/"))] == []
    for leftover in Path("/dev/shm").glob("autotune-test-*"):
        leftover.unlink()
    return told


@pytest.fixture
def data_in_memory() -> Iterator[None]:
    folder = Path(tempfile.mkdtemp(prefix="autotune-data-", dir="/dev/shm"))
    folder.chmod(0o755)
    (folder / "x").write_text("data")
    yield
    assert (folder / "x").read_text() == "data"
    shutil.rmtree(folder)


@needs_root
@pytest.mark.parametrize("user", ["root", "user", "submount"])
@pytest.mark.usefixtures("data_in_memory")
def test_behind_overlays_every_program_works_and_every_file_stays(user: str, place: Path) -> None:
    told = told_behind("overlay", user, place, owner=0 if user == "root" else NOBODY)
    assert not told["errors"]
    assert "data" in told["shared"]


@needs_root
def test_a_folder_of_a_group_is_nothing_for_an_ordinary_users_overlay(place: Path) -> None:
    told = told_behind("best", "user", place, owner=NOBODY, shared=True)
    assert told["kind"] == "landlock"
    assert set(told["errors"]) == UNSEEN, told["errors"]


@needs_root
@pytest.mark.parametrize("user", ["capless", "denied"])
def test_where_overlays_are_denied_landlock_denies_what_the_guard_does_not_see(
    user: str, place: Path
) -> None:
    told = told_behind("best", user, place, owner=0 if user == "capless" else NOBODY)
    assert told["kind"] == "landlock"
    assert "would protect more files, but does not work here: " in told["doubts"][0]
    assert "overlay: " not in told["doubts"][0]
    assert set(told["errors"]) == UNSEEN, told["errors"]


def test_the_guard_alone_covers_what_python_does(place: Path) -> None:
    told = told_behind("guard", "root", place, owner=os.geteuid())
    assert not told["errors"]


@pytest.mark.skipif(IS_ROOT, reason="root runs the same as other users too")
@pytest.mark.parametrize("kind", ["overlay", "landlock"])
def test_every_file_stays_whoever_runs_the_tests(kind: str, place: Path) -> None:
    told = told_behind(kind, "", place, owner=os.geteuid())
    assert set(told["errors"]) <= UNSEEN
