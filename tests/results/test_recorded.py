"""Files of earlier versions: a best.yaml still trains, and a search starts anew.

Recorded by commit 0622edb (November 2026), before the rooms: a search of 2 minutes of karpathy's
makemore.py on two cores, with paths replaced.
"""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path

import pytest

from autotune.errors import FileFormatError, RunDirectoryError
from autotune.results import bestfile
from autotune.results.record import FORMAT
from autotune.tuning.storage.search_dir import FILE, SearchDir

RECORDED = Path(__file__).parent / "recorded"
BEST = RECORDED / "best-0622edb.yaml"


def test_a_search_of_an_earlier_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    script = gzip.decompress((RECORDED / "study-0622edb.sql.gz").read_bytes()).decode()
    connection = sqlite3.connect(tmp_path / FILE)
    connection.executescript(script)
    connection.close()
    with pytest.raises(RunDirectoryError, match=rf"format 3, .* reads {FORMAT}\. Start a new"):
        SearchDir(tmp_path).load_study()


def test_a_fault_in_an_old_file_is_told_by_the_name_and_line_that_it_has_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "best.yaml"
    text = BEST.read_text(encoding="utf-8").replace("own_autocast: false", "own_autocast: perhaps")
    path.write_text(text, encoding="utf-8")
    line = text.splitlines().index("  own_autocast: perhaps") + 1
    with pytest.raises(FileFormatError, match=f"best.yaml:{line}: 'program.own_autocast'"):
        bestfile.read(path)


def test_a_best_yaml_of_an_earlier_version_trains(tmp_path: Path) -> None:
    best = bestfile.read(BEST)
    assert best.config["batch_size"] == 128
    assert best.applied.changes() == {"batch_size": 128}
    assert best.applied.traits.program_knobs == ()
    assert best.applied.traits.loader is not None
    again = tmp_path / "best.yaml"
    best.write(again)
    assert bestfile.read(again) == best
    assert "own_knobs" not in again.read_text(encoding="utf-8")
