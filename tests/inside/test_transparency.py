from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from autotune.program.config import KnobValue
from autotune.program.profile import LoaderFacts
from tests.rigging import PROGRAMS, applied_with, open_rig, write_best

pytestmark = pytest.mark.usefixtures("warm_starts")

STEPS = 20
EPOCHS = "2"
PROGRAM = PROGRAMS / "plain.py"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the program writes by itself."""
    return _train([sys.executable, str(PROGRAM)], tmp_path_factory.mktemp("plain") / "losses")


@pytest.fixture(scope="module")
def without_dropout(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Its losses where nothing is drawn in a step."""
    losses = tmp_path_factory.mktemp("without-dropout") / "losses"
    return _losses(_train([sys.executable, str(PROGRAM)], losses, "0"))


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> LoaderFacts | None:
    """The program's loader, as a search sees it."""
    directory = tmp_path_factory.mktemp("observed")
    with open_rig(directory, "plain.py", str(directory / "losses"), EPOCHS) as opened:
        return opened.profile.training_loader


def test_losses_are_bit_identical_under_the_seams_at_the_baseline_config(
    plain: list[str], tmp_path: Path
) -> None:
    with open_rig(tmp_path, "plain.py", str(tmp_path / "rig.losses"), EPOCHS) as opened:
        opened.measured()
        under_seams = opened.seen(tmp_path / "rig.losses").read_text().splitlines()
    assert len(under_seams) > STEPS
    assert under_seams[:STEPS] == plain[:STEPS]


FORKS = """
import os, sys, torch
child = os.fork()
if not child:
    os._exit(torch.cuda._is_in_bad_fork())
with open(sys.argv[1], "w") as file:
    file.write(str(os.waitpid(child, 0)[1]))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
"""


def test_nothing_asks_for_gpus_before_the_programs_first_line(tmp_path: Path) -> None:
    """The first who asks fixes what the program sees: later CUDA_VISIBLE_DEVICES are not read.

    torch then also keeps forked processes from using CUDA, whether there are GPUs or not (its note
    on "poison fork in multiprocessing"), which shows that somebody has asked.
    """
    program, said = tmp_path / "forks.py", tmp_path / "said"
    program.write_text(FORKS, encoding="utf-8")
    with open_rig(tmp_path, str(program), str(said)) as observed:
        assert observed.seen(said).read_text() == "0"
    on_gpu = replace(observed.base.traits, device="cuda")
    applied = replace(applied_with(observed.base, precision="tf32"), traits=on_gpu)
    with open_rig(tmp_path, str(program), str(said), applied=applied) as tuned:
        assert tuned.seen(said).read_text() == "0"


@dataclass(frozen=True)
class Change:
    """Knobs that must leave the mathematics alone, and what they were."""

    baseline: dict[str, KnobValue]
    config: dict[str, KnobValue]


LOADING_AND_PROCESS = Change(
    {
        "workers": 0,
        "prefetch_factor": 2,
        "worker_threads": 1,
        "interop_threads": 2,
        "flush_denormal": False,
    },
    {
        "workers": 2,
        "prefetch_factor": 4,
        "worker_threads": 2,
        "interop_threads": 1,
        "flush_denormal": True,
    },
)
SPAWN = Change(
    {"workers": 0, "worker_start_method": "fork", "in_order": True},
    {"workers": 1, "worker_start_method": "spawn", "in_order": False},
)
SUMS = Change(
    {"threads": 2, "optimizer": "for-loop"},
    {"threads": 1, "optimizer": "fused"},
)
MATMUL = Change({"precision": "fp32"}, {"precision": "medium"})
COMPILED = Change(
    {"compile": "off"},
    {"compile": "default-dynamic"},
)


@pytest.mark.slow
@pytest.mark.parametrize("change", [LOADING_AND_PROCESS, SPAWN], ids=lambda c: "+".join(c.config))
def test_losses_stay_the_same_to_the_bit(
    change: Change, plain: list[str], loader: LoaderFacts, tmp_path: Path
) -> None:
    assert _run_under(change, loader, tmp_path) == plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "tolerance"),
    [(SUMS, 1e-5), (MATMUL, 2e-2), (COMPILED, 1e-4)],
    ids=lambda c: "+".join(c.config) if isinstance(c, Change) else "",
)
def test_losses_stay_the_same_within_rounding(
    change: Change,
    tolerance: float,
    without_dropout: list[float],
    loader: LoaderFacts,
    tmp_path: Path,
) -> None:
    """Without dropout: compiled code draws its random numbers in another way."""
    losses = _losses(_run_under(change, loader, tmp_path, "0"))
    assert losses == pytest.approx(without_dropout, rel=tolerance)


def _losses(lines: list[str]) -> list[float]:
    return [float.fromhex(line.split()[-1]) for line in lines]


def _run_under(
    change: Change, loader: LoaderFacts | None, directory: Path, *words: str
) -> list[str]:
    write_best(directory / "best.yaml", change.baseline, loader, (), "", **change.config)
    run = [sys.executable, "-m", "autotune", "run", str(directory / "best.yaml")]
    return _train([*run, str(PROGRAM)], directory / "run", *words)


def _train(command: list[str], losses: Path, *words: str) -> list[str]:
    subprocess.run([*command, str(losses), EPOCHS, *words], check=True, capture_output=True)
    return losses.read_text().splitlines()
