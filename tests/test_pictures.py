"""Whichever command is ended in whatever way: files, processes and memory are as they were.

Each command that starts the program is pictured before and after: its folder, ``$HOME`` and the
folder for temporary files. ``make pictures`` runs all of them, ``make test`` those of a search.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from autotune.rig.fence import scratch
from tests.made import make_loader
from tests.pictures import Entry, picture
from tests.rigging import PROGRAMS, write_best

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LATER_S = 30.0  # what a killed command left must be gone by then
AT_ONCE_S = 2.0  # the remover of a search's scratch may still be at work
ENDS_S = 200.0
KINDS = (scratch.PREFIX, scratch.NEW)
SHARED = (Path("/dev/shm"), Path("/tmp"), Path("/var/tmp"))
# What autotune is meant to write, and what the program writes itself when it trains for real, the
# folder that torch makes for every program that has an optimizer included
RECORD = ("folder/.autotune", "folder/best.yaml")
OWN = ("folder/out", "folder/notes.txt", "home/history", "home/.cache/torch")
TEMPORARY = ("tmp/mine-", "tmp/torchinductor_")
LEAVES = ("1000", "1")


@dataclass(frozen=True)
class Command:
    """A command that starts the program.

    Attributes:
        until: It is ended once it has said this,
        steps: and the program has made so many steps.
        may: The beginnings of the paths that may differ.
        tries_folder: It tries whether the folder could hold what trials write; its time differs.
        has_result: A search, which ends with a result after Ctrl-C too.
    """

    words: tuple[str, ...]
    until: str = ""
    steps: int = 40
    may: tuple[str, ...] = ()
    tries_folder: bool = False
    has_result: bool = False

    def statuses(self, end: signal.Signals | None) -> tuple[int, ...]:
        """Return the exit statuses that a shell may see."""
        if end is None or (end is signal.SIGINT and self.has_result):
            return (0, 3) if self.has_result else (0,)  # 3: only the baseline could be measured
        return (128 + end,)


TUNE = ("--tune", "workers")
COMMANDS = {
    "search": Command(
        ("search", "--budget", "20s", *TUNE, "train.py", *LEAVES),
        "searching\n",
        may=RECORD,
        has_result=True,
    ),
    "resume": Command(("resume", "--budget", "60s"), "searching\n", may=RECORD, has_result=True),
    "doctor": Command(("doctor", "train.py", *LEAVES), tries_folder=True),
    "knobs": Command(("knobs", "train.py", *LEAVES), steps=2),
    "compare": Command(("compare", "--budget", "60s", "written", "two.yaml", "train.py", *LEAVES)),
    "run": Command(("run", "two.yaml", "train.py", "40"), may=(*OWN, *TEMPORARY)),
}
ENDS = {
    "by itself": None,
    "Ctrl-C": signal.SIGINT,
    "SIGTERM": signal.SIGTERM,
    "kill -9": signal.SIGKILL,
}


@dataclass
class World:
    """A user's folder, home and folder for temporary files, and what commands are started there."""

    place: Path

    def __post_init__(self) -> None:
        for folder in ("folder/data", "home/.cache", "tmp"):
            (self.place / folder).mkdir(parents=True)
        shutil.copy(PROGRAMS / "writes_everywhere.py", self.folder / "train.py")
        (self.folder / "notes.txt").write_text("mine")
        (self.folder / "data" / "a").write_text("data")
        (self.folder / "link").symlink_to("data")
        (self.folder / "data" / "b").hardlink_to(self.folder / "data" / "a")
        (self.place / "home" / ".profile").write_text("mine")

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def folder(self) -> Path:
        return self.place / "folder"

    def picture(self) -> dict[str, Entry]:
        parts = (self.place / name for name in ("folder", "home", "tmp"))
        return {os.path.relpath(p, self.place): e for p, e in picture(*parts).items()}

    def run(self, command: Command, end: signal.Signals | None) -> tuple[int, str]:
        """Run a command to its end; return its status as a shell has it, and what it said."""
        said = self.place / "said"
        environment = {n: v for n, v in os.environ.items() if not n.startswith("XDG_")}
        environment |= {"HOME": str(self.place / "home"), "TMPDIR": str(self.place / "tmp")}
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear,
            said.open("w") as writing,
        ):
            ear.bind(f"\0{self.name}")
            ear.settimeout(1.0)
            process = subprocess.Popen(
                [sys.executable, "-m", "autotune", *command.words],
                cwd=self.folder,
                env=environment | {"PICTURED": self.name},
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            steps, until = 0, time.monotonic() + ENDS_S
            while end and process.poll() is None and time.monotonic() < until:
                with suppress(TimeoutError):
                    steps += bool(ear.recv(9))
                if steps >= command.steps and command.until in said.read_text():
                    if end is signal.SIGINT:  # as a terminal sends it
                        os.killpg(process.pid, end)
                    else:
                        process.send_signal(end)
                    break
            status = process.wait(max(1.0, until - time.monotonic()))
        return 128 - status if status < 0 else status, said.read_text()

    def processes(self) -> list[psutil.Process]:
        """Return what a command has started, as far as it still runs."""
        found = list[psutil.Process]()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("PICTURED") == self.name:
                    found.append(process)
        return found


@pytest.fixture
def world() -> Iterator[World]:
    place = Path(tempfile.mkdtemp(prefix="p-"))
    made = World(place)
    yield made
    for process in made.processes():
        with suppress(psutil.Error):
            process.kill()
    shutil.rmtree(place)


def changed(before: dict[str, Entry], after: dict[str, Entry], command: Command) -> list[str]:
    """Return the paths that differ and should not."""
    lived_in = {"tmp", *(str(parent) for path in command.may for parent in Path(path).parents)}
    if command.tries_folder:
        lived_in.add("folder")
    found = []
    for path in sorted({*before, *after} - lived_in):
        old, new = before.get(path), after.get(path)
        if old != new and not path.startswith(command.may):
            how = "new" if old is None else "gone" if new is None else "changed"
            found.append(f"{path}: {how}")
    modes = {path: (before[path][0], after[path][0]) for path in lived_in & before.keys()}
    return found + [f"{path}: another mode" for path, (old, new) in modes.items() if old != new]


def abandoned() -> set[str]:
    """Return autotune's folders in places for temporary files that no process has locked."""
    found = set()
    for folder in (one for place in SHARED for kind in KINDS for one in place.glob(f"{kind}*")):
        try:
            lock = os.open(folder / "lock", os.O_RDWR)
        except OSError:
            found.add(str(folder))
            continue
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.add(str(folder))
        os.close(lock)
    return found


CASES = [
    pytest.param(name, end, marks=() if name == "search" else pytest.mark.pictures)
    for name in COMMANDS
    for end in ENDS
]


@pytest.mark.parametrize(("name", "end"), CASES)
def test_nothing_differs_and_nothing_is_left(name: str, end: str, world: World) -> None:
    command, sent = COMMANDS[name], ENDS[end]
    if name == "resume":
        world.run(COMMANDS["search"], signal.SIGKILL)
        assert not _left(world, set(), LATER_S)
    if "two.yaml" in command.words:
        loader = make_loader(dataset="SlowItems", dataset_len=192, batch_size=16)
        write_best(world.folder / "two.yaml", {"workers": 0}, loader, workers=1)
    before, already = world.picture(), abandoned()

    status, said = world.run(command, sent)

    is_killed = sent is signal.SIGKILL
    if is_killed and name != "search":
        time.sleep(LATER_S)
    left = _left(world, already, LATER_S if is_killed else AT_ONCE_S)
    problems = changed(before, world.picture(), command) + left
    if status not in command.statuses(sent):
        problems.append(f"status {status}, not in {command.statuses(sent)}")
    if command.has_result and not is_killed and not (world.folder / "best.yaml").exists():
        problems.append("no best.yaml")
    assert not problems, "\n".join([*problems, said[-800:]])


def _left(world: World, already: set[str], patience_s: float) -> list[str]:
    """Return the processes, folders and memory that are left, once they are gone or time is up."""
    until = time.monotonic() + patience_s
    while True:
        shared = [str(p) for place in SHARED for p in place.glob(f"{world.name}*")]
        found = [*map(str, world.processes()), *sorted(abandoned() - already), *shared]
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.2)
