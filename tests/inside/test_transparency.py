"""The program trains what it trains without autotune: as written, and under ``autotune run``."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.program.config import KnobValue
from tests.made import make_loader
from tests.rigging import PROGRAMS, applied_with, open_rig, write_best

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_starts")]

STEPS = 20
EPOCHS = "2"
PROGRAM = PROGRAMS / "plain.py"
LOADER = make_loader(dataset_len=2048, batch_size=32)


# What the program does, and what autotune does instead; to the bit, or within rounding
SETTINGS: dict[str, tuple[dict[str, KnobValue], dict[str, KnobValue], bool]] = {
    "workers": ({"workers": 0, "prefetch_factor": 2}, {"workers": 2, "prefetch_factor": 4}, True),
    "spawned workers": (
        {"workers": 0, "worker_start_method": "fork"},
        {"workers": 1, "worker_start_method": "spawn"},
        True,
    ),
    "threads": ({"threads": 2}, {"threads": 1}, False),
    "optimizer": ({"optimizer": "for-loop"}, {"optimizer": "fused"}, False),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the program writes by itself."""
    losses = tmp_path_factory.mktemp("plain") / "losses"
    subprocess.run([sys.executable, str(PROGRAM), str(losses), EPOCHS], check=True)
    return losses.read_text().splitlines()


def test_losses_are_bit_identical_under_the_seams_at_the_baseline_config(
    plain: list[str], tmp_path: Path
) -> None:
    with open_rig(tmp_path, "plain.py", str(tmp_path / "rig.losses"), EPOCHS) as opened:
        under_seams: list[str] = []
        while len(under_seams) <= STEPS:  # a slow machine makes few steps in a measurement
            opened.measured()
            under_seams = opened.seen(tmp_path / "rig.losses").read_text().splitlines()
    assert under_seams[:STEPS] == plain[:STEPS]


@pytest.mark.parametrize("name", SETTINGS)
def test_losses_under_autotune_run_are_those_of_the_program_alone(
    name: str, plain: list[str], tmp_path: Path
) -> None:
    baseline, changes, is_exact = SETTINGS[name]
    best, losses = tmp_path / "best.yaml", tmp_path / "losses"
    write_best(best, baseline, LOADER, "", **changes)
    command = [sys.executable, "-m", "autotune", "run", str(best), str(PROGRAM)]
    ended = subprocess.run(
        [*command, str(losses), EPOCHS], check=True, capture_output=True, text=True
    )
    assert "no DataLoader here is the one that was tuned" not in ended.stderr
    written = losses.read_text().splitlines()
    if is_exact:
        assert written == plain
    own, theirs = ([float.fromhex(line.split()[-1]) for line in of] for of in (written, plain))
    assert own == pytest.approx(theirs, rel=1e-3)


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
