"""Whether whole epochs take as long as a search foretells, before and after.

    python -m benchmarks.whole_epoch [--checkouts DIR] [--work DIR] [--budget 180s] [--rounds 5]
                                     [--epochs 3] [NAME ...]

Each of the six programs (``whole_epoch_programs``) is searched. Then the bare program and
``autotune run`` train in turn, some epochs each time; the first epoch does not count. Of a program
with one epoch, or with a number of steps, whole runs are timed instead.

The machine's pace is read by pilots before and after each run, and by the search around each of its
windows. The seconds of a run are corrected to the median pace of the windows behind the search's
figures, by as much as the program's runs follow the pilots; both are kept. The prediction counts
as right if it lies within the interval of the corrected seconds, before and after. Processes of a
virtual machine differ by 10 % and more, so the ratios of neighbouring runs say more than the
seconds.

All that was measured is kept in ``--work``: a benchmark that was cut short goes on where it stood.
``--again`` starts anew.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from time import monotonic
from typing import Any

from autotune.machine import hardware
from autotune.measurement.interval import Interval
from autotune.results import bestfile
from autotune.tuning.budget import parse_duration
from autotune.tuning.storage import search_dir
from benchmarks.record import as_figures, median_ratio, save
from benchmarks.whole_epoch_programs import PROGRAMS, Program
from benchmarks.whole_epoch_runs import TAIL, Stopwatch, Timed, slope_of, surroundings

SIDES = "baseline", "best"
SHARE = 0.1  # of the budget that timing whole epochs may cost


def main() -> None:
    """Run the benchmark and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--checkouts", type=Path, default=Path.cwd(), help="of the public scripts")
    work = Path(tempfile.gettempdir()) / "autotune-whole-epoch"
    parser.add_argument("--work", type=Path, default=work)
    parser.add_argument("--budget", default="180s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    known = {program.name: program for program in PROGRAMS}
    if unknown := [name for name in options.names if name not in known]:
        raise SystemExit(f"Unknown program {', '.join(unknown)}. There are: {', '.join(known)}")
    right = []
    for name in options.names or known:
        campaign = Campaign(known[name], options)
        figures = campaign.figures()
        right.append(bool(figures["is_right"]))
        print(f"kept in {save('whole_epoch', {name: figures}, name)}", flush=True)
    print(f"The prediction lies in the measured interval in {sum(right)} of {len(right)} programs.")


class Campaign:
    """The search and the runs of one program, which are kept as they come.

    Args:
        program: The program.
        options: What the user asked for.
    """

    def __init__(self, program: Program, options: argparse.Namespace) -> None:
        self._program = program
        self._options = options
        self._folder: Path = options.work / program.name
        self._kept = self._folder / "kept.json"
        if options.again:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._place = self._folder / "program"
        self._script = program.lay_out(self._place, options.checkouts)
        self._watch = Stopwatch(hardware.detect().cpu_quota)
        self._state: dict[str, Any] = {"search": None, **{side: [] for side in SIDES}}
        if self._kept.exists():
            self._state = json.loads(self._kept.read_text(encoding="utf-8"))

    def figures(self) -> dict[str, object]:
        """Measure what is missing, and return all figures."""
        if self._state["search"] is None:
            self._search()
        for number in range(self._options.rounds):
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                if len(self._state[side]) <= number:
                    self._time(side, number)
        budget_s = parse_duration(self._options.budget)
        return judged(self._program, bestfile.read(self._best), self._state, budget_s)

    @property
    def _best(self) -> Path:
        return self._folder / "best.yaml"

    def _search(self) -> None:
        print(f"{self._program.name}: search of {self._options.budget} …", flush=True)
        command = [sys.executable, "-m", "autotune", "search", "--quiet"]
        command += ["--budget", self._options.budget]
        command += ["--output", str(self._best), str(self._script)]
        command += self._program.given(self._program.searched_for)
        began = monotonic()
        ended = subprocess.run(
            command,
            cwd=self._script.parent,
            check=False,
            capture_output=True,
            text=True,
            env=surroundings(),
        )
        said = ended.stdout + ended.stderr
        (self._folder / "search.txt").write_text(said, encoding="utf-8")
        if not self._best.exists():
            raise SystemExit(f"{self._program.name}: the search failed:\n{said[-TAIL:]}")
        self._state["search"] = {
            "seconds": round(monotonic() - began, 1),
            "pace": search_pace(self._script.parent / ".autotune"),
        }
        self._keep()

    def _time(self, side: str, number: int) -> None:
        options, program = self._options, self._program
        count = program.run if program.run is not None else options.epochs + 2
        start = [] if side == "baseline" else ["-m", "autotune", "run", str(self._best)]
        command = [sys.executable, *start, str(self._script), *program.given(count)]
        place = self._script.parent
        if program.run is not None:
            timed = self._watch.run(command, place)
        else:
            timed = self._watch.epochs(command, place, program.marker, options.epochs)
        self._state[side].append(asdict(timed))
        self._keep()
        print(f"{program.name}: {side} {number + 1}: {timed.seconds:.3g} s", flush=True)

    def _keep(self) -> None:
        part = self._kept.with_suffix(".part")
        part.write_text(json.dumps(self._state), encoding="utf-8")
        part.replace(self._kept)


def search_pace(runs: Path) -> float | None:
    """Return the machine's median pace around the windows that the last search's figures come from.

    They are those of the confirmation, if there was one. None if no pilots could be read.
    """
    last = max(runs.iterdir(), key=lambda run: run.stat().st_mtime)
    study = search_dir.SearchDir(last).load_study()
    confirmed = [window.measurement for windows in study.confirmation for window in windows]
    searched = [r.measurement for r in study.records if r.measurement is not None]
    paces = [m.pace for m in confirmed or searched if m.pace is not None]
    return median(fmean([pace.one_core, pace.all_cores]) for pace in paces) if paces else None


def judged(
    program: Program, file: bestfile.BestFile, state: dict[str, Any], budget_s: float
) -> dict[str, object]:
    """Return the figures of a program: what was foretold, what was seen, and whether they agree."""
    pace = state["search"]["pace"]
    timed = {side: [Timed(**one) for one in state[side]] for side in SIDES}
    raw = {side: [one.seconds for one in its] for side, its in timed.items()}
    slope = slope_of([*timed.values()])
    corrected = {side: [one.at(pace, slope) for one in its] for side, its in timed.items()}
    told = foretold(file, is_run=program.run is not None)
    seen = {side: median_ratio(its) for side, its in corrected.items()}
    inside = {
        side: seen[side].low <= one["estimate"] <= seen[side].high for side, one in told.items()
    }
    ratios = [a / b for a, b in zip(*(corrected[side] for side in SIDES), strict=True)]
    whole = file.whole_run
    timing_s = 0.0 if whole is None else whole.timing_seconds
    for side in SIDES:
        verdict = {True: "inside", False: "outside", None: "nothing foretold"}[inside.get(side)]
        print(f"  {side}: foretold {told.get(side)}, seen {seen[side]} s: {verdict}", flush=True)
    print(
        f"  ratio seen {median_ratio(ratios)}; cost {timing_s / budget_s:.1%} of the budget",
        flush=True,
    )
    return {
        "stands_for": program.stands_for,
        "config": {k: v for k, v in file.config.items() if file.baseline.get(k) != v},
        "evaluation": [dict(loader.options) for loader in file.evaluation],
        "what": "whole run" if program.run is not None else "epoch",
        "foretold": told,
        "seen": {side: as_figures(its) for side, its in seen.items()},
        "inside": inside,
        "is_right": set(inside) == set(SIDES) and all(inside.values()),
        "seconds": {side: _rounded(its) for side, its in raw.items()},
        "corrected": {side: _rounded(its) for side, its in corrected.items()},
        "slope": round(slope, 3),
        "paces": {side: [one.pace for one in its] for side, its in timed.items()},
        "search": state["search"],
        "ratios": _rounded(ratios),
        "ratio": as_figures(median_ratio(ratios)),
        "whole_run": None if whole is None else whole.model_dump(mode="json"),
        "timing_share": round(timing_s / budget_s, 4),
        "is_cheap": timing_s <= SHARE * budget_s,
    }


def foretold(file: bestfile.BestFile, *, is_run: bool) -> dict[str, dict[str, float]]:
    """Return the seconds that a search foretells for both sides, with their intervals if known.

    Where nothing is recommended, ``autotune run`` trains as the program is written.
    """
    if (whole := file.whole_run) is None:
        return {}
    found: dict[str, dict[str, float] | None] = dict(
        whole.run_intervals if is_run else whole.epoch_seconds
    )
    if not found and is_run:
        found = {side: as_figures(Interval(s, s, s)) for side, s in whole.run_seconds.items()}
    told = {side: one for side, one in found.items() if one is not None}
    if "baseline" in told:
        told.setdefault("best", told["baseline"])
    return told


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 4) for value in values]


if __name__ == "__main__":
    main()
