"""Run directories: a run is found when its record is whole, and never before."""

from pathlib import Path

import pytest

from autotune.errors import RunDirectoryError
from autotune.tuning.storage import search_dir
from tests.made import make_head, make_space


def test_a_run_without_a_record_is_no_run_and_stays_empty(tmp_path: Path) -> None:
    run = search_dir.new("half", "train", tmp_path)
    with pytest.raises(RunDirectoryError, match="no record of a search"):
        run.load_study()
    with pytest.raises(RunDirectoryError, match="There is no run"):
        search_dir.find("half", tmp_path)
    assert list(run.path.iterdir()) == []


def test_the_record_is_whole_when_its_file_appears(tmp_path: Path) -> None:
    head = make_head(make_space(["workers"]))
    run = search_dir.new("one", "train", tmp_path)
    assert run.create_study(head).head == head
    assert [p.name for p in run.path.iterdir()] == ["study.db"]
    assert search_dir.find("one", tmp_path).load_study().head == head


def test_an_existing_run_is_never_overwritten(tmp_path: Path) -> None:
    run = search_dir.new(None, "train", tmp_path)
    run.create_study(make_head(make_space(["workers"])))
    assert search_dir.new(None, "train", tmp_path).name == "train-2"
    with pytest.raises(RunDirectoryError, match="autotune resume train"):
        search_dir.new("train", "train", tmp_path)


def test_where_nothing_can_be_written_the_reason_and_the_mend_are_told(tmp_path: Path) -> None:
    (tmp_path / ".autotune").write_text("a file in the place of the folder")
    with pytest.raises(RunDirectoryError, match="Start it in a folder where you may write"):
        search_dir.new(None, "train", tmp_path)
