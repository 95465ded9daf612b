"""The guard inside the program: it sees what it did to files, and the files stay as they were."""

# mypy: disable-error-code="func-returns-value"
# Calls are done for what they do, and what they return is compared too.

from __future__ import annotations

import contextlib
import errno
import glob
import os
import posix
import random
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autotune.inside.seams.guard import GuardSeam, Shadows
from tests.pictures import picture
from tests.watching import installed

NAMES = ("a", "b", "best.pt", "runs", "runs/x", "runs/y", "runs/deep", "runs/deep/z", "new/w")


def guarded(shadow: Path, *open_places: Path) -> AbstractContextManager[GuardSeam]:
    return installed(GuardSeam(Shadows(shadow, open_places)))


def make_home(home: Path) -> Path:
    (home / "runs" / "deep").mkdir(parents=True)
    (home / "gone" / "c").mkdir(parents=True)
    (home / "empty").mkdir()
    for name in ("a", "best.pt", "runs/x", "runs/deep/z"):
        (home / name).write_text(f"old {name}")
    (home / "a").chmod(0o750)
    (home / "linked").symlink_to("runs")
    (home / "latest").symlink_to("best.pt")
    return home


def opened(mode: str, file: Path | str) -> object:
    with open(file=file, mode=mode) as stream:
        return stream.write("more") if mode != "r" else stream.read()


def clear(home: Path, name: str, other: str) -> None:
    for path in (home / name).iterdir():
        shutil.rmtree(path, ignore_errors=True)


def copy_tree(home: Path, name: str, other: str) -> object:
    if other.startswith(name):  # into itself: never ends
        return None
    return Path(shutil.copytree(home / name, home / other)).name


def walked(path: Any) -> object:
    return sorted((at, sorted(folders), sorted(files)) for at, folders, files in os.walk(path))


OPERATIONS: tuple[Callable[[Path, str, str], object], ...] = (
    lambda home, name, other: (home / name).write_text(f"new {name}"),
    lambda home, name, other: [opened(mode, home / name) for mode in ("a", "r+")],
    lambda home, name, other: opened("x", home / name),
    lambda home, name, other: os.close(os.open(home / name, os.O_WRONLY | os.O_TRUNC)),
    lambda home, name, other: os.replace(home / name, home / other),
    lambda home, name, other: str(shutil.move(home / name, home / other)),
    lambda home, name, other: Path(shutil.copy2(home / name, home / other)).name,
    copy_tree,
    lambda home, name, other: (home / name).unlink(),
    lambda home, name, other: (home / name).rmdir(),
    lambda home, name, other: shutil.rmtree(home / name),
    clear,
    lambda home, name, other: (home / name).mkdir(),
    lambda home, name, other: (home / name).mkdir(parents=True, exist_ok=True),
    lambda home, name, other: (home / other).symlink_to(name),
    lambda home, name, other: ((home / name).chmod(0o740), oct((home / name).stat().st_mode)),
    lambda home, name, other: (home / name).is_dir() or (home / name).stat().st_size,
    lambda home, name, other: [
        p.read_text() for p in (home / "linked" / name, home / "latest") if p.is_file()
    ],
    lambda home, name, other: (
        sorted(p.name for p in home.iterdir()),
        sorted(glob.glob(f"{home}/**/*")),
    ),
    lambda home, name, other: walked(os.fsencode(home / name)),
)


def outcome(act: Callable[[], object], home: Path) -> str:
    try:
        return str(act()).replace(str(home), "")
    except shutil.Error as error:
        return type(error).__name__
    except OSError as error:  # which of two reasons is told first is the kernel's choice
        in_the_way = {errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY}
        return "in the way" if error.errno in in_the_way else f"{error.errno}"


def contents(home: Path) -> dict[str, str]:
    """What a program sees when it walks: links are told from what they lead to."""
    found = {}
    for folder, folders, files in os.walk(home):
        for path in (os.path.join(folder, name) for name in (*folders, *files)):
            what = "folder" if os.path.isdir(path) else os.path.isfile(path) and opened("r", path)
            found[os.path.relpath(path, home)] = (
                os.readlink(path) if os.path.islink(path) else str(what)
            )
    return found


def test_whatever_a_program_does_it_sees_what_it_would_see_without_the_guard(
    tmp_path: Path,
) -> None:
    for seed in range(60):
        draw = random.Random(seed)
        folder = tmp_path / str(seed)
        plain, home = make_home(folder / "plain"), make_home(folder / "home")
        before = picture(home)
        told = []
        with guarded(folder / "shadow", plain):
            for _ in range(25):
                number = draw.randrange(len(OPERATIONS))
                name, other = draw.choice(NAMES), draw.choice(NAMES)
                told.append(f"{number} {name} {other}")
                seen = outcome(partial(OPERATIONS[number], home, name, other), home)
                wanted = outcome(partial(OPERATIONS[number], plain, name, other), plain)
                assert seen == wanted, (seed, told)
            assert contents(home) == contents(plain), (seed, told)
        assert picture(home) == before, (seed, told)


def by_number(path: str, flags: int) -> str:
    """What a file says of itself that is opened by a number."""
    number = os.open(path=path, flags=flags, mode=0o644)
    try:
        os.write(number, b"written")
        return f"{os.fstat(number).st_size} {stat.filemode(os.fstat(number).st_mode)}"
    finally:
        os.close(number)


