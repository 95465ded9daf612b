"""The guard inside the program: it sees what it did to files, and the files stay as they were."""

from __future__ import annotations

import glob
import json
import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from autotune.inside.seams.guard import GuardSeam
from tests.pictures import picture

NAMES = ("a", "b", "best.pt", "runs", "runs/x", "runs/y", "runs/deep", "runs/deep/z", "new/w")


@contextmanager
def guarded(shadow: Path) -> Iterator[None]:
    seam = GuardSeam(shadow, [])
    seam.install()
    try:
        yield
    finally:
        seam.remove()


def make_home(home: Path) -> Path:
    (home / "runs" / "deep").mkdir(parents=True)
    for name in ("a", "best.pt", "runs/x", "runs/deep/z"):
        (home / name).write_text(f"old {name}")
    (home / "linked").symlink_to("runs")
    (home / "latest").symlink_to("best.pt")
    return home


def write(home: Path, name: str, _other: str) -> object:
    return (home / name).write_text(f"new {name}")


def append(home: Path, name: str, _other: str) -> object:
    with (home / name).open("a") as file:
        return file.write("more")


def change(home: Path, name: str, _other: str) -> object:
    with (home / name).open("r+") as file:
        file.write("X")
        return file.read()


def move(home: Path, name: str, other: str) -> None:
    os.replace(home / name, home / other)


def move_by_shutil(home: Path, name: str, other: str) -> object:
    return str(shutil.move(home / name, home / other))


def copy(home: Path, name: str, other: str) -> object:
    return Path(shutil.copy2(home / name, home / other)).name


def copy_tree(home: Path, name: str, other: str) -> object:
    if other.startswith(name):  # into itself: never ends
        return None
    return Path(shutil.copytree(home / name, home / other)).name


def remove(home: Path, name: str, _other: str) -> None:
    (home / name).unlink()


def remove_folder(home: Path, name: str, _other: str) -> None:
    (home / name).rmdir()


def remove_tree(home: Path, name: str, _other: str) -> None:
    shutil.rmtree(home / name)


def make(home: Path, name: str, _other: str) -> None:
    (home / name).mkdir()


def make_all(home: Path, name: str, _other: str) -> None:
    (home / name).mkdir(parents=True, exist_ok=True)


def link(home: Path, name: str, other: str) -> None:
    (home / other).symlink_to(name)


def hard_link(home: Path, name: str, other: str) -> None:
    (home / other).hardlink_to(home / name)


def mode(home: Path, name: str, _other: str) -> object:
    (home / name).chmod(0o640)
    return oct((home / name).stat().st_mode)


def size(home: Path, name: str, _other: str) -> object:
    path = home / name
    return path.is_dir() or (path.exists(), path.stat().st_size)


def read_through_link(home: Path, name: str, _other: str) -> object:
    return [p.read_text() for p in (home / "linked" / name, home / "latest") if p.is_file()]


def listed(home: Path, _name: str, _other: str) -> object:
    return sorted(p.name for p in home.iterdir()), sorted(glob.glob(f"{home}/**/*"))


OPERATIONS: tuple[Callable[[Path, str, str], object], ...] = (
    write, append, change, move, move_by_shutil, copy, copy_tree, remove, remove_folder,
    remove_tree, make, make_all, link, hard_link, mode, size, read_through_link, listed,
)  # fmt: skip


def outcome(act: Callable[[Path, str, str], object], home: Path, name: str, other: str) -> str:
    try:
        return str(act(home, name, other)).replace(str(home), "")
    except shutil.Error as error:
        return type(error).__name__
    except OSError as error:
        return f"{type(error).__name__} {error.errno}"


def contents(home: Path) -> dict[str, str]:
    """What a program sees when it walks: links are told from what they lead to."""
    found = {}
    for folder, folders, files in os.walk(home):
        for name in folders:
            path = os.path.join(folder, name)
            found[path] = os.readlink(path) if os.path.islink(path) else "folder"
        for name in files:
            path = os.path.join(folder, name)
            is_link = os.path.islink(path)
            found[path] = os.readlink(path) if is_link else Path(path).read_text()
    return {os.path.relpath(path, home): what for path, what in found.items()}


def test_whatever_a_program_does_it_sees_what_it_would_see_without_the_guard(
    tmp_path: Path,
) -> None:
    for seed in range(150):
        draw = random.Random(seed)
        folder = tmp_path / str(seed)
        plain, home = make_home(folder / "plain"), make_home(folder / "home")
        before = picture(home)
        steps = [
            (draw.choice(OPERATIONS), draw.choice(NAMES), draw.choice(NAMES)) for _ in range(25)
        ]
        told = []
        with guarded(folder / "shadow"):
            for act, name, other in steps:
                told.append(f"{act.__name__} {name} {other}")
                seen = outcome(act, home, name, other)
                assert seen == outcome(act, plain, name, other), (seed, told)
            assert contents(home) == contents(plain), (seed, told)
        assert picture(home) == before, (seed, told)


def test_checkpoints_that_are_rotated_promoted_and_backed_up_are_all_seen_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        torch.save(number, tmp_path / f"ckpt_{number}.pt")
    before = picture(tmp_path)
    monkeypatch.chdir(tmp_path)
    with guarded(tmp_path.parent / "shadow"):
        for number in (2, 1):
            os.rename(f"ckpt_{number}.pt", f"ckpt_{number + 1}.pt")
        torch.save(0, "ckpt_1.pt")
        shutil.copy("ckpt_2.pt", "best.pt")
        os.symlink("ckpt_3.pt", "latest.pt")
        assert [torch.load(f"ckpt_{n}.pt") for n in (1, 2, 3)] == [0, 1, 2]
        assert torch.load("best.pt") == 1
        assert torch.load("latest.pt") == 2
        assert os.path.getsize("ckpt_1.pt") > 0
        os.makedirs("out/log")
        os.chdir("out")
        Path("log/metrics.json").write_text(json.dumps({"step": 1}))
        handler = logging.FileHandler("train.log")
        handler.close()
        assert sorted(os.listdir()) == ["log", "train.log"]
        assert Path("../best.pt").exists()
        os.chdir(tmp_path)
    assert picture(tmp_path) == before


def test_what_was_not_changed_is_read_where_it_is(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with guarded(tmp_path / "shadow"), (home / "a").open() as file:
        assert os.path.samestat(os.fstat(file.fileno()), os.stat(home / "a"))
    assert not any((tmp_path / "shadow").iterdir())
