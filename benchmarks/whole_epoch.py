"""Whether whole epochs take as long as a search foretells, before and after.

    python -m benchmarks.whole_epoch [--budget 180s] [--rounds 5] [--epochs 3] [PROGRAM ...]

Each program is searched. Then the bare program and ``autotune run`` train in turn, some epochs each
time. An epoch ends with a line that holds ``--marker``, and the first one does not count: it holds
the start. PROGRAM is a command line in which ``{}`` stands for the number of epochs.

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
    options = parser.parse_args()
    figures = {}
    for program in options.programs:
        with tempfile.TemporaryDirectory() as folder:
            figures[Path(program.split()[0]).stem] = _compared(program, Path(folder), options)
    print(save("whole_epoch", figures))


def _compared(program: str, folder: Path, options: argparse.Namespace) -> dict[str, object]:
    best, script = folder / "best.yaml", Path(program.split(maxsplit=1)[0]).resolve()
    place = script.parent if options.marker != "epoch" else folder
    arguments = program.split()[1:]
    command = [sys.executable, "-m", "autotune", "search", "--budget", options.budget]
    command += ["--output", str(best), "--name", f"whole-{script.stem}", str(script)]
    command += [argument.format(MANY) for argument in arguments]
    subprocess.run(command, cwd=place, check=False, capture_output=True)
    file = bestfile.read(best)
    foretold = file.whole_run
    given = [argument.format(options.epochs + 1) for argument in arguments]
    sides = {
        "baseline": [sys.executable, str(script), *given],
        "best": [sys.executable, "-m", "autotune", "run", str(best), str(script), *given],
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            seconds[side].append(_epoch_s(sides[side], place, options.marker))
    ratios = [a / b for a, b in zip(seconds["baseline"], seconds["best"], strict=True)]
    seen = {side: [round(s, 4) for s in its] for side, its in seconds.items()}
    changes = {k: v for k, v in file.config.items() if file.baseline.get(k) != v}
    options_of = [dict(loader.options) for loader in file.evaluation]
    print(f"{script.stem}: {changes} {options_of}", flush=True)
    if foretold is not None:
        for side, interval in foretold.epoch_seconds.items():
            print(f"  {side}: foretold {interval}, seen {seen[side]}", flush=True)
        print(f"  ratio: foretold {foretold.speedup}, ", end="")
    print(f"  seen {median(ratios):.2f}: {[round(ratio, 2) for ratio in ratios]}", flush=True)
    return {
        "config": changes,
        "evaluation": options_of,
        "foretold": None if foretold is None else foretold.model_dump(mode="json"),
        "epochs": seen,
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


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
