"""Runs checks one after the other, each in a process group that can be killed.

A check is skipped where the seconds that it needs are not left. The result file is written anew
after each check, so that a kill loses nothing. Nothing here imports torch: a CUDA context of ours
would hold memory of the GPU that is looked at.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.gpu import device
from benchmarks.gpu.bench import MARK, ROOT, Bench, end, marked
from benchmarks.gpu.findings import Finding, Notebook, Record, Status
from benchmarks.gpu.program_check import FULL, TINY, Sizes

INTERRUPTED = "interrupted"


class Check(Protocol):
    """One thing to look at."""

    @property
    def name(self) -> str:
        """Its name in the table; also that of its folder."""
        ...

    def needs_s(self, sizes: Sizes) -> float:
        """Return the seconds without which it is not begun."""
        ...

    def run(self, bench: Bench) -> None:
        """Tell what is found to the bench's notes."""
        ...


@dataclass(frozen=True)
class Ground:
    """What all checks share; the fields are those of ``Bench``."""

    autotune: tuple[str, ...]
    rehearsal: bool
    folder: Path


def run_all(
    checks: Sequence[Check],
    ground: Ground,
    seconds: float,
    keep: Callable[[Sequence[Record]], None],
) -> list[Record]:
    """Run checks within *seconds* and return their records; Ctrl-C ends them.

    Args:
        checks: The checks, the most worth first.
        ground: What they share; each gets a folder of its own in the folder.
        seconds: For all of them together.
        keep: Called with all records so far, after each check.
    """
    until = time.monotonic() + seconds
    sizes = TINY if ground.rehearsal else FULL
    records: list[Record] = []
    for check in checks:
        left_s = until - time.monotonic()
        needs_s = check.needs_s(sizes)
        if left_s < needs_s:
            why = f"it needs {needs_s:.0f} s, {max(0.0, left_s):.0f} s are left"
            records.append(Record(check.name, 0.0, (Finding(Status.SKIP, why),)))
        else:
            records.append(run_one(check, ground, left_s))
        keep(records)
        if records[-1].findings[-1:] == (Finding(Status.SKIP, f"the rest: {INTERRUPTED}"),):
            break
    return records


def run_one(check: Check, ground: Ground, most_s: float) -> Record:
    """Run one check in a process group of its own; kill it, and all it started, after *most_s*."""
    folder = ground.folder / check.name
    folder.mkdir(parents=True)
    notes = Notebook(folder / "findings.jsonl")
    own = Bench(ground.autotune, ground.rehearsal, folder, notes)
    mark = uuid.uuid4().hex
    before, began = device.conditions(), time.monotonic()
    # forked: this process has one thread and no CUDA
    process = multiprocessing.get_context("fork").Process(target=_child, args=(check, own, mark))
    process.start()
    stopped = f"its {most_s:.0f} s have run out"
    try:
        process.join(most_s)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # until all is ended
        stopped = INTERRUPTED
    if is_stopped := process.is_alive():
        process.kill()
        process.join()
    left = end(marked(mark))
    if is_stopped:
        notes.tell(Status.SKIP, f"the rest: {stopped}")
    elif process.exitcode != 0:
        notes.tell(Status.FAIL, f"the check broke: {_last_line(folder / 'log.txt')}")
    elif left:
        notes.tell(Status.FAIL, f"processes are left: {'; '.join(left)}")
    seconds = time.monotonic() - began
    return Record(check.name, seconds, notes.read(), before, device.conditions())


def _child(check: Check, bench: Bench, mark: str) -> None:
    """Run a check in this forked process, which leads a group and writes to a log."""
    os.setsid()
    os.environ[MARK] = mark
    if bench.rehearsal:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    log = os.open(bench.folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        check.run(bench)
    except BaseException:  # noqa: BLE001 - whatever it is, the log tells it
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it printed nothing"
