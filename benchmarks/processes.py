"""Commands that a benchmark runs in sessions apart, and ends with all that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
AUTOTUNE = (sys.executable, "-m", "autotune")
# In the environment of all that a command starts, by which its processes are known
MARK = "AUTOTUNE_BENCHMARK"
GRACE_S = 20.0  # for a command that is told to end
LEAVES_WITHIN_S = 3.0  # a process that ends may still be listed, and its memory with it


@dataclass(frozen=True)
class Ran:
    """How a command ended.

    Attributes:
        code: Its exit status.
        output: What it printed on stdout.
        log: What it printed on stderr.
        seconds: How long it took.
        left: Command lines of processes that it has left behind, which were killed.
    """

    code: int
    output: str
    log: str
    seconds: float
    left: Sequence[str] = ()


def run(
    command: Sequence[str],
    folder: Path,
    most_s: float,
    env: Mapping[str, str],
    told: Callable[[str], float | None] | None = None,
) -> Ran:
    """Run a command in a session of its own; interrupt it as by Ctrl-C after *most_s*.

    Args:
        command: The command.
        folder: Where it runs.
        most_s: Seconds that it may take.
        env: Variables that it gets besides those of this process.
        told: Called again and again with what the command has printed on both streams since, and
            returns when the command is to be killed, in time.monotonic() seconds; None leaves it
            at *most_s*.
    """
    mark, began, env = uuid.uuid4().hex, time.monotonic(), {**os.environ, **env}
    paths = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    # Files, as a process that is left behind would keep a pipe open
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**env, "PYTHONPATH": paths, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT if told else log,
            start_new_session=True,
        )
        try:
            until, seen, is_over = began + most_s, 0, False
            while not is_over and time.monotonic() < until:
                is_over = process.poll() is not None
                time.sleep(0.01 if told else 0.1)
                if told:
                    printed = os.pread(out.fileno(), 1 << 20, seen)  # where it writes stays
                    seen += len(printed)
                    until = told(printed.decode(errors="replace")) or until
        finally:
            if process.poll() is None and told is None:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
            if process.poll() is None:
                process.kill()
            process.wait()
            seconds, left = time.monotonic() - began, _left_behind(mark)
        out.seek(0)
        log.seek(0)
        return Ran(process.returncode, out.read(), log.read(), seconds, left)


def _left_behind(mark: str) -> list[str]:
    """Kill the processes that carry a mark after a while; return what they were."""
    until = time.monotonic() + LEAVES_WITHIN_S
    while (found := _marked(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    told = []
    for process in found:
        try:
            told.append(" ".join(process.cmdline())[:120])
            process.kill()
        except psutil.Error:
            told.append(f"process {process.pid}")
    psutil.wait_procs(found, LEAVES_WITHIN_S)
    return told


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get(MARK) == mark
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # it has ended, or is another user's
            continue
    return found


def commit() -> str:
    """Return the commit of this checkout, which says if files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return answer.stdout.strip() or "unknown"
