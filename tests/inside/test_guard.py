"""The guard inside the program: it sees what it did to files, and the files stay as they were."""

# mypy: disable-error-code="func-returns-value"
# Calls are done for what they do, and what they return is compared too.

from __future__ import annotations

import contextlib
import glob
import io
import json
import logging
import os
import pickle
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.inside.seams.guard import GuardSeam
from tests.pictures import picture
from tests.saving import installed

NAMES = ("a", "b", "best.pt", "runs", "runs/x", "runs/y", "runs/deep", "runs/deep/z", "new/w")


def guarded(shadow: Path, *open_places: Path) -> AbstractContextManager[None]:
    return installed(GuardSeam(shadow, open_places))


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


def truncate(home: Path, name: str, _other: str) -> None:
    os.close(os.open(home / name, os.O_WRONLY | os.O_TRUNC))


def make_new(home: Path, name: str, _other: str) -> object:
    with (home / name).open("x") as file:
        return file.write("new")


def clear(home: Path, name: str, _other: str) -> None:
    for path in (home / name).iterdir():
        shutil.rmtree(path, ignore_errors=True)


def walk_bytes(home: Path, name: str, _other: str) -> object:
    walked = os.walk(os.fsencode(home / name))
    return sorted((os.fsdecode(at), sorted(dirs), sorted(files)) for at, dirs, files in walked)


def mode_of(_home: Path, path: str, _other: str) -> object:
    return oct(os.stat(path).st_mode)


def mode_of_odd_path(home: Path, name: str, other: str) -> object:
    odd = (f"{home}/{name}/", f"{home}/{name}/.", f"{home}/{name}/../{other}")
    return [outcome(mode_of, home, path, "") for path in odd]


