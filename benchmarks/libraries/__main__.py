"""Do training loops of libraries train under a search, and with which knobs?

    make libraries        (python -m benchmarks.libraries [--budget 30s] [NAME ...])

Each script of the list trains natively for an epoch, is searched, and trains for an epoch by
``autotune run`` with its best.yaml, in which workers and batch are set to values that were offered.
The scripts are in the style of the library's documentation, on data that they make or that
scikit-learn bundles. A table is printed, and below it why knobs that a plain loop has are not
searched. The exit status is 1 when fewer scripts work than are known to.

Prerequisites: the extra ``libraries``; nothing is downloaded. Not covered: what is learned; speed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from time import monotonic

import autotune
from autotune.knobs.space.space import ResolvedSpace
from autotune.program.config import KnobValue
from autotune.results.result import SearchResult
from autotune.tuning.storage.search_dir import SearchDir
from benchmarks.processes import AUTOTUNE, Ran, run

KNOWN = 10  # of the list work; a plain loop's loader is seen in eleven
PROGRAMS = Path(__file__).parent / "programs"
TESTED = Path(__file__).parents[2] / "tests" / "programs"
PLAIN = ("workers", "batch_size", "precision", "threads")  # what a plain loop is offered
SET = ("workers", "batch_size")  # to what was offered, when it trains by `autotune run`
MAX_S = 120.0  # for a script that trains an epoch


@dataclass(frozen=True)
class Listed:
    """One script.

    Attributes:
        package: Whose loop it is, as the package index names it.
        args: Its command line, under a search.
        short: Its command line for one epoch.
        folder: Where the script lies.
    """

    package: str
    args: tuple[str, ...] = ()
    short: tuple[str, ...] = ("1",)
    folder: Path = PROGRAMS


CLI = ("fit", "--trainer.accelerator=cpu")
LIST = {
    "timm_train": Listed("timm"),
    "ignite_engine": Listed("pytorch-ignite"),
    "monai_cache": Listed("monai"),
    "skorch_classifier": Listed("skorch"),
    "fastai_learner": Listed("fastai"),
    "ultralytics_yolo": Listed("ultralytics"),
    "sb3_ppo": Listed("stable-baselines3"),
    "sentence_transformer": Listed("sentence-transformers"),
    "geometric_graphs": Listed("torch_geometric"),
    "lightning_cli": Listed(
        "lightning", (*CLI, "--trainer.max_epochs=1000"), (*CLI, "--trainer.max_epochs=1")
    ),
    "fabric": Listed("lightning", folder=TESTED),
    "accelerated": Listed("accelerate", folder=TESTED),
    "hf_trainer": Listed("transformers", ("out", "40000"), ("out", "80"), TESTED),
}


@dataclass
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

    name: str
    trains: bool = False
    configs: int = 0
    offered: Sequence[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    sees_loader: bool = False
    runs: Mapping[str, KnobValue] | None = None
    said: str = ""

    @property
    def works(self) -> bool:
        """It trains in all three ways, by a loader that is seen as a plain loop's is."""
        return self.trains and self.configs > 0 and self.sees_loader and self.runs is not None

    def __str__(self) -> str:
        package = LIST[self.name].package
        plain = [name for name in PLAIN if name in self.offered]
        values = ", ".join(f"{knob}={value}" for knob, value in (self.runs or {}).items())
        runs = "-" if self.runs is None else values or "yes"
        return (
            f"{self.name:21} {package} {version(package):9}"
            f" native {'yes' if self.trains else 'no':3} configs {self.configs:2}"
            f" knobs {len(self.offered):2} ({', '.join(plain)}) run {runs} {self.said}"
        )


def main() -> int:
    """Try the list; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.libraries", description=__doc__)
    parser.add_argument("names", nargs="*", help="scripts; all of the list without")
    parser.add_argument("--budget", default="30s", help="of each search (30s)")
    options = parser.parse_args()
    started = monotonic()
    rows = []
    for name in options.names or LIST:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(_try(name, options.budget, Path(folder)))
        print(rows[-1], flush=True)
    for row in rows:
        for sentence in dict.fromkeys(row.refused.values()):
            knobs = ", ".join(name for name, why in row.refused.items() if why == sentence)
            print(f"{row.name}: {knobs}: {sentence}")
    working = sum(row.works for row in rows)
    print(f"{working} of {len(rows)} work; {(monotonic() - started) / 60:.1f} min")
    return int(not options.names and working < KNOWN)


def _try(name: str, budget: str, folder: Path) -> Row:
    row, listed = Row(name), LIST[name]
    script = str(listed.folder / f"{name}.py")
    trained = _run([sys.executable, script, *listed.short], folder)
    row.trains = trained.code == 0
    search = ["search", "--budget", budget, "--name", "it", script, *listed.args]
    searched = _run([*AUTOTUNE, *search], folder)
    found = folder / ".autotune" / "it"
    study = SearchDir(found).load_study() if (found / "study.db").is_file() else None
    if study is None or study.facts is None:
        row.said = _last_line(searched if row.trains else trained)
        return row
    space = study.head.space.resolve(study.head.hardware, study.facts.profile)
    row.configs = sum(record.measurement is not None for record in study.records)
    row.offered = [*space.domains]
    row.refused = {knob: space.refused[knob] for knob in PLAIN if knob in space.refused}
    row.sees_loader = study.facts.profile.training_loader is not None
    best = folder / "best.yaml"
    values = _set_best(best, autotune.load(str(found)), space)
    ran = _run([*AUTOTUNE, "run", str(best), script, *listed.short], folder)
    if ran.code == 0:
        row.runs = values
    else:
        row.said = _last_line(ran)
    return row


def _set_best(path: Path, result: SearchResult, space: ResolvedSpace) -> dict[str, KnobValue]:
    """Write a best.yaml with other workers and another batch, as far as these are offered."""
    offers = {name: space.domains[name].values for name in SET if name in space.domains}
    values = {
        name: next(value for value in offer if value != space.baseline[name])
        for name, offer in offers.items()
        if len(offer) > 1
    }
    changed = result.best_file(result.best.replace(**values))
    path.write_text(changed.text(), encoding="utf-8")
    return values


def _run(command: Sequence[str], folder: Path) -> Ran:
    # ultralytics notes where runs go in the user's own settings, and writes there
    return run(command, folder, MAX_S, {"YOLO_CONFIG_DIR": str(folder)})


def _last_line(ran: Ran) -> str:
    lines = [line for line in (ran.output + ran.log).splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit status {ran.code}"


if __name__ == "__main__":
    sys.exit(main())
