"""Whether searches of public scripts claim what the scripts' own progress shows.

    python -m benchmarks.live SCRIPTS.toml --out FILE.jsonl [--programs DIR] [--short]
        [--budget 90s] [--times 2] [--only NAME ...] [--no-truth] [--report]

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
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from scipy.stats import t as student_t  # type: ignore[import-untyped]

from autotune.measurement.interval import Interval
from autotune.tuning.budget import parse_duration
from benchmarks.gpu.bench import ROOT
from benchmarks.gpu.answer import Ratio
from benchmarks.live_runs import Runner, Script, table

WORTH_FINDING = 1.15  # a gain from here on is one that a search should find
SMALL = 1.3  # gains below and above are told apart where widths of intervals are
Row = Mapping[str, Any]


def key(row: Row) -> tuple[Any, ...]:
    """Return what tells a search from others."""
    return tuple(row[name] for name in ("commit", "script", "repetition", "budget"))


def kept(file: Path) -> list[Row]:
    """Return the rows of a file; a last one that was cut short does not count."""
    if not file.exists():
        return []
    rows = []
    for line in file.read_text("utf-8").splitlines():
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


def claim_of(row: Row) -> Ratio | None:
    """Return the speedup that a search claims; None without a claim."""
    found = row.get("speedup")
    return Ratio.within(found["estimate"], found["low"], found["high"]) if found else None


def truths(rows: Sequence[Row]) -> list[Ratio | None]:
    """Return the true speedup of each row; None where it is unknown.

    A standard error from two pairs is hardly known itself, so it is no smaller than the root mean
    square of all of them.
    """
    found = [row.get("truth") or {} for row in rows]
    errors = [one["se"] for one in found if "log" in one]
    usual = math.sqrt(fmean(error**2 for error in errors)) if errors else 0.0
    reach = float(student_t.ppf(0.975, max(1, len(errors))))
    return [
        Ratio(one["log"], reach * max(one["se"], usual)) if "log" in one else None for one in found
    ]


def half_widths(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Return the half-widths of what was looked at last, in percent: small gains, large gains."""
    all_of_them = [row.get("speedup") or row.get("candidate_speedup") for row in rows]
    intervals = [Interval(**one) for one in all_of_them if one]
    small = [one.half_width_pct for one in intervals if one.estimate < SMALL]
    return small, [one.half_width_pct for one in intervals if one.estimate >= SMALL]


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what the searches of one commit and one budget come to, as sentences."""
    pairs = [*zip(map(claim_of, rows), truths(rows), strict=True)]
    true = [(claim, truth) for claim, truth in pairs if truth is not None]
    claims = [(claim, truth) for claim, truth in true if claim is not None]
    failed = sum(row["finding"].startswith("failed") for row in rows)
    count = sum(claim is not None for claim, _ in pairs)
    yield f"{len(rows)} searches, {failed} failed, {count} claims, {len(true)} truths"
    large = [claim for claim, truth in true if truth.value >= WORTH_FINDING]
    found = sum(claim is not None for claim in large)
    yield f"claims of gains that are truly {WORTH_FINDING}x or more: {found} of {len(large)}"
    judged = [claim.agrees_with(truth) for claim, truth in claims]
    yield (
        f"claims that agree with the truth within both 95 % errors: {judged.count(True)} of "
        f"{len(judged)}, {judged.count(None)} too noisy to tell"
    )
    widths = ", ".join(
        f"{where} {SMALL}x {median(some):.1f} % ({len(some)})" if some else f"{where} {SMALL}x none"
        for where, some in zip(("below", "above"), half_widths(rows), strict=True)
    )
    yield f"median half-width of a speedup: {widths}"
    over, script = max(
        (row["wall_s"] / parse_duration(row["budget"]), row["script"]) for row in rows
    )
    yield f"the slowest search took {over:.0%} of its budget ({script})"
    searching = sum(row["wall_s"] for row in rows)
    timing = sum((row.get("truth") or {}).get("wall_s", 0.0) for row in rows)
    yield f"wall time: {searching / 60:.1f} min of searches, {timing / 60:.1f} min of truths"


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each search."""
    for row, truth in zip(rows, truths(rows), strict=True):
        claim, candidate = row.get("speedup"), row.get("candidate_speedup")
        if claim:
            told = f"claims {Interval(**claim)}"
        elif candidate:
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
    for (commit, budget), group in groups.items():
        print(f"\nautotune {commit}, searches of {budget}")
        print("\n".join(lines(group)))
        print("\n".join(summary(group)), flush=True)


def commit_of() -> str:
    """Return the commit of this checkout, which says if files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def parsed(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[Script]]:
    """Return the options, and the scripts that they choose."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.live", description=__doc__.splitlines()[0]
    )
    parser.add_argument("table", type=Path, metavar="SCRIPTS.toml")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--programs", type=Path, metavar="DIR", help="the folder of the checkouts")
    parser.add_argument("--short", action="store_true", help="some scripts, once, without truth")
    parser.add_argument("--budget", default="90s", help="of each search")
    parser.add_argument("--times", type=int, default=2, help="searches of each script")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="the scripts to search")
    parser.add_argument("--truth", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--report", action="store_true", help="print what was found, and end")
    asked = parser.parse_args(arguments)
    scripts = table(asked.table)
    names = [script.name for script in scripts]
    if unknown := sorted(set(asked.only or ()) - set(names)):
        parser.error(f"{asked.table} has no {', '.join(unknown)}; it has {', '.join(names)}")
    if asked.short:
        asked.times, asked.truth = 1, False
        scripts = [script for script in scripts if script.short]
    asked.programs = asked.programs or asked.table.parent
    return asked, [script for script in scripts if not asked.only or script.name in asked.only]


def search_all(asked: argparse.Namespace, scripts: Sequence[Script]) -> None:
    """Search what is missing in the file, and append each row as it comes."""
    by_name = {script.name: script for script in scripts}
    places = {s.name: asked.programs / s.folder / s.command[0] for s in scripts}
    if absent := [name for name, place in places.items() if not place.is_file()]:
        raise SystemExit(f"not in {asked.programs}, see benchmarks/README.md: {', '.join(absent)}")
    runner = Runner(asked.programs)
    for head in missing([*by_name], asked.times, commit_of(), asked.budget, kept(asked.out)):
        print(f"{head['script']} {head['repetition']} …", file=sys.stderr, flush=True)
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        found = runner.search(by_name[head["script"]], asked.budget, truth=asked.truth)
        row = {**head, "date": date, **found}
        with asked.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(next(lines([row])), file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Search, keep and report; return 130 after Ctrl-C."""
    asked, scripts = parsed(arguments)
    code = 0
    if not asked.report:
        try:
            search_all(asked, scripts)
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
    report(kept(asked.out))
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end what runs, as after Ctrl-C
    sys.exit(main(sys.argv[1:]))