def scanned(path: Any) -> list[Any]:
    with os.scandir(path) as entries:
        return sorted((e.name, e.path, e.is_dir(), e.is_file(), e.is_symlink()) for e in entries)


def handled(name: str) -> object:
    """The error that rmtree hands to a handler first."""
    told: list[Any] = []
    shutil.rmtree(name, onerror=lambda _, path, error: told.append((path, error[0].__name__)))
    return told


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


def renames_while_open() -> str:
    with open("c.part", "w") as file:
        file.write("one")
        file.flush()
        os.rename("c.part", "c")
        file.write("two")
    return Path("c").read_text()


def keywords() -> object:
    os.mkdir(path="c", mode=0o700)
    os.rename(src="a", dst="c/a")
    os.symlink(src="a", dst="c/b", target_is_directory=False)
    os.utime(path="c/a", times=(1, 2))
    told = os.stat(path="c/b", follow_symlinks=False).st_size, os.stat("c/a").st_mtime
    links = os.lstat(path="latest").st_size, os.readlink(path="latest")
    os.remove(path="best.pt")
    os.rmdir(path="empty")
    return told, links


# Each is done in a folder in which "made/w" has been written and "gone" has been removed.
CALLS: dict[str, Callable[[], object]] = {
    "keywords": keywords,
    "scandir": lambda: [scanned(path) for path in ("linked", b".", None)],
    "truncate=": lambda: os.truncate(path="a", length=1),
    "access=": lambda: [os.access(path=p, mode=os.R_OK) for p in ("a", "gone", "made/w", "")],
    "lchown": lambda: os.lchown(path="latest", uid=os.getuid(), gid=os.getgid()),
    "mkfifo": lambda: (os.mkfifo(path="c"), stat.S_ISFIFO(os.stat("c").st_mode), os.unlink("c")),
    **{
        f"rmtree of {name}": lambda name=name: handled(name)  # type: ignore[misc]
        for name in ("gone", "a", "linked")
    },
    "TemporaryFile": lambda: [temporary_file(where) for where in ("runs", "made")],
    "open a folder": lambda: opened("a", "runs"),
    **{
        f"number {path} {flags}": lambda path=path, flags=flags: by_number(path, flags)  # type: ignore[misc]
        for path, flags in (
            ("a", os.O_WRONLY | os.O_APPEND),
            ("c", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
            ("runs", os.O_TMPFILE | os.O_RDWR),
        )
    },
    "exists": lambda: [os.path.exists(p) for p in ("", "a", "gone", "made/../a")],
    "chdir": lambda: enters("runs", "deep", ".."),
    "chdir to what is new": lambda: enters("made", "..", "made", "../runs"),
    "chdir by a link": lambda: enters("linked/deep", ".."),
    "rename while open": renames_while_open,
}


def done(call: Callable[[], object], home: Path) -> tuple[str, dict[str, str]]:
    """Return what a call says, and what there is after it."""
    with contextlib.chdir(home):
        os.mkdir("made")
        Path("made/w").write_text("new")
        shutil.rmtree("gone")
        said = outcome(call, home)
    return said, contents(home)


@pytest.mark.parametrize("name", CALLS)
def test_every_call_does_and_says_what_it_does_without_the_guard(name: str, tmp_path: Path) -> None:
    plain, home = make_home(tmp_path / "plain"), make_home(tmp_path / "home")
    before = picture(home)
    with guarded(tmp_path.with_name(f"{tmp_path.name}-shadow")):
        seen = done(CALLS[name], home)
        here = os.getcwd()
    assert picture(home) == before
    assert seen == done(CALLS[name], plain)
    assert here == os.getcwd()


def test_a_file_that_another_rank_moves_away_meanwhile_is_written_as_if_it_had_not_been_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, begin = make_home(tmp_path / "home"), Shadows._begin

    def as_it_goes(self: Shadows, seen: str) -> str:
        posix.rename(seen, f"{seen}-moved")
        return begin(self, seen)

    monkeypatch.setattr(Shadows, "_begin", as_it_goes)
    with guarded(tmp_path / "shadow"):
        opened("w", home / "best.pt")
        assert (home / "best.pt").read_text() == "more"
    assert not (home / "best.pt").exists()


def test_what_was_not_changed_is_read_where_it_is_and_other_code_finds_itself_there(
    tmp_path: Path,
) -> None:
    home = make_home(tmp_path / "home")
    with guarded(tmp_path / "shadow"), contextlib.chdir(home):
        with open("a") as file:
            assert os.path.samestat(os.fstat(file.fileno()), os.stat("a"))
        assert not any((tmp_path / "shadow").iterdir())
        Path("runs/new").write_text("new")
        os.chdir("runs")
        assert os.readlink("/proc/self/cwd") == str(home / "runs")
        assert sorted(os.listdir()) == ["deep", "new", "x"]


def test_nobody_sees_the_folder_of_the_shadows_in_which_deleting_would_reach_what_they_stand_for(
    tmp_path: Path,
) -> None:
    own = tmp_path / "own"
    with guarded(own / "files", own):
        (own / "scratch").write_text("mine")
        (tmp_path / "a").write_text("shadowed")
        assert os.listdir(own) == ["scratch"]
        assert [path for path, _, _ in os.walk(own)] == [str(own)]
    assert sorted(os.listdir(own)) == ["files", "scratch"]
