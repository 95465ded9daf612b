"""Searches that are over, recorded in a folder as the commands about them find them."""

from __future__ import annotations

from pathlib import Path

import optuna

from autotune.results.result import SearchResult
from autotune.tuning.storage import search_dir
from tests.scripted import Script, begin

KNOBS = {"num_workers": (0, 1, 2), "batch_size": (64, 128)}


def record(folder: Path, name: str, script: Script, seed: int = 0) -> SearchResult:
    """Search on the scripted machine, and keep the record in ``.autotune/`` of a folder.

    The search itself keeps its record in memory: writing each fact to a file takes seconds.
    """
    searched = begin(folder / "scratch" / name, script, KNOBS, seed)
    result = searched.go_on(180.0)
    run = search_dir.new(name, name, folder)
    optuna.copy_study(
        from_study_name=search_dir.STUDY_NAME,
        from_storage=searched.storage,
        to_storage=run.storage,
    )
    result.save(run.path / "best.yaml")
    return result
