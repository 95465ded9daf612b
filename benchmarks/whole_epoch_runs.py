"""Runs of ``benchmarks.whole_epoch``: their seconds, and the pace of the machine around them."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import monotonic

from autotune.inside.pilots import Pilots
from autotune.measurement.pilot import Pace, mean_pace, pace_of
from autotune.measurement.stream import SLOPE, SLOPE_SPREAD

READINGS = 5  # of the pilots before and after a run
CHUNK = 65536
GRACE_S = 10.0  # for a program that is told to end
RUN_SPREAD = 0.08  # relative standard deviation of equal runs
TAIL = 2000  # characters of a program's output that an error shows


@dataclass(frozen=True)
class Timed:
    """One run of one side.

    Attributes:
        seconds: Of an epoch, or of the whole run.
        pace: Of the machine around it: the logarithm of a speed; None if it could not be read.
    """

    seconds: float
    pace: float | None

    def at(self, pace: float | None, slope: float) -> float:
        """Return the seconds that it would take at another pace of the machine.

        Args:
            pace: That pace; None if unknown, then nothing is corrected.
            slope: By how much the program follows the pace, see ``slope_of``.
        """
        if pace is None or self.pace is None:
            return self.seconds
        return self.seconds * math.exp(slope * (self.pace - pace))


class Stopwatch:
    """Times runs, and reads the machine's pace before and after each.

    Args:
        cores: How many cores the programs may use.
    """

    def __init__(self, cores: int) -> None:
        self._pilots = Pilots(cores)

    def pace(self) -> float | None:
        """Return the machine's pace now, the mean of one core and of all; None if unknown."""
        readings = [pace_of(self._pilots.read()) for _ in range(READINGS)]
        found: Pace | None = mean_pace([one for one in readings if one is not None])
        return None if found is None else fmean([found.one_core, found.all_cores])

    def run(self, command: Sequence[str], folder: Path) -> Timed:
        """Time a whole run, from the start of the process to its end.

        Raises:
            SystemExit: The program failed.
        """
        before = self.pace()
        began = monotonic()
        ended = subprocess.run(
            command, cwd=folder, check=False, capture_output=True, text=True, env=surroundings()
        )
        seconds = monotonic() - began
        if ended.returncode:
            raise SystemExit(
                f"{' '.join(command)} failed:\n{(ended.stdout + ended.stderr)[-TAIL:]}"
            )
        return Timed(seconds, between(before, self.pace()))

    def epochs(self, command: Sequence[str], folder: Path, marker: str, count: int) -> Timed:
        """Time some epochs after the first, and end the program then; return their mean.

        Args:
            command: The program.
            folder: Where it runs.
            marker: A regular expression whose group is the number of an epoch; it is looked for in
                all that the program prints.
            count: Number of epochs.

        Raises:
            SystemExit: Fewer epochs were seen.
        """
        before = self.pace()
        marks, text = _marks(command, folder, marker, count + 2)
        if len(marks) < count + 2:
            raise SystemExit(f"{' '.join(command)} showed {len(marks)} epochs:\n{text[-TAIL:]}")
        return Timed((marks[-1] - marks[1]) / count, between(before, self.pace()))


def surroundings() -> dict[str, str]:
    """Return the environment in which programs are searched and timed: the same for both.

    Lightning's bar, which names the epoch, shows up on a terminal, or where rich is told of one.
    Drawing it takes time from the training. Compiled modules are kept, as those of an installed
    package are: to compile autotune anew in each process would take more than a second.
    """
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONUNBUFFERED": "1", "FORCE_COLOR": "1"}


def slope_of(sides: Sequence[Sequence[Timed]]) -> float:
    """Return by how much a program follows the pace that pilots read: 1 is in step, 0 not at all.

    It is learned from all runs of both sides, each side about its own mean, and starts from what
    the search's model takes it to be (``stream.SLOPE``, for two pilots): few runs move it little.
    """
    prior, weight = 2 * SLOPE, 1 / (2 * SLOPE_SPREAD**2)
    learned = prior * weight
    for its in sides:
        known = [(one.pace, -math.log(one.seconds)) for one in its if one.pace is not None]
        if not known:
            continue
        paces, speeds = ([*values] for values in zip(*known, strict=True))
        middle, usual = fmean(paces), fmean(speeds)
        for pace, speed in known:
            learned += (pace - middle) * (speed - usual) / RUN_SPREAD**2
            weight += (pace - middle) ** 2 / RUN_SPREAD**2
    return learned / weight


def between(before: float | None, after: float | None) -> float | None:
    """Return the mean of two paces; that which is known if only one is."""
    known = [pace for pace in (before, after) if pace is not None]
    return fmean(known) if known else None


def _marks(command: Sequence[str], folder: Path, marker: str, most: int) -> tuple[list[float], str]:
    """Return when the numbers of epochs were first seen, and what the program printed."""
    seen: dict[str, float] = {}
    text = ""
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=surroundings(),
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        while len(seen) < most and (read := os.read(process.stdout.fileno(), CHUNK)):
            now = monotonic()
            text += read.decode(errors="replace")
            for found in re.findall(marker, text):
                seen.setdefault(found, now)
        _end(process)
    return list(seen.values()), text


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program that this benchmark started, with its workers: they share its session."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
