from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.program import parse_program
from autotune.rig import Rig
from autotune.wire import Ready
from tests.rigging import never

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
    with Rig(program, tmp_path / "rig", tmp_path / "cache") as rig:
        ready = rig.open(None, never, 120.0)
        assert isinstance(ready, Ready), ready
    assert ready.profile.samples_per_step == samples
    assert len(ready.profile.loaders) == loaders


def test_the_examples_know_nothing_of_autotune() -> None:
    scripts = list(EXAMPLES.glob("*/train.py"))
    assert len(scripts) == 3
    assert not [s for s in scripts if "autotune" in s.read_text(encoding="utf-8")]


@pytest.mark.slow
def test_an_example_saves_its_checkpoint_when_it_is_trained_with_run(workplace: Path) -> None:
    from tests.rigging import write_best

    write_best(workplace / "best.yaml", baseline={"num_threads": 2}, num_threads=1)
    script = str(EXAMPLES / "digits_cnn" / "train.py")
    subprocess.run(
        [sys.executable, "-m", "autotune", "run", "best.yaml", script, "--epochs", "1",
         "--out", "model.pt"],
        check=True, capture_output=True,
    )  # fmt: skip
    assert (workplace / "model.pt").is_file()
