from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from autotune import bestfile
from tests.rigging import PROGRAMS, open_rig, write_best

STEPS = 20
EPOCHS = "2"


def test_losses_are_bit_identical_under_the_seams_at_the_baseline_config(tmp_path: Path) -> None:
    plain = _plain_run(tmp_path / "plain")
    with open_rig(tmp_path, "plain.py", str(tmp_path / "rig.losses"), EPOCHS) as opened:
        opened.measured()
    under_seams = (tmp_path / "rig.losses").read_text().splitlines()
    assert len(under_seams) > STEPS
    assert under_seams[:STEPS] == plain[:STEPS]


def test_losses_are_bit_identical_under_autotune_run_with_an_unchanged_config(
    tmp_path: Path,
) -> None:
    plain = _plain_run(tmp_path / "plain")
    write_best(tmp_path / "best.yaml", baseline={"num_workers": 0})
    assert bestfile.read(tmp_path / "best.yaml").setting.changes() == {}
    run = [sys.executable, "-m", "autotune", "run", str(tmp_path / "best.yaml")]
    _train([*run, str(PROGRAMS / "plain.py")], tmp_path / "run")
    assert (tmp_path / "run").read_text().splitlines() == plain


def _plain_run(losses: Path) -> list[str]:
    _train([sys.executable, str(PROGRAMS / "plain.py")], losses)
    return losses.read_text().splitlines()


def _train(command: list[str], losses: Path) -> None:
    subprocess.run([*command, str(losses), EPOCHS], check=True, capture_output=True)
