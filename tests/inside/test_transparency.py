from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rigging import PROGRAMS, applied_with, open_rig

pytestmark = pytest.mark.usefixtures("warm_starts")

STEPS = 20
EPOCHS = "2"
PROGRAM = PROGRAMS / "plain.py"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the program writes by itself."""
    return _train([sys.executable, str(PROGRAM)], tmp_path_factory.mktemp("plain") / "losses")


def test_losses_are_bit_identical_under_the_seams_at_the_baseline_config(
    plain: list[str], tmp_path: Path
) -> None:
    with open_rig(tmp_path, "plain.py", str(tmp_path / "rig.losses"), EPOCHS) as opened:
        under_seams: list[str] = []
        while len(under_seams) <= STEPS:  # a slow machine makes few steps in a measurement
            opened.measured()
            under_seams = opened.seen(tmp_path / "rig.losses").read_text().splitlines()
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


def _train(command: list[str], losses: Path) -> list[str]:
    subprocess.run([*command, str(losses), EPOCHS], check=True, capture_output=True)
    return losses.read_text().splitlines()
