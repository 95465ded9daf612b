"""A budget is a budget: programs that do not fit into one, each searched by the command line.

    python -m benchmarks.budget [--budget 30] [--only WORD]

Ten programs (programs/unruly.py) with slow steps, forked training, endless start-up and silent
workers. Each search must end within its budget and 15 %, or by one step more where that is longer;
what counts is the whole command, from its start to its end. Its last line is what the user is
left with: what was measured, or what to do.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

from autotune.tuning.budget import OVERDRAFT
from benchmarks.record import save

PROGRAM = Path(__file__).parent / "programs" / "unruly.py"
STEP_S = {  # of each program
    "steps of 1.5 s": 1.5,
    "steps of 5 s": 5.0,
    "a start-up of 12 s": 0.0,
    "an endless start-up": 0.0,
    "an endless loop, deaf to SIGTERM": 0.0,
    "training in forked processes": 0.0,
    "training in spawned processes": 0.0,
    "a worker silent from the start": 0.0,
    "a worker silent after 1,500 batches": 0.0,
    "an endless evaluation": 0.0,
}
# What a search that ended by its budget says: what was measured, or what kept it from measuring
SPEAKS = re.compile(
    r"measured|confirmed|faster|No significant gain|too short|then none|itself \(os"
)
HANGS = 5  # times the budget: it is killed


@dataclass(frozen=True)
class Run:
    """How a search ended.

    Attributes:
        most_s: What it may have taken.
        exit_code: None where it had to be killed.
        said: What it said of its end.
    """

    program: str
    budget_s: float
    wall_s: float
    most_s: float
    exit_code: int | None
    said: str

    @property
    def is_in_time(self) -> bool:
        """It ended within its budget, as far as a program allows."""
        return self.exit_code is not None and self.wall_s <= self.most_s

    @property
    def is_well(self) -> bool:
        """It ended in time and said why."""
        return self.is_in_time and SPEAKS.search(self.said) is not None

    def __str__(self) -> str:
        verdict = "ok  " if self.is_well else "FAIL" if self.is_in_time else "OVER"
        share = self.wall_s / self.budget_s
        return (
            f"{verdict} {self.wall_s:6.1f} s = {share:4.0%} of the budget  exit {self.exit_code}  "
            f"{self.program}\n       {self.said}"
        )


def main() -> None:
    """Run the benchmark and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=30.0, help="Seconds for each.")
    parser.add_argument("--only", default="", help="Programs that this is part of.")
    asked = parser.parse_args()
    runs = []
    for program in STEP_S:
        if asked.only in program:
            runs.append(search(program, asked.budget))
            sys.stdout.write(f"{runs[-1]}\n")
            sys.stdout.flush()
    save("budget", {"runs": [asdict(run) for run in runs]})
    bad = [run.program for run in runs if not run.is_well]
    if bad:
        sys.exit(f"over budget, or without a word of it: {', '.join(bad)}")


def search(program: str, budget_s: float) -> Run:
    """Search one of the programs, in a folder of its own."""
    most_s = max((1 + OVERDRAFT) * budget_s, budget_s + STEP_S[program])
    command = [sys.executable, "-m", "autotune", "search", "--budget", f"{budget_s:g}s"]
    with tempfile.TemporaryDirectory(prefix="autotune-bench-") as folder:
        began = monotonic()
        try:
            done = subprocess.run(
                [*command, str(PROGRAM), program],
                cwd=folder, capture_output=True, text=True, check=False, timeout=HANGS * budget_s,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Run(program, budget_s, monotonic() - began, most_s, None, "it was killed")
        wall_s = monotonic() - began
    return Run(program, budget_s, wall_s, most_s, done.returncode, _end(done.stdout, done.stderr))


def _end(stdout: str, stderr: str) -> str:
    """Return the verdict of a search, or its error."""
    verdict = [line.strip() for line in stdout.splitlines() if line.strip()]
    if verdict:
        rate = next((line for line in verdict if line.startswith("samples/s")), "")
        return f"{verdict[0]} {' '.join(rate.split())}"
    _, _, error = stderr.rpartition("autotune: ")
    return " ".join(error.split())


if __name__ == "__main__":
    main()
