"""How long a training takes to a given loss: as written, and as three kinds of search recommend.

    python -m benchmarks.time_to_loss [--seeds 3] [--budget 100s] [words digits teacher]

Each program prints its loss on samples that it does not train on. The target is the loss that the
program as written comes to within some seconds from each seed. Then each way trains to that loss
from each seed, the ways in turn, by ``autotune run``; the time counts from the program's first
step.

Ways: ``kept`` keeps the program's global batch, as a search does by default; ``throughput`` takes
the fastest config, whatever it learns; ``time-to-loss`` counts what a sample is worth.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from autotune.results import bestfile
from benchmarks.record import save

PROGRAMS = Path(__file__).parent / "to_loss"
WAYS: dict[str, tuple[str, ...]] = {
    "kept": ("--keep-global-batch",),
    "throughput": ("--accept-learning-change",),
    "time-to-loss": ("--objective", "time-to-loss"),
}
AS_WRITTEN = "as written"
TARGET_S = 8.0  # in which the program as written comes to the target
LONGEST = 6.0  # times that, after which a run is given up
SMOOTH = 3  # evaluations whose median must reach the target
Curve = list[tuple[float, int, float]]  # seconds, samples, loss


def main() -> None:
    """Run the benchmark and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", default=["words", "digits", "teacher"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", default="100s")
    options = parser.parse_args()
    figures = {}
    for name in options.programs:
        with tempfile.TemporaryDirectory() as folder:
            figures[name] = _measured(PROGRAMS / f"{name}.py", Path(folder), options)
    print(save("time_to_loss", figures))


def _measured(program: Path, folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Return target, configs, times to the target and curves of a program."""
    as_written = [sys.executable, str(program)]
    seeds = range(1, options.seeds + 1)
    target = max(min(_smoothed(_trained(as_written, n, 0.0, TARGET_S))) for n in seeds)
    print(f"{program.stem}: target {target}", flush=True)
    ways: dict[str, list[str]] = {AS_WRITTEN: as_written}
    configs = {}
    for way, arguments in WAYS.items():
        best = folder / f"{way}.yaml"
        command = [sys.executable, "-m", "autotune", "search", "--budget", options.budget]
        command += [*arguments, "--output", str(best), str(program)]
        subprocess.run(command, cwd=folder, check=False, capture_output=True)
        ways[way] = [sys.executable, "-m", "autotune", "run", str(best), str(program)]
        file = bestfile.read(best)
        configs[way] = {k: v for k, v in file.config.items() if file.baseline.get(k) != v}
        print(f"{program.stem} {way}: {configs[way]}", flush=True)
    times: dict[str, list[float | None]] = {way: [] for way in ways}
    curves: dict[str, list[Curve]] = {way: [] for way in ways}
    for seed in seeds:
        for way, command in ways.items():
            curve = _trained(command, seed, target, LONGEST * TARGET_S)
            times[way].append(_reached_s(curve, target))
            curves[way].append(curve)
            print(f"{program.stem} {way}, seed {seed}: {times[way][-1]} s", flush=True)
    own = times[AS_WRITTEN]
    ratios = {
        way: [round(a / b, 3) for a, b in zip(own, took, strict=True) if a and b]
        for way, took in times.items()
    }
    for way, found in ratios.items():
        print(f"{program.stem} {way}: {median(found) if found else 'never'}x", flush=True)
    return {
        "target": target,
        "configs": configs,
        "seconds to the target": times,
        "times as written over these": ratios,
        "curves": curves,
    }


def _trained(command: Sequence[str], seed: int, target: float, seconds: float) -> Curve:
    """Train until some evaluations have reached the target, or for some seconds."""
    # The program ends at the first loss below its target, so it is given none
    arguments = ["--seed", str(seed), "--seconds", str(seconds)]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
    curve: Curve = []
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("["):
            passed_s, samples, loss = json.loads(line)
            curve.append((passed_s, samples, loss))
            if _reached_s(curve, target) is not None:
                process.terminate()
                break
    process.wait()
    return curve


def _smoothed(curve: Curve) -> list[float]:
    losses = [loss for _, _, loss in curve]
    return [median(losses[n - SMOOTH : n]) for n in range(SMOOTH, len(losses) + 1)]


def _reached_s(curve: Curve, target: float) -> float | None:
    reached = (
        at
        for at, loss in zip(curve[SMOOTH - 1 :], _smoothed(curve), strict=False)
        if loss <= target
    )
    return next((passed_s for passed_s, _, _ in reached), None)


if __name__ == "__main__":
    main()
