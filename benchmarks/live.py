"""Whether searches of public scripts claim what the scripts' own progress shows.

    python -m benchmarks.live SCRIPTS.toml --out FILE.jsonl [--programs DIR] [--short]
        [--budget 90s] [--may-change batch] [--times 2] [--only NAME ...] [--report]

Each script is searched as a user would do it. Where the search recommends a config, or where its
best candidate looks at least 1.05x faster, the truth is measured from what the script prints: the
bare script and ``autotune run`` train as A B B A, each for 25 s from the first line that tells
progress, of which the first 8 s do not count. Nothing else may run on the machine meanwhile.

Each search is kept at once as a line of JSON. A later call goes on where the file ends: it passes
over what the same commit of autotune has searched with the same budget. ``--short`` takes the
scripts that the table names for it, once each, without the truth. ``--report`` only prints.

The table has a ``[[script]]`` for each script:

    name                what the results call it
    repository, commit  where it is from
    folder              where it runs, relative to --programs, by default the table's folder
    command             the script with its arguments
    env                 variables that it needs (may be left out)
    python_path         folders for PYTHONPATH, relative to --programs (may be left out)
    progress            a regular expression for the lines that tell progress. Its group `count`
                        is what is done; `part` and `of` are a share, of an epoch if there is a
                        group `epoch`; without groups, each line counts one
    unit                what is counted: steps, samples or epochs; where a tuned script has a larger
                        batch, its steps count for more
    short               whether it is one of --short (may be left out)
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import re
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from autotune.measurement.interval import Interval
from autotune.program.lr import batch_growth
from autotune.results.result import SearchResult
from autotune.tuning.budget import parse_duration
from benchmarks.answer import Ratio, read
from benchmarks.processes import AUTOTUNE, Ran, commit, run

RUN_S, SKIP_S = 25.0, 8.0  # of a run after its first progress; of these, what does not count
START_S = 90.0  # until the first progress
LOOKS_FASTER = 1.05  # a candidate from here on is worth the two minutes of a truth
WORTH_FINDING = 1.15  # a gain from here on is one that a search should find
SMALL = 1.3  # gains below and above are told apart where widths of intervals are
UNITS = ("steps", "samples", "epochs")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Script:
    """A row of the table."""

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
    """What was done by a time, in the script's unit; it never goes back."""

    seconds: float
    done: float
    epoch: int = 0  # that the script names


class Progress:
    """Counts what a script has done, from what it prints."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)
        self._rest = ""
        self.marks: list[Mark] = []

    def feed(self, text: str, seconds: float) -> None:
        """Take what was printed by then; a bar that is drawn again is another line."""
        *lines, self._rest = re.split(r"[\r\n]", self._rest + text)
        for found in filter(None, map(self._pattern.search, lines)):
            groups = found.groupdict()
            before = self.marks[-1].done if self.marks else 0.0
            if not groups:
                done = before + 1
            elif "count" in groups:
                done = float(groups["count"])
            else:
                done = float(groups.get("epoch", 0)) + float(groups["part"]) / float(groups["of"])
            if not self.marks or done > before:
                self.marks.append(Mark(seconds, done, int(groups.get("epoch", 0))))


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


def run_in(
    script: Script,
    programs: Path,
    command: Sequence[str],
    most_s: float,
    told: Callable[[str], float | None] | None = None,
) -> Ran:
    """Run a command in a script's folder and environment; see ``processes.run``."""
    paths = [*(programs / path for path in script.python_path), os.getenv("PYTHONPATH")]
    joined = os.pathsep.join(str(path) for path in paths if path)
    env = {**script.env, "PYTHONUNBUFFERED": "1", "PYTHONPATH": joined}
    return run(command, programs / script.folder, most_s, env, told)


def trained(script: Script, programs: Path, command: Sequence[str]) -> float | None:
    """Train for ``RUN_S`` after the first progress; return what was done per second, if any."""
    progress = Progress(script.progress)

    def told(printed: str) -> float | None:
        progress.feed(printed, time.monotonic())
        return progress.marks[0].seconds + RUN_S if progress.marks else None

    run_in(script, programs, command, START_S, told)
    return rate(progress.marks)


