"""A search on the scripted machine whose record lies in its folder, as commands expect it."""

import os
from pathlib import Path

import pytest

import autotune
from autotune.measurement.outcome import Ending, Outcome
from autotune.results.result import SearchResult
from autotune.results.verdict import verdict
from tests.scripted import Script, begin
from tests.tuning.watched import Knobs, is_fast

KNOBS: Knobs = {"workers": (0, 1, 2), "batch_size": (64, 128), "precision": ("fp32", "bf16")}
ROOT = Path(__file__).parents[2]
BEST = Path("best.yaml")
HOSTILE = "</script><script>alert('x')</script> \"quoted\" & <b>bold</b> | `code` [link](http://x)"
CRASH = Ending(Outcome.CRASHED, f"ValueError: {HOSTILE}", f"Traceback …\n{HOSTILE}", steps=1)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    """A search that found something, in a folder whose name a shell would stumble over."""
    script = Script(
        {"workers": {1: 1.5}},
        ends=lambda question: CRASH if is_fast(question) else None,
        peak_bytes=lambda config, _: (1 + int(config["workers"])) << 30,
    )
    searched = begin(tmp_path_factory.mktemp("it's a search"), script, KNOBS)
    result = searched.go_on(180.0)
    searched.keep(searched.run)
    kept = autotune.load(str(searched.run.path))
    assert verdict(kept, BEST) == verdict(result, BEST), "the record says what the search said"
    return kept


def offline(folder: Path) -> dict[str, str]:
    """Return an environment in which trackers keep everything in a folder."""
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        **{f"WANDB_{kind}_DIR": str(folder / kind) for kind in ("CACHE", "CONFIG", "DATA")},
    }
