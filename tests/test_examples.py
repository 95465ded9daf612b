from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.program.program import parse_program
from autotune.rig.rig import Rig
from autotune.rig.wire import Ready
from tests.rigging import OpenRig, base_setting, fence, never, write_best

pytestmark = pytest.mark.usefixtures("warm_starts")

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "samples", "loaders"),
    [("digits_cnn", 32, 1), ("photos_resnet", 32, 1), ("char_gpt", 16, 0)],
)
def test_the_examples_are_understood_as_they_are(
    tmp_path: Path, example: str, samples: int, loaders: int
) -> None:
    arguments = ["--data", str(tmp_path / "data")] if example == "photos_resnet" else []
    program = parse_program(str(EXAMPLES / example / "train.py"), arguments, tmp_path)
    with Rig(program, tmp_path / "rig", tmp_path / "cache", fence()) as rig:
        ready = rig.open(None, never, 120.0)
        assert isinstance(ready, Ready), ready
        measured = OpenRig(rig, ready.profile, base_setting(ready.profile)).measured()
    assert measured.samples_per_step == samples
    assert len(ready.profile.loaders) == loaders


@pytest.mark.slow
@pytest.mark.real_starts
def test_a_knob_of_another_package_is_offered_and_acts(tmp_path: Path) -> None:
    """Built and installed as a package; its entry point alone makes it known."""
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--target", site, EXAMPLES / "custom_knob"],
        check=True,
    )  # fmt: skip
    program = tmp_path / "train.py"
    program.write_text(COLLECTS)
    write_best(tmp_path / "best.yaml", baseline={"gc_threshold": 700}, gc_threshold=100_000)
    listed, ran = (
        subprocess.run(
            [sys.executable, "-m", "autotune", *command, program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for command in (["knobs"], ["run", "best.yaml"])
    )
    offered = next(line for line in listed.splitlines() if "gc_threshold" in line)
    assert {"700", "10000", "100000"} <= set(re.findall(r"\d+", offered.replace(",", "")))
    assert ran.splitlines()[-1] == "100000"


COLLECTS = """
import gc, torch
from torch import nn
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(200):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(gc.get_threshold()[0])
"""
