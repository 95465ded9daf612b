"""What a running check works with: commands in groups of their own, and who is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.gpu.findings import Notebook

ROOT = Path(__file__).parents[2]
# In the environment of all that a check starts, by which its processes are known
MARK = "AUTOTUNE_GPU_CHECK"
LEAVES_WITHIN_S = 3.0  # a process that ends may still be listed, and its memory with it


@dataclass(frozen=True)
class Ran:
    """How a command ended.

    Attributes:
        code: Its exit status; None if it was killed after its time.
    """

    code: int | None
    output: str
    seconds: float


@dataclass(frozen=True)
class Bench:
    """The surroundings of one check.

    Attributes:
        autotune: The command that is judged, without arguments.
        rehearsal: Tiny sizes on the CPU, where sizes of effects say nothing.
        folder: Where the check's commands run and leave their files.
        notes: Takes what is found.
    """

    autotune: tuple[str, ...]
    rehearsal: bool
    folder: Path
    notes: Notebook

    def run(self, command: Sequence[str], most_s: float) -> Ran:
        """Run a command in a group of its own, and kill it after *most_s* seconds.

        What it prints on stderr goes to the log of the check.
        """
        began = time.monotonic()
        print("$", *command, file=sys.stderr, flush=True)
        # A file, as a process that is left behind would keep a pipe open.
        with tempfile.TemporaryFile("w+", dir=self.folder) as printed:
            process = subprocess.Popen(
                command,
                stdout=printed,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(most_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = None
            printed.seek(0)
            output = printed.read()
        seconds = time.monotonic() - began
        print(f"… {code} after {seconds:.1f} s", output[-2000:], file=sys.stderr, flush=True)
        return Ran(code, output, seconds)

    def left_behind(self) -> list[str]:
        """Return the command lines of processes that an ended command has left, and end them."""
        until = time.monotonic() + LEAVES_WITHIN_S
        while found := marked(os.environ[MARK], but=os.getpid()):
            if time.monotonic() > until:
                break
            time.sleep(0.1)
        return end(found)


def marked(mark: str, but: int = 0) -> list[psutil.Process]:
    """Return the living processes that carry a mark, but for the one with this id."""
    found = []
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get(MARK) == mark
            if is_ours and process.pid != but and process.status() != psutil.STATUS_ZOMBIE:
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
