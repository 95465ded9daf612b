"""What earlier searches in the same folder say about a program."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from autotune.measurement.visit import Visit
from autotune.program.config import Config
from autotune.results.record import BaselineInfo, SearchInfo, TrialRecord
from autotune.tuning.storage import search_dir
from autotune.tuning.storage.earlier import SAME, SIMILAR, Earlier, look
from autotune.tuning.storage.study import Study
from tests.made import make_hardware, make_head, make_profile, make_record, make_space

SPACE = make_space({"num_workers": (0, 1, 2), "precision": ("fp32", "bf16"), "compile": None})
PROFILE, HARDWARE = make_profile(), make_hardware()
HEAD = make_head(SPACE)
RESOLVED = SPACE.resolve(HEAD.hardware, PROFILE)
BASELINE = RESOLVED.baseline
FASTER = BASELINE.replace(num_workers=1, precision="bf16")


def record(config: Config, speed: float, at_s: float, rate: float = 1000.0) -> TrialRecord:
    visit = Visit(1, at_s, math.log(rate * speed), 0.01)
    return replace(make_record(config, speed), visits=(visit,))


def run(folder: Path, name: str, head: SearchInfo = HEAD, best: Config = FASTER) -> Study:
    study = search_dir.new(name, name, folder).create_study(head)
    space = head.space.resolve(head.hardware, PROFILE)
    for config, speed, at_s in ((space.baseline, 1.0, 50.0), (best, 1.5, 52.0)):
        study.tell(study.ask_for(config, space), record(config, speed, at_s))
    study.facts = BaselineInfo(PROFILE, 4.0, 0.01)
    return study


def looked(folder: Path, head: SearchInfo = HEAD, rate: float = 1000.0) -> Earlier:
    here = search_dir.new("now", "now", folder)
    return look(here, head, RESOLVED, record(BASELINE, 1.0, 10.0, rate))


def test_visits_of_the_same_program_count_long_before_those_of_now(tmp_path: Path) -> None:
    run(tmp_path, "before")
    found = looked(tmp_path)
    assert [config for config, _ in found.visits] == [BASELINE, FASTER]
    assert all(visit.at_s < -1000 and visit.process < 0 for _, visit in found.visits)
    assert found.hints == ((FASTER, SAME),)


def test_two_earlier_searches_have_processes_of_their_own(tmp_path: Path) -> None:
    run(tmp_path, "before")
    run(tmp_path, "after")
    found = looked(tmp_path)
    assert len(found.visits) == 4
    assert len({visit.process for _, visit in found.visits}) == 2
    assert len(found.hints) == 1


def test_another_program_gives_a_hint_alone(tmp_path: Path) -> None:
    other = replace(HEAD, program=replace(HEAD.program, fingerprint="another"))
    run(tmp_path, "before", other)
    found = looked(tmp_path)
    assert found.visits == ()
    assert found.hints == ((FASTER, SIMILAR),)


def test_a_hint_leaves_out_what_this_search_cannot_try(tmp_path: Path) -> None:
    other = replace(HEAD, program=replace(HEAD.program, args=("--other",)))
    run(tmp_path, "before", other, BASELINE.replace(num_workers=2, compile="default"))
    assert looked(tmp_path).hints == ((BASELINE.replace(num_workers=2), SIMILAR),)


def test_nothing_counts_from_another_machine(tmp_path: Path) -> None:
    run(tmp_path, "before", replace(HEAD, hardware=replace(HEAD.hardware, cpu_quota=64)))
    assert looked(tmp_path) == Earlier()


def test_where_the_program_runs_at_another_speed_something_unseen_has_changed(
    tmp_path: Path,
) -> None:
    run(tmp_path, "before")
    found = looked(tmp_path, rate=2000.0)
    assert found.visits == ()
    assert found.hints == ((FASTER, SAME),)


def test_a_run_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    broken = search_dir.new("broken", "broken", tmp_path)
    (broken.path / search_dir.FILE).write_bytes(b"no database")
    assert looked(tmp_path) == Earlier()


def test_what_is_known_stays_in_the_study(tmp_path: Path) -> None:
    run(tmp_path, "before")
    study = run(tmp_path, "mine")
    found = looked(tmp_path)
    study.know_earlier(found.visits, found.hints)
    again = search_dir.find("mine", tmp_path).load_study()
    assert tuple(again.hints) == found.hints
    assert tuple(again.earlier) == found.visits
    # The two visits of the run and four of earlier ones
    assert len(again.model.visits) == 2 + len(found.visits)


def test_visits_of_values_that_this_search_does_not_try_are_left_out(tmp_path: Path) -> None:
    run(tmp_path, "before")
    narrower = SPACE.with_values({"num_workers": [0, 2]}).resolve(HEAD.hardware, PROFILE)
    here = search_dir.new("now", "now", tmp_path)
    found = look(here, HEAD, narrower, record(BASELINE, 1.0, 10.0))
    assert [config for config, _ in found.visits] == [BASELINE]
    assert found.hints == (), "what is left of the best may help only with the rest"


def test_a_run_with_a_knob_that_is_gone_is_left_out(tmp_path: Path) -> None:
    study = run(tmp_path, "before")
    head = study._study.user_attrs["head"]
    head["space"]["knobs"]["no_such_knob"] = None
    study._study.set_user_attr("head", head)
    assert looked(tmp_path) == Earlier()
