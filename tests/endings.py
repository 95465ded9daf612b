"""``python -m tests.endings FOLDER`` ends real commands from outside, and prints what came of each.

Each case is a process of its own, forked when all is imported: the whole command line, with real
signals, pipes and terminals. Its search runs in virtual time; at one of its questions to a rig, the
case's end comes.
"""

import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import termios
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from fcntl import ioctl
from pathlib import Path
from typing import Any, cast

from autotune.cli.app import main
from autotune.files.access import HOME
from autotune.measurement.outcome import Ending
from autotune.results.output import Output
from autotune.results.result import SearchResult
from tests.docs.project import scripted
from tests.scripted import Question, Script, ScriptedRigs


@dataclass(frozen=True)
class Case:
    """How a command is ended.

    Attributes:
        signals: Sent to itself: the first one at a question, others while the result is written.
        at: The question, by its kind and how many such were asked before.
        command: What is typed before the program.
        ignored: A signal that is ignored from the start, as by ``nohup``.
        reader: What reads stdout and stderr, and is closed at that moment instead.
        stderr: A file that gets this stream instead.
        fills: Whether the record is on a small disk, which is full then; for root alone.
    """

    signals: tuple[int, ...] = ()
    at: tuple[str, int] = ("measure", 30)
    command: str = "search --budget 40s --tune workers,precision"
    ignored: int | None = None
    reader: str = ""
    stderr: str = ""
    fills: bool = False


START, CLAIM = ("open", 0), ("open", 2)
MOUNT = ("mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "none")
LONG = "search --budget 90s --tune workers,precision"
CASES = {
    "SIGTERM twice": Case((signal.SIGTERM, signal.SIGTERM)),
    "SIGTERM in the claim": Case((signal.SIGTERM,), at=CLAIM, command=LONG),
    "SIGTERM before the baseline": Case((signal.SIGTERM,), at=START),
    "doctor": Case((signal.SIGTERM,), at=START, command="doctor"),
    "dry run": Case((signal.SIGHUP,), at=START, command="search --dry-run"),
    "a full disk": Case(fills=True),
    "a full disk in the claim": Case(fills=True, at=CLAIM, command=LONG),
    "a reader that goes away": Case(reader="pipe"),
    "a reader of results that goes away": Case(reader="pipe", stderr="talk"),
    "a terminal that is closed": Case(reader="terminal"),
    "a terminal that is closed under nohup": Case(reader="terminal", ignored=signal.SIGHUP),
}


@dataclass
class Came:
    """What came of a case.

    Attributes:
        printed: On both streams, until the reader was closed.
        files: The files below the folder when the fence was taken down.
        left: The same at the end.
    """

    status: int = -1
    printed: str = ""
    files: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def run(case: Case, folder: Path) -> Came:
    """Run a case in a process of its own."""
    (folder / "train.py").write_text("import torch\n")
    asking, go = os.pipe(), os.pipe()
    ours, theirs = pty.openpty() if case.reader == "terminal" else os.pipe()
    process = os.fork()
    if process == 0:
        for end in (ours, asking[0], go[1]):
            os.close(end)
        search(case, folder, theirs, asking[1], go[0])
    for end in (theirs, asking[1], go[0]):
        os.close(end)
    came = Came()
    if case.reader:
        os.read(asking[0], 1)
        came.printed = "" if case.stderr else os.read(ours, 65536).decode()
        os.close(ours)
    os.close(go[1])
    if not case.reader:
        came.printed = b"".join(read_all(ours)).decode()
        os.close(ours)
    came.status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.close(asking[0])
    if case.stderr:
        came.printed = (folder / case.stderr).read_text()
    came.files = json.loads((folder / "closing").read_text() or "[]")
    (folder / "closing").unlink()
    came.left = files_in(folder)
    return came


def fill(file: Path) -> None:
    with suppress(OSError), file.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


def read_all(number: int) -> Iterator[bytes]:
    while more := os.read(number, 65536):
        yield more


def search(case: Case, folder: Path, streams: int, asking: int, go: int) -> None:
    """Search as the command line does; the process ends with its status."""
    os.setsid()
    if case.reader == "terminal":
        ioctl(streams, termios.TIOCSCTTY, 0)
    os.dup2(streams, 1)
    other = os.open(folder / case.stderr, os.O_CREAT | os.O_WRONLY) if case.stderr else streams
    os.dup2(other, 2)
    os.close(streams)
    if case.ignored is not None:
        signal.signal(case.ignored, signal.SIG_IGN)
    os.chdir(folder)
    (folder / "closing").touch()
    asked = Counter[str]()
    signals = [*case.signals]
    put_into = SearchResult.put_into

    def ends(question: Question) -> Ending | None:
        if case.at == (question.kind, asked[question.kind]):
            if case.fills:
                fill(folder / HOME / "filler")
            os.write(asking, b"x")
            with suppress(InterruptedError):
                os.read(go, 1)  # until what reads is closed
            send()
        asked[question.kind] += 1
        return None

    def send(*_: object) -> None:
        if signals:
            signal.raise_signal(signals.pop(0))

    def put(result: SearchResult, output: Output) -> str:
        send()
        return put_into(result, output)

    def taken_down(_rigs: ScriptedRigs, *_: object) -> None:
        (folder / "closing").write_text(json.dumps(files_in(folder)))

    cast("Any", ScriptedRigs).__exit__ = taken_down
    cast("Any", SearchResult).put_into = put
    sys.argv = ["autotune", *case.command.split(), "train.py"]
    with scripted(Script({"workers": {1: 1.5}}, ends=ends)):
        main()


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a small disk on a folder, until this process leaves; forked ones take nothing down."""
    mounting = os.getpid()
    folder.mkdir(0o700)
    subprocess.run([*MOUNT, str(folder)], check=True)
    try:
        yield
    finally:
        if os.getpid() == mounting:
            subprocess.run(["umount", str(folder)], check=True)


if __name__ == "__main__":
    found = {}
    for name, case in CASES.items():
        if case.fills and os.geteuid() != 0:
            continue
        folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
        with small_disk(folder / HOME) if case.fills else nullcontext():
            found[name] = asdict(run(case, folder))
    sys.stdout.write(json.dumps(found))
