"""The callbacks of Lightning and Hugging Face that apply a best.yaml, in their real trainers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.made import make_loader
from tests.rigging import PROGRAMS, write_best

WAYS = ("written", "applied", "search", "batch")
LOADER = make_loader(dataset="Points", dataset_len=64, batch_size=8)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_a_callback_applies_a_best_yaml_and_the_training_is_the_same(
    library: str, workplace: Path
) -> None:
    """Lightning's loader is built before the callback, that of Hugging Face's trainer later."""
    write_best(workplace / "best.yaml", {"workers": 0}, LOADER, library, workers=1)
    write_best(workplace / "batch.yaml", {"batch_size": 8}, LOADER, library, batch_size=16)
    ways = (*WAYS, "sent") if library == "lightning" else WAYS
    command = [sys.executable, str(PROGRAMS / "applies.py"), library, *ways]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no DataLoader here is the one that was tuned" not in done.stderr
    assert "autotune: best.yaml sets workers=1" in done.stderr
    written, applied, search, batch = (
        dict[str, Any](json.loads(Path(f"{way}.json").read_text())) for way in WAYS
    )
    assert len(written["losses"]) == 16
    assert written["by_worker"] == [False]
    assert applied == {**written, "by_worker": [True]}
    assert search == written, "autotune steers the program itself, and reads no file"
    if library == "lightning":
        assert "DataLoader was built before batch.yaml was applied" in batch["error"]
        assert not batch["losses"], "nothing is trained with half of a config"
        assert json.loads(Path("sent.json").read_text()) == applied
    else:
        assert len(batch["losses"]) == 8
