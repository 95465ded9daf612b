"""Run directories: taken by one search each, private, and found again wherever they lie."""

import os
import stat
import threading
from pathlib import Path

import pytest

from autotune.errors import RecordError, RunDirectoryError, UsageError
from autotune.results.record import SearchInfo
from autotune.tuning.storage import search_dir
from autotune.tuning.storage.study import Study
from tests.made import make_head, make_space

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")


@pytest.fixture
def head() -> SearchInfo:
    return make_head(make_space(["workers"]))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_without_a_record_is_no_run_and_its_name_says_so(tmp_path: Path) -> None:
    run = search_dir.new("half", "train", tmp_path)
    with pytest.raises(RunDirectoryError, match="no record of a search"):
        run.load_study()
    with pytest.raises(RunDirectoryError, match="There is no search"):
        search_dir.find("half", tmp_path)
    with pytest.raises(RunDirectoryError, match=r"without the record of a search.*remove the fold"):
        search_dir.new("half", "train", tmp_path)
    assert list(run.path.iterdir()) == []


def test_a_record_that_cannot_be_made_leaves_no_folder(
    head: SearchInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RecordError("no space")

    run = search_dir.new("one", "train", tmp_path)
    monkeypatch.setattr(Study, "keep", full)
    with pytest.raises(RecordError):
        run.create_study(head)
    assert search_dir.new("one", "train", tmp_path).path.is_dir()


def test_an_existing_run_is_never_overwritten(head: SearchInfo, tmp_path: Path) -> None:
    run = search_dir.new(None, "train", tmp_path)
    run.create_study(head)
    assert search_dir.new(None, "train", tmp_path).name == "train-2"
    with pytest.raises(RunDirectoryError, match="autotune resume train"):
        search_dir.new("train", "train", tmp_path)


def test_searches_that_begin_at_once_take_a_folder_each(tmp_path: Path) -> None:
    names, at_once = list[str](), threading.Barrier(4)

    def begin(base: Path) -> None:
        at_once.wait()
        names.append(search_dir.new(None, "train", base).name)

    for number in range(25):
        threads = [threading.Thread(target=begin, args=[tmp_path / f"{number}"]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(names) == sorted(25 * ["train", "train-2", "train-3", "train-4"])


def test_where_nothing_can_be_written_the_reason_and_the_mend_are_told(tmp_path: Path) -> None:
    (tmp_path / ".autotune").write_text("a file in the place of the folder")
    with pytest.raises(RunDirectoryError, match="Start it in a folder where you may write"):
        search_dir.new(None, "train", tmp_path)


def test_a_name_that_is_none_of_a_folder_is_refused(tmp_path: Path) -> None:
    for name in ("../x", "", "..", ".", "a/b", "a/", "/tmp/x", ".hidden", "-x"):
        with pytest.raises(UsageError, match=r"choose a --name without slashes"):
            search_dir.new(name, "train", tmp_path)
        assert list(tmp_path.iterdir()) == [], name


def test_a_record_lies_where_its_folder_is_whatever_the_name(
    head: SearchInfo, tmp_path: Path
) -> None:
    odd = ("my%20project", "100%", "{x}", "{{x}}", "a?b", "a#b", 'it\'s "a" $(b)', "gr\udcf6")
    for folder in odd:
        base = tmp_path / folder
        run = search_dir.new(folder, "train", base)
        run.create_study(head)
        assert search_dir.find(folder, base).load_study().head == head
        below = {str(path.relative_to(base)) for path in base.rglob("*")}
        own = {f".autotune/{folder}{end}" for end in ("", "/study.db")}
        assert below == {".autotune", ".autotune/.gitignore", *own}
    assert {path.name for path in tmp_path.iterdir()} == {*odd}


def test_only_the_user_enters_what_a_search_keeps(head: SearchInfo, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        (tmp_path / ".autotune").mkdir(0o777)  # as an earlier version made it
        run = search_dir.new(None, "train", tmp_path)
        run.create_study(head)
        run.path.chmod(0o777)
        search_dir.find(None, tmp_path).load_study().spent_s = 1.0
    finally:
        os.umask(before)
    found = {path.name: mode(path) for path in (tmp_path / ".autotune").rglob("*")}
    assert found == {".gitignore": 0o600, "train": 0o700, "study.db": 0o600}
    assert mode(tmp_path / ".autotune") == 0o700


def test_a_record_that_others_may_write_is_refused(head: SearchInfo, tmp_path: Path) -> None:
    run = search_dir.new(None, "train", tmp_path)
    run.create_study(head)
    (run.path / "study.db").chmod(0o664)
    for _ in range(2):
        with pytest.raises(
            RunDirectoryError, match=r"could be theirs, and run as you.*chmod go-w "
        ):
            run.load_study()
    (run.path / "study.db").chmod(0o644)
    run.load_study()


def test_no_link_is_followed_to_what_a_search_writes(head: SearchInfo, tmp_path: Path) -> None:
    keys, elsewhere = tmp_path / "keys", tmp_path / "elsewhere"
    keys.write_text("mine")
    elsewhere.mkdir()
    home = tmp_path / ".autotune"
    home.mkdir()
    (home / ".gitignore").symlink_to(keys)
    (home / "train").symlink_to(elsewhere)
    run = search_dir.new(None, "train", tmp_path)
    assert run.name == "train-2"
    run.create_study(head).spent_s = 1.0
    assert keys.read_text() == "mine"
    run.path.rename(elsewhere / "train")
    (home / "train-2").symlink_to(elsewhere / "train")
    with pytest.raises(RunDirectoryError, match="train-2' is a symbolic link"):
        search_dir.find("train-2", tmp_path).load_study()
    base = tmp_path / "base"
    base.mkdir()
    for target in (elsewhere, tmp_path / "missing"):
        (base / ".autotune").symlink_to(target)
        with pytest.raises(RunDirectoryError, match="is a symbolic link"):
            search_dir.new(None, "train", base)
        with pytest.raises(RunDirectoryError, match="is a symbolic link"):
            search_dir.find("train", base)
        (base / ".autotune").unlink()
    assert [path.name for path in elsewhere.iterdir()] == ["train"]


@needs_root
def test_what_another_user_has_put_there_is_refused(head: SearchInfo, tmp_path: Path) -> None:
    run = search_dir.new(None, "train", tmp_path)
    run.create_study(head)
    for path in (run.path / "study.db", run.path, run.path.parent):
        os.chown(path, 12345, -1)
        with pytest.raises(RunDirectoryError, match="belongs to the user with the number 12345"):
            search_dir.find(None, tmp_path).load_study()
        os.chown(path, 0, -1)
    os.chown(run.path.parent, 12345, -1)
    with pytest.raises(RunDirectoryError, match="Search as that user, or in a folder of yours"):
        search_dir.new(None, "train", tmp_path)


@needs_root
def test_a_container_may_search_as_root_in_a_project_of_the_users(
    head: SearchInfo, tmp_path: Path
) -> None:
    """The program there is the user's, too, and so is the folder that holds ``.autotune``."""
    (tmp_path / ".autotune").mkdir(0o700)
    for path in (tmp_path, tmp_path / ".autotune"):
        os.chown(path, 12345, -1)
    run = search_dir.new(None, "train", tmp_path)
    run.create_study(head)
    assert search_dir.find(None, tmp_path).load_study().head == head
    os.chown(run.path, 12345, -1)
    with pytest.raises(RunDirectoryError, match=r"sudo chown -R 0 '?/.*train"):
        search_dir.find(None, tmp_path).load_study()


def test_a_file_system_that_shows_one_owner_of_all_files_is_no_stranger(
    head: SearchInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server does that knows no root, and mounts of other systems' file systems."""
    run = search_dir.new(None, "train", tmp_path)
    run.create_study(head)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert run.load_study().head == head
