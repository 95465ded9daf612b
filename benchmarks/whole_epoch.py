"""Whether whole epochs take as long as a search foretells, before and after.

    python -m benchmarks.whole_epoch [--budget 180s] [--rounds 5] [--epochs 3] [PROGRAM ...]

Each program is searched. Then the bare program and ``autotune run`` train in turn, some epochs each
time. An epoch ends with a line that holds ``--marker``, and the first one does not count: it holds
the start. PROGRAM is a command line in which ``{}`` stands for the number of epochs.

With ``--run N``, ``{}`` stands for N in the search too, and whole runs are timed, from the start of
the process to its end: for programs of one epoch, and for those that count their steps.

Processes of a virtual machine differ by 10 % and more, so the ratios of neighbouring runs say more
than the seconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic

from autotune.results import bestfile
from benchmarks.record import save

PROGRAMS = Path(__file__).parent / "whole_epochs"
OWN = ("short.py", "evaluates.py", "checkpoints.py", "lightning_trainer.py")
DEFAULT = [f"{PROGRAMS / own} {{}}" for own in OWN]
MANY = 100_000  # epochs that a search never reaches
FEWEST = 2  # epochs that end


def main() -> None:
    """Run the benchmark and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", default=DEFAULT)
    parser.add_argument("--budget", default="180s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--marker", default="epoch")
    parser.add_argument("--run", type=int, metavar="N")
    options = parser.parse_args()
    for program in options.programs:
        name = _name(Path(program.split()[0]))
        with tempfile.TemporaryDirectory() as folder:
            figures = _compared(program, Path(folder), options)
        print(save("whole_epoch", {name: figures}, name), flush=True)


def _name(script: Path) -> str:
    return script.resolve().parent.name if script.stem == "main" else script.stem


def _compared(program: str, folder: Path, options: argparse.Namespace) -> dict[str, object]:
    best, script = folder / "best.yaml", Path(program.split(maxsplit=1)[0]).resolve()
    place = folder if script.is_relative_to(PROGRAMS) else script.parent
    arguments, searched = program.split()[1:], options.run or MANY
    command = [sys.executable, "-m", "autotune", "search", "--budget", options.budget]
    command += ["--output", str(best), "--name", f"whole-{_name(script)}", str(script)]
    command += [argument.format(searched) for argument in arguments]
    subprocess.run(command, cwd=place, check=False, capture_output=True)
    file = bestfile.read(best)
    foretold = file.whole_run
    given = [argument.format(options.run or options.epochs + 1) for argument in arguments]
    sides = {
        "baseline": [sys.executable, str(script), *given],
        "best": [sys.executable, "-m", "autotune", "run", str(best), str(script), *given],
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            timed = _run_s if options.run else partial(_epoch_s, marker=options.marker)
            seconds[side].append(timed(sides[side], place))
    ratios = [a / b for a, b in zip(seconds["baseline"], seconds["best"], strict=True)]
    seen = {side: [round(s, 4) for s in its] for side, its in seconds.items()}
    changes = {k: v for k, v in file.config.items() if file.baseline.get(k) != v}
    options_of = [dict(loader.options) for loader in file.evaluation]
    print(f"{script.stem}: {changes} {options_of}", flush=True)
    if foretold is not None:
        said = foretold.run_seconds if options.run else foretold.epoch_seconds
        for side, its in seen.items():
            print(f"  {side}: foretold {said.get(side)}, seen {its}", flush=True)
        print(f"  ratio: foretold {foretold.speedup}, ", end="")
    print(f"  seen {median(ratios):.2f}: {[round(ratio, 2) for ratio in ratios]}", flush=True)
    return {
        "config": changes,
        "evaluation": options_of,
        "foretold": None if foretold is None else foretold.model_dump(mode="json"),
        "runs" if options.run else "epochs": seen,
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def _run_s(command: Sequence[str], folder: Path) -> float:
    """Train and return the seconds of the whole run."""
    began = monotonic()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return monotonic() - began


def _epoch_s(command: Sequence[str], folder: Path, marker: str) -> float:
    """Train and return the mean seconds of an epoch, without the first."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        ends = [monotonic() for line in process.stdout if marker in line]
    if len(ends) < FEWEST:
        raise SystemExit(f"{' '.join(command)} printed {marker!r} {len(ends)} times")
    return (ends[-1] - ends[0]) / (len(ends) - 1)


if __name__ == "__main__":
    main()
