"""What earlier searches in the same folder found best for a program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.measurement.goal import Goal, Objective
from autotune.measurement.turn import Played
from autotune.program.config import Config
from autotune.results.record import BaselineInfo, PlayedRounds, SearchInfo
from autotune.tuning.storage import search_dir
from autotune.tuning.storage.earlier import MOST_RUNS, SAME, SIMILAR, look
from autotune.tuning.storage.search_dir import SearchDir
from autotune.tuning.storage.study import Study
from tests.made import make_hardware, make_head, make_profile, make_record, make_space

SPACE = make_space({"workers": (0, 1, 2), "precision": ("fp32", "bf16"), "flush_denormal": None})
PROFILE, HARDWARE = make_profile(), make_hardware()
HEAD = make_head(SPACE)
RESOLVED = SPACE.resolve(HEAD.hardware, PROFILE)
BASELINE = RESOLVED.baseline
FASTER = BASELINE.replace(workers=1, precision="bf16")
OTHER_PROGRAM = replace(HEAD, program=replace(HEAD.program, fingerprint="another"))
OTHER_GOAL = replace(HEAD, options=replace(HEAD.options, goal=Goal(Objective.MEMORY)))
ELSEWHERE = replace(HEAD, hardware=replace(HEAD.hardware, cpu_quota=64))


def run(
    folder: Path, name: str, head: SearchInfo = HEAD, best: Config = FASTER, speed: float = 1.5
) -> Study:
    """Leave a search in which the two configs took turns."""
    study = search_dir.new(name, name, folder).create_study(head)
    space = head.space.resolve(head.hardware, PROFILE)
    turns = (Played(1.0, 1.0), Played(1.0, speed))
    study.add_rounds(PlayedRounds(1, (space.baseline, best), (turns,) * 20))
    for config in (space.baseline, best):
        study.tell(study.ask_for(config, space), make_record(config))
    study.facts = BaselineInfo(PROFILE, 4.0, 0.01)
    return study


def looked(folder: Path, head: SearchInfo = HEAD) -> list[tuple[Config, str]]:
    space = head.space.resolve(head.hardware, PROFILE)
    return look(SearchDir(folder / ".autotune" / "now"), head, space)


def test_the_best_of_the_same_program_is_a_hint_and_so_is_that_of_another_one(
    tmp_path: Path,
) -> None:
    run(tmp_path, "before")
    assert looked(tmp_path) == [(FASTER, SAME)]
    other = BASELINE.replace(workers=2)
    run(tmp_path, "other", OTHER_PROGRAM, other)
    assert set(looked(tmp_path)) == {(FASTER, SAME), (other, SIMILAR)}


def test_of_several_searches_the_latest_one_counts(tmp_path: Path) -> None:
    latest = BASELINE.replace(precision="bf16")
    run(tmp_path, "before")
    run(tmp_path, "after", best=latest)
    assert looked(tmp_path) == [(latest, SAME)]
    for number in range(MOST_RUNS):
        run(tmp_path, f"other {number}", OTHER_PROGRAM)
    assert looked(tmp_path) == [(FASTER, SIMILAR)], "few are read"


@pytest.mark.parametrize(
    ("head", "speed"), [(ELSEWHERE, 1.5), (OTHER_GOAL, 1.5), (HEAD, 0.9)],
    ids=["another machine", "another objective", "nothing was faster"],
)  # fmt: skip
def test_other_searches_say_nothing(tmp_path: Path, head: SearchInfo, speed: float) -> None:
    run(tmp_path, "before", head, speed=speed)
    assert looked(tmp_path) == []


def test_a_hint_leaves_out_what_needs_a_fresh_process(tmp_path: Path) -> None:
    best = BASELINE.replace(workers=2, flush_denormal=True)
    study = search_dir.new("before", "before", tmp_path).create_study(HEAD)
    for record in (make_record(BASELINE), make_record(best, 1.5)):
        study.tell(study.ask_for(record.config, RESOLVED), record)
    study.facts = BaselineInfo(PROFILE, 4.0, 0.01)
    assert looked(tmp_path) == [(BASELINE.replace(workers=2), SAME)]


def test_a_hint_with_a_value_that_this_search_does_not_try_is_none(tmp_path: Path) -> None:
    """What is left of the best may help only with the rest."""
    run(tmp_path, "before")
    narrower = replace(HEAD, space=SPACE.with_values({"workers": [0, 2]}))
    assert looked(tmp_path, narrower) == []


def test_a_run_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    broken = search_dir.new("broken", "broken", tmp_path)
    (broken.path / search_dir.FILE).write_bytes(b"no database")
    study = run(tmp_path, "gone")
    head = study._study.user_attrs["head"]
    head["space"]["knobs"]["no_such_knob"] = None
    study._study.set_user_attr("head", head)
    assert looked(tmp_path) == []
