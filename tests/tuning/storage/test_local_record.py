"""A record in a folder of a network is kept on a local disk; the folder has a whole copy of it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import RecordError, RunDirectoryError
from autotune.files import access
from autotune.tuning.storage import local_record, record_storage, search_dir
from autotune.tuning.storage.local_record import LOCK_TEST, LocalRecord
from autotune.tuning.storage.search_dir import FILE, SearchDir
from tests.made import make_hardware, make_head, make_profile, make_record, make_space
from tests.scripted import Script, begin
from tests.tuning.watched import FASTER, KNOBS, Heard

SEARCHED = make_space(["workers"])
SPACE = SEARCHED.resolve(make_hardware(), make_profile())
Machine = Callable[[str], None]

# Begins a search and opens it again, in a folder in which fcntl(2) fails for the lock's test
BEGINS = """
import os, sys
os.O_TMPFILE = os.O_DIRECTORY  # refused, as by NFS; and strace knows files by their names
from pathlib import Path
from autotune.tuning.storage import search_dir
from tests.made import make_head, make_space
run = search_dir.new("train", "train", Path(sys.argv[1]))
run.create_study(make_head(make_space(["workers"]))).fence = "written"
print(run.kept_locally)
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """Stands for one of several machines that share ``tmp_path / "net"``; "a" is the first."""
    # No network file system can be mounted here; which ones there are is tested by itself
    shared = tmp_path / "net"
    shared.mkdir()
    monkeypatch.setattr(
        local_record,
        "network_file_system",
        lambda folder: "nfs4" if Path(folder).resolve().is_relative_to(shared) else "",
    )

    def on(name: str) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))

    on("a")
    return on


def begun(tmp_path: Path) -> SearchDir:
    """Return a search in the shared folder, with two trials."""
    run = search_dir.new("train", "train", tmp_path / "net")
    study = run.create_study(make_head(SEARCHED))
    study.take_lease()
    study.tell(make_record(SPACE.baseline), SPACE)
    study.tell(make_record(SPACE.baseline.replace(workers=2), 1.2), SPACE)
    return run


def trials_in(path: Path) -> int:
    with sqlite3.connect(path) as database:
        (number,) = database.execute("SELECT count(*) FROM trials").fetchone()
    return int(number)


