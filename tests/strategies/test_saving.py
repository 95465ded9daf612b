"""Ranks beside the first read the checkpoints that the first one saves, when it has."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from autotune.inside.group import Group
from autotune.inside.seams import silence
from autotune.inside.seams.silence import SilenceSeam, TellSavesSeam


class Ranks:
    """Two ranks of one process, of which one after the other runs the program."""

    def __init__(self, directory: Path) -> None:
        store: Any = HashStore()
        self.temporary = directory / "temporary"
        self.temporary.mkdir()
        self._first = TellSavesSeam(Group(0, 0, 2, 2, store), str)
        self._second = SilenceSeam(directory / "shadow", [self.temporary], Group(1, 1, 2, 2, store))

    @contextmanager
    def first(self) -> Iterator[None]:
        self._first.install()
        yield
        self._first.remove()

    @contextmanager
    def second(self) -> Iterator[None]:
        self._second.install()
        yield
        self._second.remove()

    def place_of(self, path: Path) -> str:
        """Where the second rank reads a file."""
        return self._second._place_of(str(path))


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


def test_a_checkpoint_that_is_renamed_copied_and_linked_is_waited_for_at_each_place(
    ranks: Ranks, tmp_path: Path
) -> None:
    part, best, copy, link = (tmp_path / f"{name}.pt" for name in ("part", "best", "copy", "link"))
    for stale in (best, copy):
        stale.write_text("of the epoch before")
    link.symlink_to(copy)

    def save() -> None:
        torch.save({}, part)
        os.replace(part, best)  # noqa: PTH105 - as scripts do
        shutil.copyfile(best, copy)

    def make_link() -> None:
        link.unlink(missing_ok=True)
        link.symlink_to("best.pt")

    with ranks.second():
        save()
        make_link()
    assert best.read_text() == copy.read_text() == "of the epoch before", "it writes nothing"
    assert link.resolve() == copy, "and links nothing"
    reader = threading.Thread(target=ranks.place_of, args=(link,))
    reader.start()
    with ranks.first():
        save()
        reader.join(0.2)
        assert reader.is_alive(), "the link is not there yet"
        make_link()
    reader.join(5.0)
    assert not reader.is_alive()
    assert [ranks.place_of(p) for p in (best, copy)] == [str(best), str(copy)]


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
    monkeypatch.setattr(silence, "PATIENCE_S", 0.1)
    with ranks.second():
        torch.save({}, tmp_path / "best.pt")
        with pytest.raises(TimeoutError, match="Leave strategy and world_size out of the search"):
            torch.load(tmp_path / "best.pt")
