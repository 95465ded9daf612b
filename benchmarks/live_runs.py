"""Searches and timed runs of ``benchmarks.live``: scripts, their progress, and what ends them."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import IO, Any, NamedTuple

import yaml

from autotune.errors import AutotuneError
from autotune.program.lr import batch_growth
from autotune.tuning.budget import parse_duration
from benchmarks.gpu.answer import Answer, read
from benchmarks.gpu.bench import MARK, ROOT, end, marked

RUN_S, SKIP_S = 25.0, 8.0  # of a run after its first progress; of these, what does not count
START_S = 90.0  # until the first progress
GRACE_S = 20.0  # for a search that is told to end
LOOKS_FASTER = 1.05  # a candidate from here on is worth the two minutes of a truth
UNITS = ("steps", "samples", "epochs")
AUTOTUNE = (sys.executable, "-m", "autotune")
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Script:
    """A row of the table; see ``benchmarks.live``."""

    name: str
    repository: str
    commit: str
    folder: str
    command: Sequence[str]
    progress: str
    unit: str
    env: Mapping[str, str] = field(default_factory=dict)
    python_path: Sequence[str] = ()
    short: bool = False

    def surroundings(self, programs: Path, mark: str) -> dict[str, str]:
        """Return the environment of all its runs, with a mark by which they are found."""
        paths = [ROOT, *(programs / path for path in self.python_path), os.getenv("PYTHONPATH")]
        joined = os.pathsep.join(str(path) for path in paths if path)
        own = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": joined, MARK: mark}
        return {**os.environ, **self.env, **own}


def table(file: Path) -> list[Script]:
    """Read the table of scripts.

    Raises:
        SystemExit: It has a fault.
    """
    try:
        scripts = [Script(**row) for row in tomllib.loads(file.read_text("utf-8"))["script"]]
        for script in scripts:
            re.compile(script.progress)
    except (OSError, KeyError, TypeError, ValueError, re.error) as error:
        raise SystemExit(f"{file} is no table of scripts: {error!r}") from error
    if wrong := [script.name for script in scripts if script.unit not in UNITS]:
        raise SystemExit(f"{file}: the unit of {', '.join(wrong)} is not one of {UNITS}")
    return scripts


class Mark(NamedTuple):
    """What was done by a time.

    Attributes:
        seconds: The time.
        done: In the script's unit; it never goes back.
        epoch: The epoch that the script names; 0 if it names none.
    """

    seconds: float
    done: float
    epoch: int = 0


class Progress:
    """Counts what a script has done, from what it prints.

    Attributes:
        marks: What was done, by time.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)
        self._rest = ""
        self.marks: list[Mark] = []

    def feed(self, text: str, seconds: float) -> None:
        """Take what was printed by then; a bar that is drawn again is another line."""
        *lines, self._rest = re.split(r"[\r\n]", self._rest + text)
        for found in filter(None, map(self._pattern.search, lines)):
            groups = found.groupdict()
            done = self._done(groups)
            if not self.marks or done > self.marks[-1].done:
                self.marks.append(Mark(seconds, done, int(groups.get("epoch", 0))))

    def _done(self, groups: Mapping[str, str]) -> float:
        if not groups:
            return self.marks[-1].done + 1 if self.marks else 1.0
        if "count" in groups:
            return float(groups["count"])
        return float(groups.get("epoch", 0)) + float(groups["part"]) / float(groups["of"])


def rate(marks: Sequence[Mark], skip_s: float = SKIP_S) -> float | None:
    """Return what was done per second after the first seconds; None if that cannot be told.

    The time from the last mark of an epoch to the first of the next does not count: it evaluates
    there and writes checkpoints, as often as the run's seconds happen to hold the end of an epoch.
    """
    counted = [mark for mark in marks if mark.seconds - marks[0].seconds >= skip_s]
    pairs = [(a, b) for a, b in pairwise(counted) if a.epoch == b.epoch]
    seconds = sum(b.seconds - a.seconds for a, b in pairs)
    return sum(b.done - a.done for a, b in pairs) / seconds if seconds > 0 else None


def of_turns(rates: Sequence[float], samples: float = 1.0) -> dict[str, float]:
    """Return the logarithm of a speedup, with its standard error from the two pairs.

    Args:
        rates: Of runs as bare, tuned, tuned and bare.
        samples: How many times the samples of a bare run a tuned one has in what counts one.
    """
    pairs = [math.log(samples * tuned / bare) for bare, tuned in (rates[:2], rates[:1:-1])]
    return {"log": fmean(pairs), "se": abs(pairs[0] - pairs[1]) / 2}


def samples_in_one(unit: str, config: Fields, baseline: Fields) -> float:
    """Return how many times the samples of the script as written a unit of progress has."""
    if unit != "steps":
        return 1.0
    return batch_growth(dict(baseline), dict(config))


