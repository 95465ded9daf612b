"""The one door to a record: what it waits for, and what it says of all that can fail behind it."""

import math
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from optuna.samplers import RandomSampler

from autotune.errors import RecordError
from autotune.tuning.storage import record_storage, search_dir
from autotune.tuning.storage.search_dir import FILE, SearchDir
from autotune.tuning.storage.study import Study
from tests.made import make_hardware, make_head, make_profile, make_record, make_space

SEARCHED = make_space(["workers", "batch_size"])
SPACE = SEARCHED.resolve(make_hardware(), make_profile())
PAGE = 4096  # of SQLite, by default


@pytest.fixture
def run(tmp_path: Path) -> SearchDir:
    run = search_dir.new(None, "train", tmp_path)
    study = run.create_study(make_head(SEARCHED))
    for n in range(3):
        study.tell(make_record(SPACE.baseline.replace(workers=n), 1.0 + n), SPACE)
    return run


@contextmanager
def locked(run: SearchDir) -> Iterator[None]:
    """Hold the record as another program may."""
    held = sqlite3.connect(run.path / FILE, isolation_level=None, check_same_thread=False)
    held.execute("begin exclusive")
    try:
        yield
    finally:
        held.close()


def write_anything(study: Study) -> None:
    study.fence = "x" * 200_000
    study.tell(make_record(SPACE.baseline), SPACE)
    trial, config = study.propose(SPACE, SPACE.baseline, RandomSampler(0))
    study.tell(make_record(config), SPACE, trial)


def test_a_lock_is_waited_for_and_told_once(
    run: SearchDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(record_storage, "TRY_S", 0.05)
    monkeypatch.setattr(record_storage, "TOLD_AFTER_S", 0.2)
    study = run.load_study()
    lock = locked(run)
    lock.__enter__()
    threading.Timer(0.6, lock.__exit__, (None, None, None)).start()
    write_anything(study)
    assert [line for line in caplog.messages if "Another process holds" in line] == caplog.messages
    assert len(caplog.messages) == 1
    assert len(run.load_study().records) == 5


def test_a_lock_that_stays_is_no_damage_and_loses_nothing(
    run: SearchDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_storage, "TRY_S", 0.05)
    monkeypatch.setattr(record_storage, "PATIENCE_S", 0.2)
    study = run.load_study()
    study.take_lease()
    record = make_record(SPACE.baseline.replace(workers=4), 1.5)
    with locked(run):
        with pytest.raises(RecordError, match="Another process has held") as told:
            study.tell(record, SPACE)
        with pytest.raises(RecordError, match="Another process has held"):
            run.load_study()
        study.spent_s = 7.0  # told once; from then on only memory has it
        monkeypatch.setattr(record_storage, "PATIENCE_S", math.inf)
        study.storage.is_urgent = lambda: True
        with pytest.raises(RecordError, match="Another process has held"):
            study.storage.set_study_user_attr(1, "name", "value")
    assert "damaged" not in str(told.value)
    assert "Nothing that is in it is lost" in str(told.value)
    assert study.fault is told.value
    assert (study.spent_s, study.records[-1].config) == (7.0, record.config)
    study.release_lease()
    again = run.load_study()
    assert (again.spent_s, len(again.records)) == (0.0, 3), "as after a kill at that moment"


def test_a_full_or_read_only_disk_is_told_and_memory_keeps_what_was_measured(
    tmp_path: Path,
) -> None:
    disk, fixed = tmp_path / "disk", tmp_path / "fixed"
    disk.mkdir()
    fixed.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        run = search_dir.new(None, "train", disk)
        study = run.create_study(make_head(SEARCHED))
        study.tell(make_record(SPACE.baseline), SPACE)
        study.take_lease()
        filler = disk / "filler"
        with suppress(OSError), filler.open("wb", 0) as file:
            while True:
                file.write(bytes(PAGE))
        with pytest.raises(RecordError, match=r"disk is full.*free space"):
            write_anything(study)
        assert study.fence == "x" * 200_000
        with pytest.raises(RecordError, match=r"disk is full|unable to open database file"):
            search_dir.new("other", "train", disk).create_study(make_head(SEARCHED))
        filler.unlink()
        assert len(run.load_study().records) == 1
        subprocess.run(["mount", "--bind", disk, fixed], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", fixed], check=True)
        study = search_dir.find(None, fixed).load_study()
        assert len(study.records) == 1
        with pytest.raises(RecordError, match=r"cannot be opened or written.*readonly"):
            write_anything(study)
    finally:
        subprocess.run(["umount", "--lazy", fixed], check=False)
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_whatever_page_is_gone_the_record_reads_or_says_that_it_is_damaged(run: SearchDir) -> None:
    database = run.path / FILE
    whole = database.read_bytes()
    told = list[str]()
    for at in range(0, len(whole), 2 * PAGE):
        database.write_bytes(whole[:at] + bytes(PAGE) + whole[at + PAGE :])
        try:
            study = run.load_study()
            assert (study.found, study.failure, study.head.program.name) == (None, "", "train")
            write_anything(study)
        except RecordError as error:
            told.append(str(error))
    assert len(told) > 3
    for text in told:
        assert "it is damaged, or another version" in text
        assert "folder" not in text


def test_a_record_that_is_gone_is_told(run: SearchDir) -> None:
    study = run.load_study()
    for path in run.path.iterdir():
        path.unlink()
    run.path.rmdir()
    with pytest.raises(RecordError):
        write_anything(study)