def search(
    script: Script, programs: Path, budget: str, may_change: str, *, truth: bool
) -> dict[str, Any]:
    """Search a script; return what is found, with its truth if that is wanted and worth it."""
    import autotune

    with tempfile.TemporaryDirectory(prefix="live-") as folder:
        best = Path(folder) / "best.yaml"
        command = [*AUTOTUNE, "search", "--json", "--budget", budget, "--may-change", may_change]
        command += ["--output", str(best), *script.command]
        ran = run_in(script, programs, command, 3 * parse_duration(budget) + 60)
        found: dict[str, Any] = {"wall_s": round(ran.seconds, 1)}
        try:
            answer = read(ran.output)
        except ValueError as error:
            said = " ".join(ran.log.split())[-300:]
            return {**found, "finding": f"failed: status {ran.code}, {error}; {said}"}
        candidate, speedup, faster = None, None, None
        result = autotune.load(str(programs / script.folder / answer.run))
        if result.candidate is not None and result.candidate_speedup is not None:
            candidate = dict(result.candidate.changes_from(result.baseline))
            speedup = vars(result.candidate_speedup)
            faster = candidate if speedup["estimate"] >= LOOKS_FASTER else None
        changes = answer.changes or faster
        return found | {
            "seconds": answer.seconds,
            "finding": answer.finding,
            "speedup": dict(answer.interval) if answer.claim else None,
            "changes": dict(answer.changes),
            "candidate": candidate,
            "candidate_speedup": speedup,
            "first_step_s": answer.first_step_s,
            "processes": answer.processes,
            "trials": dict(answer.outcomes),
            "run": Path(answer.run).name,
            "truth": compared(script, programs, best, result, changes)
            if truth and changes
            else None,
        }


