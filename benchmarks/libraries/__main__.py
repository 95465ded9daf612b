"""Do training loops of libraries train under a search, and with which knobs?

    make libraries        (python -m benchmarks.libraries [--budget 30s] [NAME ...])

Each script of the list (``listed.py``) trains natively for an epoch, is searched, and trains for an
epoch by ``autotune run`` with its best.yaml, in which workers and batch are set to values that were
offered. A table is printed, and below it why knobs that a plain loop has are not searched. The exit
status is 1 when fewer scripts work than are known to.

Prerequisites: the extra ``libraries``; nothing is downloaded. Not covered: what is learned; speed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import monotonic

from autotune.knobs.space.space import ResolvedSpace
from autotune.program.config import KnobValue
from autotune.results import bestfile
from autotune.tuning.storage.search_dir import SearchDir
from benchmarks.libraries.listed import LIST, Listed

KNOWN = 14  # of the list work; a plain loop's loader is seen in fifteen
PROGRAMS = Path(__file__).parent / "programs"
PLAIN = ("workers", "batch_size", "precision", "threads")  # what a plain loop is offered
SET = ("workers", "batch_size")  # to what was offered, when it trains by `autotune run`
MAX_S = 120.0  # for a script that trains an epoch


@dataclass(frozen=True)
class Row:
    """What came of one script.

    Attributes:
        trains: Natively.
        configs: That were measured, the baseline among them.
        offered: Knobs that were searched.
        refused: Of a plain loop's knobs, why each is not.
        sees_loader: One training loader was seen.
        runs: With which values it trained by ``autotune run``; None where it did not.
        said: The last line of a step that failed.
    """

    listed: Listed
    trains: bool
    configs: int
    offered: tuple[str, ...]
    refused: Mapping[str, str]
    sees_loader: bool
    runs: Mapping[str, KnobValue] | None
    said: str = ""

    @property
    def works(self) -> bool:
        """It trains in all three ways, by a loader that is seen as a plain loop's is."""
        return self.trains and self.configs > 0 and self.sees_loader and self.runs is not None


def main() -> int:
    """Try the list; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.libraries", description=__doc__)
    parser.add_argument("names", nargs="*", help="scripts; all of the list without")
    parser.add_argument("--budget", default="30s", help="of each search (30s)")
    options = parser.parse_args()
    listed = [own for own in LIST if not options.names or own.name in options.names]
    started = monotonic()
    rows = []
    for own in listed:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(_try(own, options.budget, Path(folder)))
        print(_line(rows[-1]), flush=True)
    for row in rows:
        for sentence in dict.fromkeys(row.refused.values()):
            knobs = ", ".join(name for name, why in row.refused.items() if why == sentence)
            print(f"{row.listed.name}: {knobs}: {sentence}")
    working = sum(row.works for row in rows)
    print(f"{working} of {len(rows)} work; {(monotonic() - started) / 60:.1f} min")
    return int(not options.names and working < KNOWN)


def _try(listed: Listed, budget: str, folder: Path) -> Row:
    script = str(PROGRAMS / f"{listed.name}.py")
    trained = _run([sys.executable, script, *listed.short], folder)
    search = ["autotune", "search", "--budget", budget, "--name", "it", script, *listed.args]
    searched = _run([sys.executable, "-m", *search], folder)
    found = folder / ".autotune" / "it"
    facts = None
    if (found / "study.db").is_file():
        study = SearchDir(found).load_study()
        facts = study.facts
    if facts is None:
        said = _last_line(searched) if trained.returncode == 0 else _last_line(trained)
        return Row(
            listed, trained.returncode == 0, 0, (), {}, sees_loader=False, runs=None, said=said
        )
    space = study.head.space.resolve(study.head.hardware, facts.profile)
    values = _set_best(found / "best.yaml", space)
    run = [sys.executable, "-m", "autotune", "run", str(found / "best.yaml"), script, *listed.short]
    ran = _run(run, folder)
    return Row(
        listed,
        trained.returncode == 0,
        sum(record.measurement is not None for record in study.records),
        tuple(space.domains),
        {name: space.refused[name] for name in PLAIN if name in space.refused},
        sees_loader=facts.profile.training_loader is not None,
        runs=values if ran.returncode == 0 else None,
        said="" if ran.returncode == 0 else _last_line(ran),
    )


def _set_best(path: Path, space: ResolvedSpace) -> dict[str, KnobValue]:
    """Have best.yaml train with other workers and another batch, as far as these are offered."""
    file = bestfile.read(path)
    offers = {name: space.domains[name].values for name in SET if name in space.domains}
    values = {
        name: next(value for value in offer if value != space.baseline[name])
        for name, offer in offers.items()
        if len(offer) > 1
    }
    file.model_copy(update={"config": {**file.config, **values}}).write(path)
    return values


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            # ultralytics notes where runs go in the user's own settings, and writes there
            env={**os.environ, "YOLO_CONFIG_DIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MAX_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, f"did not end in {MAX_S:.0f} s")


def _last_line(process: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in process.stdout.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit status {process.returncode}"


def _line(row: Row) -> str:
    listed = row.listed
    plain = [name for name in PLAIN if name in row.offered]
    runs = "-" if row.runs is None else ", ".join(f"{n}={v}" for n, v in row.runs.items()) or "yes"
    return (
        f"{listed.name:21} {listed.package} {version(listed.package):9}"
        f" native {'yes' if row.trains else 'no':3} configs {row.configs:2}"
        f" knobs {len(row.offered):2} ({', '.join(plain)}) run {runs} {row.said}"
    )


if __name__ == "__main__":
    sys.exit(main())
