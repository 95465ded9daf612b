"""Exact settings that train something else are not searched: whole searches in virtual time."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.measurement.learning.training_trace import Sameness
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.config import Config, KnobValue
from autotune.program.may_change import MayChange
from autotune.results.data.result import as_data
from autotune.results.finding import Finding
from autotune.tuning.events import Phase
from autotune.tuning.storage.study import allow
from tests.scripted import Question, Script, Searched, begin
from tests.tuning.watched import Heard, told

KNOBS: dict[str, tuple[KnobValue, ...]] = {
    "workers": (0, 1, 2),
    "prefetch_factor": (2, 4),
    "memory_format": ("contiguous", "channels_last"),
    "threads": (1, 2),
    "precision": ("fp32", "bf16"),
}
SPEEDS: dict[str, dict[KnobValue, float]] = {
    "workers": {1: 1.2, 2: 1.3},
    "memory_format": {"channels_last": 1.3},
    "threads": {1: 1.2},
}


def begun(folder: Path, heard: Heard, script: Script, budget_s: float = 180.0) -> Any:
    search = begin(folder, script, KNOBS)
    return search, search.go_on(budget_s, heard)


def rehearsed(search: Searched) -> list[Config | None]:
    return [asked.config for asked in search.machine.asked if asked.kind == "rehearse"]


def test_settings_that_train_the_same_are_cleared_before_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = Heard()
    search, result = begun(tmp_path, heard, Script(SPEEDS, noise=0.02))
    assert heard.phases.index(Phase.SAME_TRAINING) < heard.phases.index(Phase.TRY)
    assert "rehearse" not in heard.phases
    said = "Your training is the same within rounding over 36 steps with workers=2 "
    assert any(note.startswith(said) for note in heard.notes)
    canary = search.study.canary
    assert canary.training.sameness is Sameness.ROUNDING
    assert not canary.refused
    assert len(rehearsed(search)) == 3, "as written, with rounded weights, and all at once"
    assert result.finding is Finding.FASTER
    note = "Training: same within rounding over 36 steps."
    assert note in told(result, capsys)
    learning = as_data(result)["learning"]
    assert learning["training"] == note
    assert not learning["refused"]
    asked = len(rehearsed(search))
    search.go_on(240.0)
    assert len(rehearsed(search)) == asked, "a resumed search knows it"


@pytest.mark.parametrize(
    ("knob", "wrong", "left"),
    [
        ("memory_format", lambda c: c["memory_format"] == "channels_last", {"workers", "threads"}),
        ("threads", lambda c: c["threads"] == 1, {"workers", "memory_format"}),
        ("prefetch_factor", lambda c: c["workers"] and c["prefetch_factor"] == 4, set()),
        ("workers", lambda c: c["workers"], {"memory_format"}),
    ],
)
def test_the_setting_that_trains_something_else_is_found_and_not_searched(
    tmp_path: Path, knob: str, wrong: Callable[[Config], bool], left: set[str]
) -> None:
    heard = Heard()
    script = Script(SPEEDS, noise=0.02, trains=lambda config: 1.01 if wrong(config) else 1.0)
    search, result = begun(tmp_path, heard, script)
    canary = search.study.canary
    assert [*canary.refused] == [knob]
    assert "losses differ by" in canary.refused[knob]
    said = f"Not searched: {knob}: it changes the training (losses differ by"
    assert any(warning.startswith(said) for warning in heard.warnings)
    assert result.refused[knob] == canary.refused[knob]
    assert search.study.result.refused == result.refused
    if knob == "workers":
        assert result.refused["prefetch_factor"] == "it acts only with workers"
    assert result.finding is Finding.FASTER
    assert knob not in result.changes
    assert all(knob not in r.config.changes_from(result.baseline) for r in result.records)
    assert search.go_on(240.0).best[knob] == result.baseline[knob], "nor by a resumed search"
    assert left <= result.changes.keys()


def test_where_nothing_may_change_what_only_rounds_otherwise_is_not_searched(
    tmp_path: Path,
) -> None:
    """By its level, or because this program's numbers are not equal bit for bit."""
    heard = Heard()
    script = Script(SPEEDS, noise=0.02, rounds=lambda config: bool(config["prefetch_factor"] != 2))
    knobs = {**KNOBS, "batch_size": (64, 128)}
    search = begin(tmp_path, script, knobs, may_change=MayChange.NOTHING)
    result = search.go_on(180.0, heard)
    for knob in ("memory_format", "threads", "precision"):
        assert result.refused[knob] == "only with --may-change rounding"
    assert result.refused["batch_size"] == "only with --may-change batch"
    canary = search.study.canary
    assert canary is not None
    assert canary.refused == {"prefetch_factor": "it changes the training (it rounds otherwise)"}
    assert canary.training is not None
    assert canary.training.sameness is Sameness.BITS
    assert dict(result.changes) == {"workers": 2}
    assert "same, bit for bit" in result.training_note


