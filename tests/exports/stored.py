"""A search on the scripted machine whose record lies in its folder, as commands expect it."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

import autotune
from autotune.program.config import KnobValue
from autotune.results.result import SearchResult
from autotune.tuning.storage import search_dir
from tests.scripted import Script, begin

KNOBS: dict[str, tuple[KnobValue, ...]] = {
    "workers": (0, 1, 2),
    "batch_size": (64, 128),
    "precision": ("fp32", "bf16"),
}


def store_search(folder: Path) -> SearchResult:
    """Search, and return what ``autotune.load()`` returns in this folder."""
    script = Script(
        {"workers": {1: 1.5}},
        peak_bytes=lambda config, _: (1 + int(config["workers"])) << 30,
    )
    searched = begin(folder, script, KNOBS)
    searched.go_on(180.0)
    # Searching in memory and copying takes a tenth of the time of searching in a file
    optuna.copy_study(
        from_study_name=search_dir.STUDY_NAME,
        from_storage=searched.storage,
        to_storage=searched.run.storage,
    )
    return autotune.load(str(searched.run.path))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    """A search that found something, in a folder whose name a shell would stumble over."""
    return store_search(tmp_path_factory.mktemp("it's a search"))
