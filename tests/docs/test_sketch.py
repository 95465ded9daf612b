"""The sketch of the whole idea, which docs/contribute/architecture.md shows, does what it says."""

import re
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

SKETCH = ROOT / "docs" / "contribute" / "sketch.py"


@pytest.mark.slow
def test_the_sketch_of_the_idea_is_short_and_ends_with_a_verdict() -> None:
    assert len(SKETCH.read_text(encoding="utf-8").splitlines()) <= 150
    done = subprocess.run([sys.executable, SKETCH], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    nothing = r"threads \d+: found nothing faster that trains the same\n"
    claimed = r"threads \d+ -> \d+: (not shown to be )?faster, [\d.]+x \[[\d.]+, [\d.]+\]\n"
    assert re.fullmatch(f"{nothing}|{claimed}", done.stdout)
