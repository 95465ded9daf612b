"""What earlier versions recorded can still be read: field names and modules have moved since.

Recorded by commit 0622edb (November 2026), before the rooms: a search of 2 minutes of karpathy's
makemore.py on two cores, with paths replaced.
"""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path

import pytest

from autotune.errors import FileFormatError
from autotune.results import bestfile
from autotune.results.former_names import with_present_names
from autotune.results.record import Side
from autotune.tuning.confirming.confirmation import read as read_confirmation
from autotune.tuning.storage.search_dir import FILE, SearchDir
from autotune.tuning.storage.study import Study

RECORDED = Path(__file__).parent / "recorded"
BEST = RECORDED / "best-0622edb.yaml"


@pytest.fixture
def study(tmp_path: Path) -> Study:
    script = gzip.decompress((RECORDED / "study-0622edb.sql.gz").read_bytes()).decode()
    connection = sqlite3.connect(tmp_path / FILE)
    connection.executescript(script)
    connection.close()
    return SearchDir(tmp_path).load_study()


def test_a_study_of_before_the_move_is_read_whole(study: Study) -> None:
    assert study.head.program.name == "makemore"
    facts = study.facts
    assert facts is not None
    assert facts.profile.loaders[0].batch_size == 32
    assert facts.profile.program_autocast is None
    assert facts.breakdown.split is not None
    assert facts.breakdown.loader_throughput is not None
    assert [r.config["batch_size"] for r in study.records if r.measurement][-1] == 128
    assert study.rehearsals[0].own.has_passed
    rounds = study.confirmation
    assert {window.side for window in rounds[0]} == set(Side)
    confirmation = read_confirmation(rounds)
    assert confirmation is not None
    assert confirmation.speedup.estimate == pytest.approx(1.52, abs=0.01)


def test_its_space_can_be_searched_further(study: Study) -> None:
    """With the values that its knobs had then; autotune offers larger batches now."""
    space = study.space
    assert max(int(size) for size in space.domains["batch_size"].values) == 256
    assert space.baseline == study.records[0].config
    study.take_lease(force=True)
    study.ask_for(space.baseline.replace(batch_size=256), space)


def test_names_that_a_user_chose_are_not_taken_for_former_ones() -> None:
    raw = {"config": {"anatomy": 1}, "anatomy": {"doubts": []}}
    assert with_present_names(raw) == {"config": {"anatomy": 1}, "breakdown": {"warnings": []}}


def test_a_fault_in_an_old_file_is_told_by_the_name_and_line_that_it_has_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "best.yaml"
    text = BEST.read_text(encoding="utf-8").replace("own_autocast: false", "own_autocast: perhaps")
    path.write_text(text, encoding="utf-8")
    line = text.splitlines().index("  own_autocast: perhaps") + 1
    with pytest.raises(FileFormatError, match=f"best.yaml:{line}: 'program.own_autocast'"):
        bestfile.read(path)


def test_a_best_yaml_of_before_the_move_trains(tmp_path: Path) -> None:
    best = bestfile.read(BEST)
    assert best.config["batch_size"] == 128
    assert best.applied.changes() == {"batch_size": 128}
    assert best.applied.traits.program_knobs == ()
    assert best.applied.traits.loader is not None
    again = tmp_path / "best.yaml"
    best.write(again)
    assert bestfile.read(again) == best
    assert "own_knobs" not in again.read_text(encoding="utf-8")
