"""What a check works with: findings, commands in sessions apart, and who is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import psutil

ROOT = Path(__file__).parents[2]
# In the environment of all that a check starts, by which its processes are known
MARK = "AUTOTUNE_GPU_CHECK"
LEAVES_WITHIN_S = 3.0  # a process that ends may still be listed, and its memory with it
LATE = 1.15  # of the budget of a search


class Status(StrEnum):
    """How a finding ends."""

    PASS = "PASS"  # noqa: S105 - no password
    FAIL = "FAIL"  # an assertion about autotune does not hold
    NOTE = "NOTE"  # the size of an effect, which is nobody's fault
    SKIP = "SKIP"  # with the reason


@dataclass(frozen=True)
class Finding:
    """One sentence of a check, with the figures behind it."""

    status: Status
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)


def verdict(text: str, figures: Mapping[str, Any] | None = None, *, holds: bool) -> Finding:
    """Return an assertion about autotune, which holds or does not."""
    return Finding(Status.PASS if holds else Status.FAIL, text, figures or {})


@dataclass(frozen=True)
class Sizes:
    """Seconds of a check's parts, and how long its processes train.

    Attributes:
        budget_s: Of the search.
        truth_s: Most for the truth by turns within one process.
        counted_s: Seconds that each run of the truth counts.
        run_s: Seconds that each run of the comparison counts.
        start_s: Until a process trains, roughly.
    """

    budget_s: int
    truth_s: float
    counted_s: float
    run_s: float
    start_s: float

    @property
    def whole_s(self) -> float:
        """Seconds of one program, without settings that need processes of their own."""
        return self.truth_s + LATE * self.budget_s + 4 * (self.run_s + self.start_s)


FULL = Sizes(budget_s=60, truth_s=25, counted_s=1.0, run_s=3.0, start_s=6.0)
TINY = Sizes(budget_s=45, truth_s=25, counted_s=0.4, run_s=1.0, start_s=5.0)


class OutOfTime(Exception):
    """The seconds of a check have run out."""


@dataclass(frozen=True)
class Ran:
    """How a command ended; its exit status is None if it was killed after its time."""

    code: int | None
    output: str
    seconds: float


class Bench:
    """The surroundings of one check.

    Attributes:
        autotune: The command that is judged, without arguments.
        rehearsal: Tiny sizes on the CPU, where sizes of effects say nothing.
        sizes: Seconds of the check's parts.
        log: Takes what commands print on stderr.
        mark: In the environment of all that the check starts.
        env: That environment.
    """

    def __init__(
        self, autotune: Sequence[str], folder: Path, most_s: float, *, rehearsal: bool
    ) -> None:
        self.autotune, self.rehearsal = tuple(autotune), rehearsal
        self.sizes = TINY if rehearsal else FULL
        folder.mkdir(parents=True)
        self.log = folder / "log.txt"
        self.mark = uuid.uuid4().hex
        self._folder, self._until = folder, time.monotonic() + most_s
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.env = {**os.environ, MARK: self.mark, "PYTHONPATH": os.pathsep.join(paths)}
        if rehearsal:
            self.env["CUDA_VISIBLE_DEVICES"] = ""

    def run(self, command: Sequence[str], most_s: float) -> Ran:
        """Run a command in a session of its own, and kill it after *most_s* seconds.

        Raises:
            OutOfTime: The seconds of the whole check have run out.
        """
        began = time.monotonic()
        # A file, as a process that is left behind would keep a pipe open.
        with (
            tempfile.TemporaryFile("w+", dir=self._folder) as printed,
            self.log.open("a", encoding="utf-8") as log,
        ):
            print("$", *command, file=log, flush=True)
            process = subprocess.Popen(
                command,
                stdout=printed,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self._folder,
                env=self.env,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(max(0.0, min(most_s, self._until - began)))
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            printed.seek(0)
            output = printed.read()
            seconds = time.monotonic() - began
            print(f"… {code} after {seconds:.1f} s", output[-2000:], file=log)
        if code is None and time.monotonic() >= self._until:
            raise OutOfTime
        return Ran(code, output, seconds)

    def left_behind(self) -> list[str]:
        """Return the command lines of processes that ended commands have left, and end them."""
        until = time.monotonic() + LEAVES_WITHIN_S
        while (found := marked(self.mark)) and time.monotonic() < until:
            time.sleep(0.1)
        return end(found)


class Check(Protocol):
    """One thing to look at."""

    @property
    def name(self) -> str:
        """Its name in the table; also that of its folder."""
        ...

    def needs_s(self, sizes: Sizes) -> float:
        """Return the seconds without which it is not begun."""
        ...

    def found(self, bench: Bench) -> Iterator[Finding]:
        """Yield what is found, as soon as it is."""
        ...


def marked(mark: str) -> list[psutil.Process]:
    """Return the living processes that carry a mark."""
    found = []
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get(MARK) == mark
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # it has ended, or is another user's
            continue
    return found


def end(processes: Sequence[psutil.Process]) -> list[str]:
    """Kill processes and wait for their end; return what they were."""
    told = []
    for process in processes:
        try:
            told.append(" ".join(process.cmdline())[:120])
            process.kill()
        except psutil.Error:
            told.append(f"process {process.pid}")
    psutil.wait_procs(processes, LEAVES_WITHIN_S)
    return told


def commit() -> str:
    """Return the commit of this checkout, which says if files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return answer.stdout.strip() or "unknown"
