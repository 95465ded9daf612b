"""Files of earlier versions are refused with what to do.

Recorded by commit 0622edb (November 2026), before the rooms: a search of 2 minutes of karpathy's
makemore.py on two cores, with paths replaced.
"""

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


def test_a_best_yaml_of_an_earlier_version_is_refused_with_its_lines() -> None:
    with pytest.raises(FileFormatError) as refusal:
        bestfile.read(BEST)
    told = str(refusal.value)
    assert "best-0622edb.yaml:49: num_workers is now part of workers" in told
