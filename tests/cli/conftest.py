"""Searches that are over, as the commands about them find them."""

from pathlib import Path

import pytest

from autotune.tuning.storage import search_dir
from tests.scripted import Script, begin

KNOBS = {"workers": (0, 1, 2), "batch_size": (64, 128)}


@pytest.fixture(scope="session")
def searches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs ``slow`` and ``fast``, of which the second one found more."""
    folder = tmp_path_factory.mktemp("a folder with a long name, as those of projects may have")
    _record(folder, "slow", Script({"workers": {1: 1.3}}), 0)
    _record(folder, "fast", Script({"workers": {1: 1.3, 2: 1.8}}), 1)
    (folder / "train.py").touch()
    return folder


def _record(folder: Path, name: str, script: Script, seed: int) -> None:
    """Search on the scripted machine, and keep the record in ``.autotune/`` of a folder."""
    searched = begin(folder / "scratch" / name, script, KNOBS, seed)
    result = searched.go_on(180.0)
    run = search_dir.new(name, name, folder)
    searched.keep(run)
    result.save(run.path / "best.yaml")
