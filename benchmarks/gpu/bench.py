"""What a check works with: findings, commands within the seconds that are left, and the GPU.

The GPU is read by ``nvidia-smi``, without torch and without autotune; nothing is set or reset.
Source: ``nvidia-smi --help-query-gpu``.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.processes import Ran, run

LATE = 1.15  # of the budget of a search
CONDITIONS = ("clocks.sm", "temperature.gpu", "power.draw", "memory.used", "utilization.gpu")
FACTS = ("name", "uuid", "driver_version", "memory.total", "compute_cap", "mig.mode.current")


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
    """Seconds of a check's parts.

    Attributes:
        budget_s: Of the search.
        counted_s: That each run of the truth counts.
        run_s: That each run of the comparison counts.
        start_s: Until a process trains, roughly: 11 to 16 s beside an H200.
    """

    budget_s: int
    counted_s: float
    run_s: float
    start_s: float


FULL = Sizes(budget_s=90, counted_s=1.0, run_s=3.0, start_s=13.0)
TINY = Sizes(budget_s=45, counted_s=0.4, run_s=1.0, start_s=5.0)


class OutOfTime(Exception):
    """The seconds of a check have run out."""


class Bench:
    """The surroundings of one check.

    Attributes:
        rehearsal: Tiny sizes on the CPU, where sizes of effects say nothing.
        sizes: Seconds of the check's parts.
        log: Takes what commands print on stderr.
    """

    def __init__(self, folder: Path, most_s: float, *, rehearsal: bool) -> None:
        self.rehearsal, self.sizes = rehearsal, TINY if rehearsal else FULL
        folder.mkdir(parents=True)
        self.log = folder / "log.txt"
        self._folder, self._until = folder, time.monotonic() + most_s

    def run(self, command: Sequence[str], most_s: float) -> Ran:
        """Run a command in a session of its own, for *most_s* seconds at most.

        Raises:
            OutOfTime: The seconds of the whole check have run out.
        """
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise OutOfTime
        env = {"CUDA_VISIBLE_DEVICES": ""} if self.rehearsal else {}
        ran = run(command, self._folder, min(most_s, left_s), env)
        with self.log.open("a", encoding="utf-8") as log:
            print("$", *command, file=log)
            print(ran.log, f"… {ran.code} after {ran.seconds:.1f} s", ran.output[-2000:], file=log)
        return ran


def gpus(fields: tuple[str, ...]) -> list[Mapping[str, str]]:
    """Return a row for each GPU; empty without a driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def first_gpu(fields: tuple[str, ...]) -> Mapping[str, str]:
    """Return what the first GPU tells; empty without one."""
    return next(iter(gpus(fields)), {})


def used_bytes() -> int | None:
    """Return the memory in use on all GPUs; None where the driver does not tell."""
    told = [row["memory.used"] for row in gpus(("memory.used",))]
    if not told or not all(map(str.isdigit, told)):  # words such as ``[N/A]``
        return None
    return sum(map(int, told)) << 20