def test_where_nothing_may_change_only_what_was_seen_to_be_equal_is_claimed(tmp_path: Path) -> None:
    """There is no time to compare before the search, and in the shortest budget none after it."""
    knobs = {"workers": KNOBS["workers"]}
    for budget_s, rounds, is_claimed in ((60.0, 0, False), (90.0, 0, True), (90.0, 1, False)):
        script = Script(SPEEDS, noise=0.02, rounds=(lambda _: False, lambda _: True)[rounds])
        folder = tmp_path / f"{budget_s} {rounds}"
        result = begin(folder, script, knobs, may_change=MayChange.NOTHING).go_on(budget_s)
        assert (result.finding is Finding.FASTER) is is_claimed
        assert ("equal bit for bit" in result.reason) is (budget_s == 60)


def test_a_search_that_may_change_nothing_from_now_on_compares_again(tmp_path: Path) -> None:
    script = Script(SPEEDS, noise=0.02, rounds=lambda config: bool(config["workers"]))
    search = begin(tmp_path, script, {"workers": KNOBS["workers"]})
    assert search.go_on(180.0).finding is Finding.FASTER
    allow(search.study, MayChange.NOTHING)
    result = search.go_on(360.0)
    assert not result.changes
    assert result.finding is not Finding.FASTER


def test_a_setting_under_which_the_program_fails_is_found(tmp_path: Path) -> None:
    def ends(question: Question) -> Ending | None:
        fails = question.config is not None and question.config.get("workers", 0)
        return Ending(Outcome.CRASHED, "cannot pickle it") if fails else None

    search, result = begun(tmp_path, Heard(), Script(SPEEDS, noise=0.02, ends=ends))
    canary = search.study.canary
    assert canary.refused == {"workers": "the program fails with it (cannot pickle it)"}
    assert result.finding is Finding.FASTER
    assert not any(record.ending for record in result.records), "no trial was wasted on it"


def test_a_setting_that_needs_too_much_memory_at_its_end_is_searched(tmp_path: Path) -> None:
    def ends(question: Question) -> Ending | None:
        workers = question.config.get("workers", 0) if question.config is not None else 0
        is_large = question.kind == "rehearse" and workers == 2
        return Ending(Outcome.HOST_OUT_OF_MEMORY, "killed") if is_large else None

    script = Script({"workers": {1: 1.4, 2: 1.1}}, noise=0.02, ends=ends)
    search, result = begun(tmp_path, Heard(), script)
    canary = search.study.canary
    assert canary is None or not canary.refused
    assert result.best["workers"] == 1


def test_what_was_found_before_time_ran_out_is_kept(tmp_path: Path) -> None:
    """Two faults, and time to find one of them."""
    asked = 0

    def ends(question: Question) -> Ending | None:
        nonlocal asked
        asked += question.kind == "rehearse"
        late = Ending(Outcome.OUT_OF_TIME, "there was no time")
        return late if question.kind == "rehearse" and asked > 12 else None

    def trains(config: Config) -> float:
        return (1.01 if config["workers"] else 1.0) * (
            1.02 if config["memory_format"] == "channels_last" else 1.0
        )

    script = Script(SPEEDS, noise=0.02, ends=ends, trains=trains)
    search, result = begun(tmp_path, Heard(), script, 300.0)
    canary = search.study.canary
    (refused,) = canary.refused
    assert canary.training is None
    assert refused not in result.changes


def test_what_the_user_fixed_and_trains_otherwise_is_not_compared(tmp_path: Path) -> None:
    knobs = {k: v for k, v in KNOBS.items() if k != "precision"}
    search = begin(tmp_path, Script(SPEEDS, noise=0.02), knobs)
    head = search.study.head
    space = head.space.fix({"precision": "bf16"})
    search.study.head = replace(head, space=space)
    result = search.go_on(180.0)
    canary = search.study.canary
    assert canary is not None
    assert canary.config["precision"] == "fp32"
    assert not canary.refused
    assert result.best["precision"] == "bf16"


def test_a_program_that_never_trains_the_same_twice_leaves_all_to_the_end(tmp_path: Path) -> None:
    def ends(question: Question) -> Ending | None:
        is_cut = question.kind == "rehearse" and question.config is not None
        return Ending(Outcome.CRASHED, "no such thing as equal conditions") if is_cut else None

    search, result = begun(tmp_path, Heard(), Script(SPEEDS, noise=0.02, ends=ends))
    assert search.study.canary is None
    assert result.candidate is not None


def test_without_time_nothing_is_refused_and_the_best_is_compared(tmp_path: Path) -> None:
    heard = Heard()
    script = Script(SPEEDS, noise=0.02)
    search, result = begun(tmp_path, heard, script, 75.0)
    assert heard.notes[0].startswith("Not compared before the search: there was no time")
    assert search.study.canary is None
    assert not result.refused
    assert result.candidate is not None
