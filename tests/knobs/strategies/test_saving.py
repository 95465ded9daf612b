"""Ranks beside the first write their files where nobody else looks, and read what they wrote."""

import importlib
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy
import pytest
import safetensors.torch
import torch

from autotune.inside.seams import guard
from autotune.inside.seams.rank_files import RankFilesSeam
from tests.watching import installed


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A folder into which the second of two ranks writes; it stays as the first rank leaves it."""
    out, temporary = tmp_path / "out", tmp_path / "temporary"
    for folder in (out, temporary):
        folder.mkdir()
    (out / "log.txt").write_text("of the first rank\n")
    with installed(RankFilesSeam(tmp_path / "shadow", [temporary])):
        yield out
    assert [path.name for path in out.iterdir()] == ["log.txt"]
    assert (out / "log.txt").read_text() == "of the first rank\n"


def test_what_a_rank_writes_it_reads_again(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (out / "log.txt").open("a") as log:
        log.write("of the second\n")
    assert (out / "log.txt").read_text() == "of the first rank\nof the second\n"
    (out / "made" / "deep").mkdir(parents=True)
    numpy.save(out / "made" / "array.npy", numpy.ones(2))
    assert numpy.load(out / "made" / "array.npy").tolist() == [1, 1]
    safetensors.torch.save_file({"w": torch.ones(2)}, out / "w.safetensors")
    assert safetensors.torch.load_file(out / "w.safetensors")["w"].tolist() == [1, 1]
    assert sorted(path.name for path in out.iterdir()) == ["log.txt", "made", "w.safetensors"]
    monkeypatch.chdir(out / "made")
    assert Path("array.npy").is_file()
    assert Path.cwd() == out / "made"
    with h5py.File(out / "made.h5", "w") as file:
        file["n"] = 1
    with h5py.File(out / "made.h5") as file:
        assert file["n"][()] == 1
    for name in (str(out / "log.db"), ":memory:", ""):
        for count in (1, 2) if name.endswith("log.db") else (1,):
            rows = sqlite3.connect(database=name)
            rows.execute("create table if not exists t (n)")
            rows.execute("insert into t values (1)")
            rows.commit()
            assert len(rows.execute("select n from t").fetchall()) == count
            rows.close()


def test_a_database_is_the_ranks_own_by_whichever_module_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sqlite3.dbapi2", "sqlite3"):
        monkeypatch.delitem(sys.modules, name)
    with installed(RankFilesSeam(tmp_path / "shadow", [])):
        for name in ("sqlite3", "sqlite3.dbapi2"):
            rows = importlib.import_module(name).connect(tmp_path / f"{name}.db")
            rows.execute("create table t (n)")
            rows.close()
    assert [path.name for path in tmp_path.iterdir()] == ["shadow"]


def test_a_checkpoint_is_found_where_it_was_renamed_copied_and_linked(out: Path) -> None:
    part, best, copy, link = (out / f"{name}.pt" for name in ("part", "best", "copy", "link"))
    for number in (1, 2):
        torch.save({"number": number}, part)
        os.replace(part, best)  # noqa: PTH105 - as scripts do
        shutil.copy2(best, copy)
        link.unlink(missing_ok=True)
        link.symlink_to("best.pt")
        shutil.rmtree(out / "folder", ignore_errors=True)
        (out / "folder").mkdir()
        shutil.copytree(out / "folder", out / "copied", dirs_exist_ok=True)
        for path in (best, copy, link):
            assert path.exists()
            assert torch.load(path) == {"number": number}


def test_what_the_first_rank_made_moved_or_removed_before_is_no_error(out: Path) -> None:
    gone = out / "gone.txt"
    out.mkdir()
    gone.unlink()
    os.replace(gone, out / "moved.txt")  # noqa: PTH105
    shutil.rmtree(out / "never")
    assert not (out / "moved.txt").exists()
    (out / "log.txt").rename(out / "moved.txt")
    assert (out / "moved.txt").read_text() == "of the first rank\n"
    assert not (out / "log.txt").exists()
    shutil.rmtree(out)
    out.mkdir()
    assert not any(out.iterdir())


def test_a_file_that_the_first_rank_makes_while_another_removes_it_stays(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_mode", lambda _: 0)  # as seen the moment before
    (out / "log.txt").unlink()


def test_a_large_file_that_is_opened_for_change_is_no_copy(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "MAX_COPIED_BYTES", 10)
    mapped = numpy.memmap(out / "log.txt", mode="r+")
    assert mapped.tobytes() == b"of the first rank\n"
    assert not list((out.parent / "shadow").rglob("log.txt"))


def appends(path: Path) -> None:
    with path.open("a") as file:
        file.write("of the second")


def appends_by_number(path: Path) -> None:
    number = os.open(path, os.O_RDWR | os.O_APPEND)
    os.write(number, b"of the second")
    os.close(number)


def cuts_off(path: Path) -> None:
    os.truncate(path, 3)


@pytest.mark.parametrize("write", [appends, appends_by_number, cuts_off])
def test_a_large_file_that_is_written_is_a_copy(
    out: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(guard, "MAX_COPIED_BYTES", 10)
    write(out / "log.txt")
    assert (out / "log.txt").read_text() != "of the first rank\n"


def test_a_temporary_file_is_a_ranks_own(out: Path) -> None:
    own = out.parent / "temporary" / "own.pt"
    torch.save({"epoch": 1}, own)
    assert own.is_file()
    shutil.move(own, out / "best.pt")
    assert torch.load(out / "best.pt") == {"epoch": 1}


def test_no_place_of_a_ranks_own_lies_among_its_shadows(tmp_path: Path) -> None:
    """What lies there stands for another file: who deletes it may delete that one."""
    with pytest.raises(ValueError, match="stands for another"):
        RankFilesSeam(tmp_path / "shadow", [tmp_path / "shadow" / "temporary"])
