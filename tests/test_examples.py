from pathlib import Path

import pytest

from autotune.program.program import parse_program
from autotune.rig.rig import Rig
from autotune.rig.wire import Ready
from tests.rigging import OpenRig, base_setting, fence, never

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