def test_sqlite_never_opens_a_record_in_a_folder_of_a_network(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, connect = list[str](), sqlite3.connect

    def noted(path: object, *given: Any, **named: Any) -> sqlite3.Connection:
        opened.append(str(path))
        connection: sqlite3.Connection = connect(path, *given, **named)  # type: ignore[call-overload]
        return connection

    monkeypatch.setattr(sqlite3, "connect", noted)
    run = begun(tmp_path)
    run.load_study().release_lease()
    assert opened
    assert not [one for one in opened if "/net/" in one]
    left = sorted(path.name for path in run.path.iterdir())
    assert left == [FILE], "neither a journal nor a lock"
    kept = run.kept_locally
    assert kept is not None
    assert kept.file.stat().st_mode & 0o777 == 0o600
    assert kept.file.parent.stat().st_mode & 0o777 == 0o700
    assert "nfs4" in str(kept)


def test_another_machine_reads_the_copy_and_this_one_its_own_file(
    machine: Machine, tmp_path: Path
) -> None:
    run = begun(tmp_path)
    assert len(run.load_study().records) == 2, "the local file, which is newer"
    machine("b")
    assert len(run.load_study().records) == 0, "as it was when the lease was taken"
    machine("a")
    run.storage.close()
    machine("b")
    assert len(run.load_study().records) == 2
    assert [one.name for one in search_dir.every(tmp_path / "net")] == ["train"]


def test_a_copy_is_made_every_minute_and_when_the_search_ends(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path)
    study = run.load_study()
    study.take_lease()
    assert trials_in(run.path / FILE) == 2
    study.tell(make_record(SPACE.baseline.replace(workers=4), 1.3), SPACE)
    assert trials_in(run.path / FILE) == 2
    monkeypatch.setattr(record_storage, "COPIED_EVERY_S", 0.0)
    study.spent_s = 1.0
    assert trials_in(run.path / FILE) == 3
    monkeypatch.undo()
    study.tell(make_record(SPACE.baseline.replace(workers=6), 1.3), SPACE)
    study.release_lease()


def test_a_search_goes_on_where_the_last_copy_came_from(machine: Machine, tmp_path: Path) -> None:
    run = begun(tmp_path)
    study = run.load_study()
    study.take_lease()
    study.release_lease()
    machine("b")
    there = run.load_study()
    there.take_lease()
    there.tell(make_record(SPACE.baseline.replace(workers=4), 1.3), SPACE)
    there.release_lease()
    machine("a")
    assert len(run.load_study().records) == 3, "its own file is older"


def test_a_machine_whose_search_was_taken_over_overwrites_nothing(
    machine: Machine, tmp_path: Path
) -> None:
    run = begun(tmp_path)
    ours = run.load_study()
    ours.take_lease()
    machine("b")
    theirs = run.load_study()
    theirs.keep("lease", None)
    theirs.take_lease()
    theirs.fence = "theirs"
    theirs.release_lease()
    machine("a")
    before = (run.path / FILE).read_bytes()
    with pytest.raises(RecordError, match="Another machine has taken this search over"):
        ours.release_lease()
    assert (run.path / FILE).read_bytes() == before


def test_a_killed_copy_leaves_a_whole_one_and_the_local_file_counts(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path)
    study = run.load_study()
    before, write = (run.path / FILE).read_bytes(), access.write

    def dies(path: Path, *given: object, **named: object) -> None:
        if path.name == FILE:
            raise KeyboardInterrupt
        write(path, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(access, "write", dies)
    with pytest.raises(KeyboardInterrupt):
        study.storage.close()
    monkeypatch.setattr(access, "write", write)
    assert (run.path / FILE).read_bytes() == before
    assert len(run.load_study().records) == 2
    run.storage.close()
    assert trials_in(run.path / FILE) == 2


def test_a_server_that_is_gone_for_a_while_costs_nothing(
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = begun(tmp_path)
    study = run.load_study()
    study.take_lease()

    def gone(_: LocalRecord) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(record_storage, "COPIED_EVERY_S", 0.0)
    with monkeypatch.context() as now:
        now.setattr(LocalRecord, "save", gone)
        for workers in (4, 6):
            study.tell(make_record(SPACE.baseline.replace(workers=workers), 1.3), SPACE)
    assert len([one for one in caplog.messages if "copied later" in one]) == 1
    study.spent_s = 2.0
    assert trials_in(run.path / FILE) == 4


def test_a_record_that_was_removed_is_not_brought_back(machine: Machine, tmp_path: Path) -> None:
    run = begun(tmp_path)
    shutil.rmtree(run.path)
    with pytest.raises(RunDirectoryError, match="There is no search"):
        search_dir.find("train", tmp_path / "net")
    assert len(begun(tmp_path).load_study().records) == 2
    assert len([*(tmp_path / "a").rglob("*.db")]) == 1


def test_a_folder_that_others_enter_holds_no_record(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path)
    first = run.kept_locally
    assert first is not None
    first.file.parent.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    second = run.kept_locally
    assert second is not None
    assert second.file.parent.parent == tmp_path


def test_local_files_of_removed_searches_go_a_day_later(machine: Machine, tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.storage.close()
    kept = run.kept_locally
    assert kept is not None
    notes = kept.file.with_suffix(".json")
    shutil.rmtree(run.path)
    other = search_dir.new("other", "train", tmp_path / "net")
    other.create_study(make_head(SEARCHED))
    assert kept.file.exists()
    os.utime(notes, (0, 0))
    assert other.kept_locally
    assert not kept.file.exists()
    assert not notes.exists()
    assert len(other.load_study().records) == 0


def test_a_search_says_once_where_its_record_is(machine: Machine, tmp_path: Path) -> None:
    heard = Heard()
    begin(tmp_path / "net" / "project", Script(FASTER), KNOBS).go_on(60.0, heard)
    (said,) = [one for one in heard.warnings if "record is kept" in one]
    assert "/a/autotune-records-" in said


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["ENOLCK", "ENOSYS"])
def test_a_folder_without_locks_gets_a_copy_as_well(tmp_path: Path, fault: str) -> None:
    """The kernel's answer is replaced by strace, in the files of that folder alone."""
    strace = shutil.which("strace")
    if (
        strace is None
        or subprocess.run([strace, "-o", "/dev/null", "true"], check=False).returncode
    ):
        pytest.skip("needs strace, and leave to trace a process")
    folder = tmp_path / "net" / ".autotune" / "train"
    tested = [f"--trace-path={folder / name}" for name in (LOCK_TEST, FILE, f"{FILE}.part")]
    traced = [strace, "-f", "-o", str(tmp_path / "trace"), "-e", f"inject=fcntl:error={fault}"]
    line = [*traced, *tested, sys.executable, "-c", BEGINS, str(tmp_path / "net")]
    environment = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    (tmp_path / "net").mkdir()
    ran = subprocess.run(
        line, env=environment, capture_output=True, text=True, check=False, cwd=Path.cwd()
    )
    assert ran.returncode == 0, ran.stderr
    assert "it has no locks" in ran.stdout
    assert "INJECTED" in (tmp_path / "trace").read_text()
    assert sorted(path.name for path in folder.iterdir()) == [FILE]