OPERATIONS: tuple[Callable[[Path, str, str], object], ...] = (
    write, append, change, move, move_by_shutil, copy, copy_tree, remove, remove_folder,
    remove_tree, make, make_all, link, hard_link, mode, size, read_through_link, listed,
    truncate, make_new, clear, walk_bytes, mode_of_odd_path,
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
    for seed in range(60):
        draw = random.Random(seed)
        folder = tmp_path / str(seed)
        plain, home = make_home(folder / "plain"), make_home(folder / "home")
        before = picture(home)
        steps = [
            (draw.choice(OPERATIONS), draw.choice(NAMES), draw.choice(NAMES)) for _ in range(25)
        ]
        told = []
        with guarded(folder / "shadow", plain):
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


def by_number(path: str, flags: int) -> str:
    """What a file says of itself that is opened by a number."""
    number = os.open(path=path, flags=flags, mode=0o644)
    try:
        os.write(number, b"written")
        return f"{os.fstat(number).st_size} {stat.filemode(os.fstat(number).st_mode)}"
    finally:
        os.close(number)


def opened(**how: Any) -> str:
    with open(**how) as file:
        return str(file.read() if "r" in how["mode"] else file.write("written"))


def scanned(path: Any) -> list[Any]:
    with os.scandir(path) as entries:
        return sorted((e.name, e.path, e.is_dir(), e.is_file(), e.is_symlink()) for e in entries)


def walked(path: Any) -> object:
    return sorted((at, sorted(folders), sorted(files)) for at, folders, files in os.walk(path))


def handled(name: str) -> object:
    """The error that rmtree hands to a handler first."""
    told: list[Any] = []
    shutil.rmtree(name, onerror=lambda act, path, error: told.append((act.__name__, path, error)))
    return [(act, path, error[0].__name__) for act, path, error in told]


def cleans_up_what_is_gone(where: str) -> None:
    with tempfile.TemporaryDirectory(dir=where) as folder:
        Path(folder, "x").write_text("x")
        shutil.rmtree(folder)


def temporary_file(where: str) -> object:
    with tempfile.TemporaryFile(dir=where) as file:
        file.write(b"x")
    return sorted(os.listdir(where))


def enters(*folders: str) -> object:
    """Where a program is, and what it sees from there, as it goes from folder to folder."""
    start, told = os.getcwd(), []
    try:
        for folder in folders:
            os.chdir(path=folder)
            told += [
                os.getcwd().removeprefix(start), os.getcwdb().removeprefix(os.fsencode(start)),
                sorted(os.listdir()), scanned(None), os.path.exists(os.path.abspath("../a")),
                os.path.exists("../runs/x"), sorted(os.listdir("..")),
            ]  # fmt: skip
    finally:
        os.chdir(start)
    return told


def binds_nothing() -> object:
    class Opener:
        opens: Any = open
        renames: Any = os.rename

    Opener().renames("a", "c")
    with Opener().opens("c") as file:
        return file.read()


def renames_while_open() -> str:
    with open("c.part", "w") as file:
        file.write("one")
        file.flush()
        os.rename("c.part", "c")
        file.write("two")
    return Path("c").read_text()


# Each is done in a folder in which "made/w" has been written and "b" has been removed.
CALLS: dict[str, Callable[[], object]] = {
    "rename=": lambda: os.rename(src="a", dst="c"),
    "replace=": lambda: os.replace(src="a", dst="best.pt"),
    "remove=": lambda: os.remove(path="a"),
    "unlink=": lambda: os.unlink(path="a"),
    "rmdir=": lambda: os.rmdir(path="empty"),
    "mkdir=": lambda: os.mkdir(path="c", mode=0o700),
    "stat=": lambda: os.stat(path="a", follow_symlinks=False).st_size,
    "lstat=": lambda: os.lstat(path="latest").st_size,
    "readlink=": lambda: os.readlink(path="latest"),
    "listdir=": lambda: sorted(os.listdir(path="runs")),
    "listdir(None)": lambda: sorted(os.listdir(None)),
    "scandir=": lambda: scanned("linked"),
    "scandir bytes": lambda: scanned(b"."),
    "scandir(None)": lambda: scanned(None),
    "walk": lambda: walked("."),
    "walk bytes": lambda: walked(b"."),
    "walk what is gone": lambda: [walked("b"), os.listdir("b")],
    "link=": lambda: os.link(src="a", dst="c", follow_symlinks=False),
    "hard link, then append": lambda: (os.link("a", "c"), append(Path(), "a", "")),
    "symlink=": lambda: os.symlink(src="a", dst="c", target_is_directory=False),
    "chmod=": lambda: os.chmod(path="a", mode=0o600),
    "chmod of a folder": lambda: (os.chmod("runs", 0o700), oct(os.stat("runs").st_mode)),
    "utime=": lambda: (os.utime(path="a", times=(1, 2)), os.stat("a").st_mtime),
    "utime of a folder": lambda: (os.utime("runs", (1, 2)), os.stat("runs").st_mtime),
    "truncate=": lambda: os.truncate(path="a", length=1),
    "access=": lambda: [os.access(path=p, mode=os.R_OK) for p in ("a", "b", "made/w", "")],
    "lchown": lambda: os.lchown(path="latest", uid=os.getuid(), gid=os.getgid()),
    "mkfifo": lambda: (os.mkfifo(path="c"), stat.S_ISFIFO(os.stat("c").st_mode), os.unlink("c")),
    "mkfifo over": lambda: os.mkfifo("a"),
    "mknod": lambda: os.mknod(path="c", mode=0o600 | stat.S_IFREG),
    "rmtree=": lambda: shutil.rmtree(path="runs", ignore_errors=False),
    "rmtree missing": lambda: shutil.rmtree("missing"),
    "rmtree missing, ignored": lambda: shutil.rmtree("missing", ignore_errors=True),
    "rmtree missing, handled": lambda: handled("missing"),
    "rmtree gone, handled": lambda: handled("b"),
    "rmtree of a file, handled": lambda: handled("a"),
    "rmtree of a link, handled": lambda: handled("linked"),
    "rmtree of a link": lambda: shutil.rmtree("linked"),
    "TemporaryDirectory": lambda: cleans_up_what_is_gone("runs"),
    "TemporaryFile": lambda: temporary_file("runs"),
    "TemporaryFile in what is new": lambda: temporary_file("made"),
    "save=": lambda: (torch.save(obj=1, f="c"), torch.load(f="c"), os.unlink("c")),
    "open=": lambda: opened(file="a", mode="r"),
    "write=": lambda: opened(file="a", mode="w"),
    "open a folder": lambda: opened(file="runs", mode="a"),
    "write a folder": lambda: opened(file="runs", mode="w"),
    "write a folder to be": lambda: opened(file="c/", mode="w"),
    "new over": lambda: opened(file="a", mode="x"),
    "new over a link": lambda: opened(file="latest", mode="x"),
    "new": lambda: opened(file="c", mode="x"),
    "open nothing": lambda: opened(file="", mode="r"),
    "write nothing": lambda: opened(file="", mode="w"),
    "number": lambda: by_number("a", os.O_WRONLY | os.O_APPEND),
    "number, truncated": lambda: by_number("tool", os.O_WRONLY | os.O_TRUNC),
    "number, made": lambda: by_number("a", os.O_WRONLY | os.O_TRUNC | os.O_CREAT),
    "number, new": lambda: by_number("c", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "number, new over": lambda: by_number("a", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "number, new, truncated": lambda: by_number(
        "a", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_TRUNC
    ),
    "number, missing": lambda: by_number("c", os.O_WRONLY | os.O_TRUNC),
    "number, unnamed": lambda: by_number("runs", os.O_TMPFILE | os.O_RDWR),
    "number of a folder": lambda: by_number("runs", os.O_RDWR),
    "exists": lambda: [os.path.exists(p) for p in ("", "a", "b", "a/", "a/.", "c/../a", "a/../a")],
    "stat nothing": lambda: os.stat(""),
    "stat a file as a folder": lambda: os.stat("a/"),
    "stat below a file": lambda: os.stat("a/.."),
    "stat past what is missing": lambda: os.stat("missing/../a"),
    "stat past what is new": lambda: os.stat("made/../a").st_size,
    "mkdir of what is to be": lambda: os.mkdir("c/"),
    "write past what is missing": lambda: opened(file="missing/../c", mode="w"),
    "chdir": lambda: enters("runs", "deep", ".."),
    "chdir to what is new": lambda: enters("made", "..", "made", "../runs"),
    "chdir by a link": lambda: enters("linked/deep", ".."),
    "chdir to a file": lambda: enters("a"),
    "chdir to what is gone": lambda: enters("b"),
    "a class attribute": binds_nothing,
    "rename while open": renames_while_open,
}


def done(call: Callable[[], object], home: Path) -> tuple[str, dict[str, str]]:
    """Return what a call says, and what there is after it."""
    with contextlib.chdir(home):
        os.mkdir("made")
        Path("made/w").write_text("new")
        shutil.rmtree("b")
        said = outcome(lambda *_: call(), home, "", "")
    return said, contents(home)


def make_other_home(home: Path) -> Path:
    make_home(home)
    (home / "b" / "c").mkdir(parents=True)
    (home / "empty").mkdir()
    (home / "tool").write_text("run")
    (home / "tool").chmod(0o750)
    return home


@pytest.mark.parametrize("name", CALLS)
def test_every_call_does_and_says_what_it_does_without_the_guard(name: str, tmp_path: Path) -> None:
    plain, home = make_other_home(tmp_path / "plain"), make_other_home(tmp_path / "home")
    before = picture(home)
    with guarded(tmp_path / "shadow"):
        seen = done(CALLS[name], home)
        here = os.getcwd()
    assert picture(home) == before
    assert seen == done(CALLS[name], plain)
    assert here == os.getcwd()


def test_other_code_finds_itself_in_the_real_folder(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with guarded(tmp_path / "shadow"), contextlib.chdir(home):
        Path("runs/new").write_text("new")
        os.chdir("runs")
        assert os.readlink("/proc/self/cwd") == str(home / "runs")
        assert sorted(os.listdir()) == ["deep", "new", "x"]


def test_functions_that_a_program_pickles_are_those_of_the_process_that_reads_them(
    tmp_path: Path,
) -> None:
    with guarded(tmp_path / "shadow"):
        frozen = pickle.dumps([open, os.rename, os.stat])
        assert pickle.loads(frozen) == [open, os.rename, os.stat]
        assert open is io.open
        reads = "import pickle, sys; print(*pickle.load(sys.stdin.buffer))"
        read = subprocess.run([sys.executable, "-c", reads], input=frozen, stdout=-1, check=True)
        assert read.stdout.startswith(b"<built-in function open> <built-in function rename>")
    assert pickle.loads(frozen) == [open, os.rename, os.stat]


def test_os_tells_what_its_functions_support(tmp_path: Path) -> None:
    listings = (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks)
    before = [{f.__name__ for f in listing} for listing in listings]
    with guarded(tmp_path / "shadow"):
        for listing, names in zip(listings, before, strict=True):
            assert all(getattr(os, name) in listing for name in names if hasattr(os, name))
    assert [{f.__name__ for f in listing} for listing in listings] == before
