"""Ranks beside the first read the checkpoints that the first one saves, when it has."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import h5py
import numpy
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from autotune.inside.ranks.exchange import SignedStore
from autotune.inside.ranks.group import Group
from autotune.inside.seams import rank_output
from autotune.inside.seams.checkpoint_exchange import TellSavesSeam
from autotune.inside.seams.rank_output import RankOutputSeam
from tests.saving import installed


class Ranks:
    """Two ranks of one process, of which one after the other runs the program."""

    def __init__(self, directory: Path) -> None:
        store = SignedStore(HashStore(), "the run's key")
        self.temporary = directory / "temporary"
        self.temporary.mkdir()
        self._first = TellSavesSeam(Group(0, 0, 2, 2, store), str)
        self._second = RankOutputSeam(
            directory / "shadow", [self.temporary], Group(1, 1, 2, 2, store)
        )

    def first(self) -> AbstractContextManager[None]:
        return installed(self._first)

    def second(self) -> AbstractContextManager[None]:
        return installed(self._second)

    def place_of(self, path: Path) -> str:
        """Where the second rank reads a file."""
        return self._second._place_of(str(path))


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


def test_a_checkpoint_that_is_renamed_copied_and_linked_is_waited_for_and_found(
    ranks: Ranks, tmp_path: Path
) -> None:
    part, best, copy, link = (tmp_path / f"{name}.pt" for name in ("part", "best", "copy", "link"))
    names = (best, copy, link)
    for stale in (best, copy):
        stale.write_text("of the epoch before")
    link.symlink_to(copy)

    def bring() -> None:
        os.replace(part, best)  # noqa: PTH105 - as scripts do
        shutil.copyfile(best, copy)
        link.unlink(missing_ok=True)
        link.symlink_to("best.pt")

    with ranks.second():
        torch.save({}, part)
        bring()
    assert best.read_text() == copy.read_text() == "of the epoch before", "it writes nothing"
    assert link.resolve() == copy, "and links nothing"
    reader = threading.Thread(target=ranks.place_of, args=(link,))
    reader.start()
    reader.join(0.2)
    assert reader.is_alive(), "nothing is saved yet"
    with ranks.first():
        torch.save({}, part)
        reader.join(5.0)
        assert not reader.is_alive()
        assert {ranks.place_of(p) for p in names} == {str(part)}
        bring()
    assert {ranks.place_of(p) for p in names} == {str(copy)}
    copy.unlink()
    assert {ranks.place_of(p) for p in names} == {str(best)}


def test_what_one_rank_cannot_link_changes_nothing_for_other_checkpoints(
    ranks: Ranks, tmp_path: Path
) -> None:
    def epoch(rank: int, number: int) -> None:
        torch.save({"rank": rank, "number": number}, tmp_path / f"{number}.pt")
        with suppress(FileExistsError):
            (tmp_path / "latest.pt").symlink_to(f"{number}.pt")

    for number in (1, 2, 3):
        with ranks.first():
            epoch(0, number)
        with ranks.second():
            epoch(1, number)
    with ranks.second():
        for number in (1, 2, 3):
            assert torch.load(tmp_path / f"{number}.pt") == {"rank": 0, "number": number}


def test_a_folder_of_checkpoints_is_copied_by_the_first_rank(ranks: Ranks, tmp_path: Path) -> None:
    last, best = tmp_path / "last", tmp_path / "best"
    with ranks.second():
        torch.save({"rank": 1}, last / "model.pt")
        shutil.copytree(last, best)
    last.mkdir()
    with ranks.first():
        torch.save({"rank": 0}, last / "model.pt")
        shutil.copytree(last, best)
        torch.save({"rank": "overwritten"}, last / "model.pt")
    with ranks.second():
        assert torch.load(best / "model.pt") == {"rank": 0}


def test_a_checkpoint_of_another_name_on_each_rank_is_the_first_ones(
    ranks: Ranks, tmp_path: Path
) -> None:
    """Names are made of times and process numbers."""
    with ranks.second():
        torch.save({"rank": 1}, tmp_path / "at 10:59:01.pt")
    with ranks.first():
        torch.save({"rank": 0}, tmp_path / "at 10:59:00.pt")
    with ranks.second():
        assert torch.load(tmp_path / "at 10:59:01.pt") == {"rank": 0}
    assert not (tmp_path / "at 10:59:01.pt").exists()


def test_a_checkpoint_among_temporary_files_is_a_ranks_own(ranks: Ranks, tmp_path: Path) -> None:
    best = tmp_path / "best.pt"
    with ranks.second():
        torch.save({"epoch": 1}, ranks.temporary / "own.pt")
        assert torch.load(ranks.temporary / "own.pt") == {"epoch": 1}
        shutil.move(ranks.temporary / "own.pt", best)
        assert torch.load(best) == {"epoch": 1}, "waiting for nobody"
    assert not best.exists()


def test_a_checkpoint_that_the_first_rank_never_saves_is_told_with_the_mend(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_output, "PATIENCE_S", 0.1)
    with ranks.second():
        torch.save({}, tmp_path / "best.pt")
        with pytest.raises(TimeoutError, match="Leave devices out of the search"):
            torch.load(tmp_path / "best.pt")


def test_what_libraries_write_by_their_own_code_is_the_first_ranks(
    ranks: Ranks, tmp_path: Path
) -> None:
    tensors, table, base, array = (
        tmp_path / name for name in ("m.safetensors", "t.h5", "log.db", "a.bin")
    )
    with sqlite3.connect(base) as there:
        there.execute("create table log (step)")
    before = base.read_bytes()
    with ranks.second():
        safetensors.torch.save_file({"w": torch.ones(2)}, tensors)
        safetensors.numpy.save_file({"w": numpy.ones(2)}, filename=str(tensors) + "2")
        with h5py.File(table, "w") as written:
            written["x"] = [1, 2]
        for uri in (f"file:{base}", str(base)):
            with sqlite3.connect(uri, uri=uri.startswith("file")) as log:
                log.execute("insert into log values (1)")
            log.close()
        numpy.memmap(array, "uint8", "w+", shape=(4,))[:] = 1
        assert safetensors.torch.load_file(tensors)["w"].tolist() == [1, 1]
        with h5py.File(table) as found:
            assert list(found["x"]) == [1, 2]
        with sqlite3.connect(base) as log:
            assert log.execute("select count(*) from log").fetchone() == (2,)
        log.close()
        with sqlite3.connect(":memory:") as memory:
            memory.execute("create table log (step)")
        memory.close()
    there.close()
    assert base.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"log.db", "shadow", "temporary"}
