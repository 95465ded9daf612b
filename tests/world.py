"""A user's world, in which a command is ended, and what then differs or is left.

The world is a folder, a home and a folder for temporary files; the program writes in all of them.
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.files import scratch
from tests.pictures import Entry, picture
from tests.rigging import PROGRAMS

LATER_S = 30.0  # what a killed command left must be gone by then
AT_ONCE_S = 2.0  # the remover of a search's scratch may still be at work
ENDS_S = 200.0
SHARED = (Path("/dev/shm"), Path("/tmp"), Path("/var/tmp"))
FOLDER = 'it\'s a "folder"'
RECORD = (f"{FOLDER}/.autotune", f"{FOLDER}/best.yaml")
LEAVES = ("1000", "1")  # the program trains on and on, and leaves a process and memory


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


def search(budget: str) -> Command:
    words = ("search", "--budget", budget, "--tune", "workers", "train.py", *LEAVES)
    return Command(words, ": workers\n", may=RECORD, has_result=True)


@dataclass(frozen=True)
class Ended:
    """How a command ended: what should not be so, and what it said."""

    faults: list[str]
    said: str


@dataclass(frozen=True)
class World:
    """The world, in a place that has its name."""

    place: Path

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def folder(self) -> Path:
        return self.place / FOLDER

    def end(self, command: Command, end: signal.Signals | None, wait_s: float = 0.0) -> Ended:
        """Run a command and end it, or let it end; look *wait_s* later at what it left."""
        before, already = self._picture(), _abandoned()
        status, said = self._run(command, end)
        time.sleep(wait_s)
        is_killed = end is signal.SIGKILL
        left = self._left(already, LATER_S if is_killed else AT_ONCE_S)
        faults = _changed(before, self._picture(), command) + left
        if status not in command.statuses(end):
            faults.append(f"status {status}, not in {command.statuses(end)}")
        if (
            command.has_result
            and not is_killed
            and not [*self.folder.glob(".autotune/*/result.json")]
        ):
            faults.append("no result.json")
        return Ended(faults, said)

    def processes(self) -> list[psutil.Process]:
        """Return what commands have started here, as far as it still runs."""
        found = list[psutil.Process]()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("PICTURED") == self.name:
                    found.append(process)
        return found

    def _picture(self) -> dict[str, Entry]:
        parts = (self.place / name for name in (FOLDER, "home", "tmp"))
        return {os.path.relpath(p, self.place): e for p, e in picture(*parts).items()}

    def _run(self, command: Command, end: signal.Signals | None) -> tuple[int, str]:
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

    def _left(self, already: set[str], patience_s: float) -> list[str]:
        """Return the processes, folders and memory that are not gone when the time is up."""
        until = time.monotonic() + patience_s
        while True:
            shared = [str(p) for place in SHARED for p in place.glob(f"{self.name}*")]
            found = [*map(str, self.processes()), *sorted(_abandoned() - already), *shared]
            if not found or time.monotonic() > until:
                return found
            time.sleep(0.2)


@contextmanager
def world() -> Iterator[World]:
    """Make a world with files, links and modes, and take it away with all that runs in it."""
    made = World(Path(tempfile.mkdtemp(prefix="p-")))
    for folder in (f"{FOLDER}/data", "home/.cache", "tmp"):
        (made.place / folder).mkdir(parents=True)
    shutil.copy(PROGRAMS / "writes_everywhere.py", made.folder / "train.py")
    (made.folder / "notes.txt").write_text("mine")
    (made.folder / "data" / "a").write_text("data")
    (made.folder / "data" / "a").chmod(0o640)
    (made.folder / "link").symlink_to("data")
    (made.folder / "data" / "b").hardlink_to(made.folder / "data" / "a")
    (made.place / "home" / ".profile").write_text("mine")
    try:
        yield made
    finally:
        for process in made.processes():
            with suppress(psutil.Error):
                process.kill()
        shutil.rmtree(made.place)


def _changed(before: dict[str, Entry], after: dict[str, Entry], command: Command) -> list[str]:
    """Return the paths that differ and should not."""
    lived_in = {"tmp", *(str(parent) for path in command.may for parent in Path(path).parents)}
    if command.tries_folder:
        lived_in.add(FOLDER)
    found = []
    for path in sorted({*before, *after} - lived_in):
        old, new = before.get(path), after.get(path)
        if old != new and not path.startswith(command.may):
            how = "new" if old is None else "gone" if new is None else "changed"
            found.append(f"{path}: {how}")
    modes = {path: (before[path][0], after[path][0]) for path in lived_in & before.keys()}
    return found + [f"{path}: another mode" for path, (old, new) in modes.items() if old != new]


def _abandoned() -> set[str]:
    """Return autotune's folders in places for temporary files that no process has locked."""
    found = set()
    for folder in (one for place in SHARED for one in place.glob(f"{scratch.PREFIX}*")):
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