def compared(
    script: Script, programs: Path, best: Path, result: SearchResult, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Compare the bare script with one that trains with these changes, in turn."""
    config = result.baseline.replace(**changes)
    best.write_text(result.best_file(config).text(), encoding="utf-8")
    bare = [sys.executable, *script.command]
    tuned = [*AUTOTUNE, "run", str(best), *script.command]
    began = time.monotonic()
    rates = [trained(script, programs, line) for line in (bare, tuned, tuned, bare)]
    known = [one for one in rates if one]
    samples = batch_growth(result.baseline, config) if script.unit == "steps" else 1.0
    found = of_turns(known, samples) if len(known) == len(rates) else {}
    return {**found, "rates": rates, "wall_s": round(time.monotonic() - began, 1)}


def key(row: Row) -> tuple[Any, ...]:
    """Return what tells a search from others."""
    return tuple(row[name] for name in ("commit", "script", "repetition", "budget"))


def kept(file: Path) -> list[Row]:
    """Return the rows of a file; a last one that was cut short does not count."""
    rows = []
    for line in file.read_text("utf-8").splitlines() if file.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            print(f"{file}: left out, as it is no JSON: {line[:60]}", file=sys.stderr)
    return rows


def missing(
    names: Sequence[str], times: int, commit: str, budget: str, rows: Sequence[Row]
) -> Iterator[dict[str, Any]]:
    """Yield the beginnings of rows that are not there yet: all scripts once, then again."""
    there = {key(row) for row in rows}
    for repetition in range(1, times + 1):
        for name in names:
            row = {"commit": commit, "script": name, "repetition": repetition, "budget": budget}
            if key(row) not in there:
                yield row


def truths(rows: Sequence[Row]) -> list[Ratio | None]:
    """Return the true speedup of each row; None where it is unknown.

    A standard error from two pairs is hardly known itself, so it is no smaller than the root mean
    square of all of them.
    """
    from scipy.stats import t as student_t  # type: ignore[import-untyped]

    found = [row.get("truth") or {} for row in rows]
    errors = [one["se"] for one in found if "log" in one]
    usual = math.sqrt(fmean(error**2 for error in errors)) if errors else 0.0
    reach = float(student_t.ppf(0.975, max(1, len(errors))))
    return [
        Ratio(one["log"], reach * max(one["se"], usual)) if "log" in one else None for one in found
    ]


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what the searches of one commit and one budget come to, as sentences."""
    claims = [Ratio.within(**row["speedup"]) if row.get("speedup") else None for row in rows]
    true = [(c, t) for c, t in zip(claims, truths(rows), strict=True) if t is not None]
    failed = sum(row["finding"].startswith("failed") for row in rows)
    count = sum(claim is not None for claim in claims)
    yield f"{len(rows)} searches, {failed} failed, {count} claims, {len(true)} truths"
    large = [claim is not None for claim, truth in true if truth.value >= WORTH_FINDING]
    yield f"claims of gains that are truly {WORTH_FINDING}x or more: {sum(large)} of {len(large)}"
    judged = [claim.agrees_with(truth) for claim, truth in true if claim is not None]
    yield (
        f"claims that agree with the truth within both 95 % errors: {judged.count(True)} of "
        f"{len(judged)}, {judged.count(None)} too noisy to tell"
    )
    shown = [row.get("speedup") or row.get("candidate_speedup") for row in rows]
    intervals = [Interval(**one) for one in shown if one]
    for where, is_small in (("below", True), ("above", False)):
        widths = [i.half_width_pct for i in intervals if (i.estimate < SMALL) is is_small]
        if widths:
            yield f"median half-width {where} {SMALL}x: {median(widths):.1f} % ({len(widths)})"
    shares = [(row["wall_s"] / parse_duration(row["budget"]), row["script"]) for row in rows]
    yield "the slowest search took {:.0%} of its budget ({})".format(*max(shares))
    searching = sum(row["wall_s"] for row in rows)
    timing = sum((row.get("truth") or {}).get("wall_s", 0.0) for row in rows)
    yield f"wall time: {searching / 60:.1f} min of searches, {timing / 60:.1f} min of truths"


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each search."""
    for row, truth in zip(rows, truths(rows), strict=True):
        if claim := row.get("speedup"):
            told = f"claims {Interval(**claim)}"
        elif candidate := row.get("candidate_speedup"):
            told = f"none; candidate {Interval(**candidate)}"
        else:
            told = row["finding"][:60]
        changes = row.get("changes") or row.get("candidate") or {}
        trials = row.get("trials", {}).get("ok", 0)
        yield (
            f"{row['script']:22} {row['repetition']}  {told:38}  truth {truth or '-'!s:18}  "
            f"{row['wall_s']:5.0f} s  {trials:3} trials  {row.get('processes', 0):2} processes  "
            + " ".join(f"{knob}={value}" for knob, value in changes.items())
        )


def report(rows: Sequence[Row]) -> None:
    """Print the searches, those of each commit and budget with their summary."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["commit"], row["budget"]), []).append(row)
    for (version, budget), group in groups.items():
        print(f"\nautotune {version}, searches of {budget}")
        print("\n".join(lines(group)))
        print("\n".join(summary(group)), flush=True)


def search_all(asked: argparse.Namespace) -> None:
    """Search what is missing in the file, and append each row as it comes."""
    scripts = {script.name: script for script in table(asked.table)}
    if unknown := sorted(set(asked.only) - scripts.keys()):
        raise SystemExit(f"{asked.table} has no {', '.join(unknown)}; it has {', '.join(scripts)}")
    programs = (asked.programs or asked.table.parent).resolve()
    names = [n for n in asked.only or scripts if scripts[n].short or not asked.short]
    places = {n: programs / scripts[n].folder / scripts[n].command[0] for n in names}
    if absent := [name for name, place in places.items() if not place.is_file()]:
        raise SystemExit(f"not in {programs}, see benchmarks/README.md: {', '.join(absent)}")
    times = 1 if asked.short else asked.times
    for head in missing(names, times, commit(), asked.budget, kept(asked.out)):
        print(f"{head['script']} {head['repetition']} …", file=sys.stderr, flush=True)
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        script, truth = scripts[head["script"]], not asked.short
        found = search(script, programs, asked.budget, asked.may_change, truth=truth)
        row = {**head, "date": date, **found}
        with asked.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(next(lines([row])), file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Search, keep and report; return 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.live", description=__doc__.splitlines()[0]
    )
    parser.add_argument("table", type=Path, metavar="SCRIPTS.toml")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--programs", type=Path, metavar="DIR", help="the folder of the checkouts")
    parser.add_argument("--short", action="store_true", help="some scripts, once, without truth")
    parser.add_argument("--budget", default="90s", help="of each search")
    parser.add_argument("--may-change", default="batch", help="of each search, too")
    parser.add_argument("--times", type=int, default=2, help="searches of each script")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="the scripts")
    parser.add_argument("--report", action="store_true", help="print what was found, and end")
    asked = parser.parse_args(arguments)
    code = 0
    if not asked.report:
        try:
            search_all(asked)
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
    report(kept(asked.out))
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end what runs, as after Ctrl-C
    sys.exit(main(sys.argv[1:]))