class Runner:
    """Searches scripts and times them, one after the other.

    Args:
        programs: The folder of the checkouts.
    """

    def __init__(self, programs: Path) -> None:
        self._programs = programs.resolve()

    def search(self, script: Script, budget: str, *, truth: bool) -> dict[str, Any]:
        """Search a script; return what is found, with its truth if that is wanted and worth it."""
        with tempfile.TemporaryDirectory(prefix="live-") as folder:
            best = Path(folder) / "best.yaml"
            command = [*AUTOTUNE, "search", "--json", "--budget", budget]
            command += ["--output", str(best), *script.command]
            began = time.monotonic()
            code, output, log = self._run(script, command, 3 * parse_duration(budget) + 60)
            found: dict[str, Any] = {"wall_s": round(time.monotonic() - began, 1)}
            try:
                answer = read(output)
            except ValueError as error:
                said = " ".join(log.split())[-300:]
                return {**found, "finding": f"failed: status {code}, {error}; {said}"}
            found |= self._told(script, answer)
            changes = answer.changes or found["looks_faster"]
            found["truth"] = self._truth(script, best, changes) if truth and changes else None
            return found

    def _told(self, script: Script, answer: Answer) -> dict[str, Any]:
        """Return what is kept of an answer, and the candidate, which its JSON does not name."""
        import autotune

        run = self._programs / script.folder / answer.run
        candidate, speedup, faster = None, None, None
        with suppress(AutotuneError):
            result = autotune.load(str(run))
            if result.candidate is not None and result.candidate_speedup is not None:
                candidate = dict(result.candidate.changes_from(result.baseline))
                speedup = vars(result.candidate_speedup)
                faster = candidate if speedup["estimate"] >= LOOKS_FASTER else None
        return {
            "seconds": answer.seconds,
            "finding": answer.finding,
            "speedup": dict(answer.interval) if answer.claim else None,
            "changes": dict(answer.changes),
            "candidate": candidate,
            "candidate_speedup": speedup,
            "looks_faster": faster,
            "first_step_s": answer.first_step_s,
            "processes": answer.processes,
            "trials": dict(answer.outcomes),
            "run": run.name,
        }

    def _truth(self, script: Script, best: Path, changes: Fields) -> dict[str, Any]:
        """Compare the bare script with one that trains with these changes, in turn."""
        file = yaml.safe_load(best.read_text("utf-8"))
        file["config"] = {**file["baseline"], **changes}
        best.write_text(yaml.safe_dump(file, sort_keys=False), encoding="utf-8")
        bare = [sys.executable, *script.command]
        tuned = [*AUTOTUNE, "run", str(best), *script.command]
        began = time.monotonic()
        rates = [rate(self._watch(script, line)) for line in (bare, tuned, tuned, bare)]
        known = [one for one in rates if one]
        samples = samples_in_one(script.unit, file["config"], file["baseline"])
        found = of_turns(known, samples) if len(known) == len(rates) else {}
        return {**found, "rates": rates, "wall_s": round(time.monotonic() - began, 1)}

    def _watch(self, script: Script, command: Sequence[str]) -> list[Mark]:
        """Run a script for its seconds and return its progress."""
        progress = Progress(script.progress)
        with self._started(script, command, subprocess.PIPE, subprocess.STDOUT, 0) as process:
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            until = time.monotonic() + START_S
            while time.monotonic() < until:
                printed = process.stdout.read()
                if printed:
                    is_first = not progress.marks
                    progress.feed(printed.decode(errors="replace"), time.monotonic())
                    if is_first and progress.marks:
                        until = time.monotonic() + RUN_S
                elif process.poll() is not None:
                    break
                time.sleep(0.01)
        return progress.marks

    def _run(self, script: Script, command: Sequence[str], most_s: float) -> tuple[int, str, str]:
        """Run a command, not for longer than that; return its status and what it printed."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
            with (
                self._started(script, command, out, log, GRACE_S) as process,
                suppress(subprocess.TimeoutExpired),
            ):
                process.wait(most_s)
            out.seek(0)
            log.seek(0)
            return process.returncode, out.read(), log.read()

    @contextmanager
    def _started(
        self,
        script: Script,
        command: Sequence[str],
        out: IO[str] | int,
        log: IO[str] | int,
        grace_s: float,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command that is ended at the exit, with all that it started.

        Args:
            script: Whose folder and environment it gets.
            command: The command.
            out: Takes what it prints.
            log: Takes what it prints as errors.
            grace_s: Seconds that it has to end by itself, as after Ctrl-C.
        """
        mark = uuid.uuid4().hex
        process = subprocess.Popen(
            command,
            cwd=self._programs / script.folder,
            env=script.surroundings(self._programs, mark),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None and grace_s:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(grace_s)
            if process.poll() is None:
                process.kill()
            process.wait()
            end(marked(mark))
            if process.stdout is not None:
                process.stdout.close()
