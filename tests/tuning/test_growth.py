"""What becomes of configs with a larger global batch, over whole searches in virtual time."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.measurement.outcome import Ending, Outcome
from autotune.program.config import Config, KnobValue
from autotune.program.may_change import MayChange
from autotune.results.finding import Finding
from autotune.results.wording import factor, format_duration
from autotune.tuning.storage.study import allow
from tests.made import A100, GIB, make_profile, make_space
from tests.scripted import CRASH, Question, Script, Searched, begin
from tests.tuning.watched import Heard, told

KNOBS: dict[str, tuple[KnobValue, ...]] = {
    "workers": (0, 1, 2),
    "batch_size": (64, 128, 256),
    "accumulation_steps": (1, 2),
}
SPEEDS: dict[str, dict[KnobValue, float]] = {
    "workers": {1: 1.2, 2: 1.4},
    "batch_size": {128: 1.3, 256: 1.5},
    "accumulation_steps": {2: 0.8},
}


GIVEN = {
    "fixed": make_space(KNOBS).fix({"accumulation_steps": 2}),
    "listed": make_space(KNOBS).with_values({"accumulation_steps": [1, 2]}),
}


def begun(
    folder: Path,
    trains: Callable[[Config], float] = lambda _: 1.0,
    ends: Callable[[Question], Ending | None] = lambda _: None,
    **options: Any,
) -> Searched:
    script = Script(SPEEDS, noise=0.02, process_noise=0.01, trains=trains, ends=ends)
    return begin(folder, script, KNOBS, **options)


def test_the_global_batch_stays_where_a_check_takes_too_long_and_its_price_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six runs of 4 s each and more are not in what the claim leaves of 90 s."""
    result = begun(tmp_path).go_on(90.0)
    assert result.finding is Finding.FASTER
    assert (result.best["workers"], result.learning.global_batches) == (2, (64, 64))
    larger = result.larger_batch
    assert larger is not None
    assert larger.config["batch_size"] in {128, 256}
    assert larger.speedup.low <= 1.4 * SPEEDS["batch_size"][larger.config["batch_size"]]
    out = told(result, capsys)
    said = f"~{factor(larger.speedup)} at batch {larger.config['batch_size']}?"
    assert f"larger batch {said} autotune resume train --may-change batch" in out
    assert f"checking that takes {format_duration(larger.check_s)}" in out
    assert larger.check_s > 60
    late = [record.config["batch_size"] != 64 for record in result.records]
    assert not any(late[: len(late) // 2]), "the time goes into what may be recommended"


def test_a_search_that_rejects_one_batch_after_the_other_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each check extends the budget, so there are two of them at most."""
    sizes = (64, 80, 96, 112, 128, 160)
    speeds: dict[str, dict[KnobValue, float]] = {
        "batch_size": {size: 1 + 0.004 * (size - 64) for size in sizes}
    }
    script = Script(
        speeds, noise=0.02, process_noise=0.01, trains=lambda c: 1 + (c["batch_size"] != 64) / 20
    )
    search = begin(tmp_path, script, {"batch_size": sizes})
    allow(search.study, MayChange.BATCH)
    result = search.go_on(300.0)
    checked = [record for record in result.rehearsals if record.seeds]
    assert len(checked) == 2
    assert result.learning.global_batches == (64, 64)
    assert all(record.is_blamed and {*record.guilty} == {"batch_size"} for record in checked)
    assert all(record.seeds == 3 for record in checked)
    assert "changes the training: loss at equal samples +4." in told(result, capsys)
    assert result.larger_batch is not None
    assert result.larger_batch.config["batch_size"] not in {r.config["batch_size"] for r in checked}


def test_a_check_that_fits_into_the_budget_is_made_unasked(tmp_path: Path) -> None:
    search = begun(tmp_path, may_change=MayChange.BATCH)
    result = search.go_on(900.0)
    assert result.finding is Finding.FASTER
    assert any(record.seeds for record in result.rehearsals)
    assert result.learning.global_batches[1] in {128, 256}
    assert result.seconds <= 900.0


def test_a_larger_batch_that_learns_as_much_is_a_second_config_with_its_own_claim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The headline keeps the batch, and the processes of its claim play these two alone."""
    search = begun(tmp_path)
    result = search.go_on(300.0)
    assert result.finding is Finding.FASTER
    assert dict(result.changes) == {"workers": 2}
    larger = result.larger_batch
    assert larger is not None
    assert larger.is_confirmed
    assert dict(larger.config.changes_from(result.baseline)) == {"workers": 2, "batch_size": 128}
    assert larger.speedup.low <= 1.4 * 1.3 <= larger.speedup.high
    assert {one.config for one in result.claim} == {result.best}
    assert {one.config for one in larger.claim} == {larger.config}
    assert result.seconds <= 300.0
    assert "larger batch 1.82x at batch 128: autotune run --larger-batch " in told(result, capsys)
    second = result.best_file().larger_batch
    assert second is not None
    assert second.config == {"workers": 2, "batch_size": 128}
    kept = search.study.result
    assert kept is not None
    assert kept.larger_batch == larger, "the record has it"
    allow(search.study, MayChange.BATCH)
    main = search.go_on(400.0)
    assert main.learning.global_batches[1] in {128, 256}, "as soon as the user lets it win"
    assert main.larger_batch is None
    (record,) = [record for record in main.rehearsals if record.config == main.best]
    assert (record.seeds, record.is_blamed) == (3, False)
    assert "from 3 random states" in told(main, capsys)


def test_batches_may_win_where_the_claim_has_left_the_time_to_check_them(tmp_path: Path) -> None:
    """The check would take more than a small share of this budget, so it waits for the claim."""
    heard = Heard()
    result = begun(tmp_path, may_change=MayChange.BATCH).go_on(300.0, heard)
    told = "Checking what a larger batch learns takes about "
    assert any(note.startswith(told) and "--budget " in note for note in heard.notes)
    assert dict(result.changes) == {"workers": 2, "batch_size": 128}
    assert result.finding is Finding.FASTER
    assert result.larger_batch is None


def test_a_larger_batch_alone_gets_processes_of_its_own(tmp_path: Path) -> None:
    script = Script({"batch_size": {128: 1.4}}, noise=0.02, process_noise=0.01)
    result = begin(tmp_path, script, {"batch_size": (64, 128)}).go_on(300.0)
    assert (result.finding, dict(result.changes)) == (Finding.NOTHING_FOUND, {})
    assert result.larger_batch is not None
    assert result.larger_batch.is_confirmed
    assert result.larger_batch.speedup.low <= 1.4 <= result.larger_batch.speedup.high


def test_a_larger_batch_that_learns_less_is_not_told_as_a_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = begun(tmp_path, lambda c: 1.1 if c["batch_size"] != 64 else 1.0).go_on(300.0)
    assert dict(result.changes) == {"workers": 2}
    assert result.larger_batch is None
    assert "batch_size=128 changes the training: loss at equal samples +9.7 %" in told(
        result, capsys
    )


def test_a_larger_batch_that_fails_in_its_claim_leaves_the_other_as_it_is(
    tmp_path: Path,
) -> None:
    heard = Heard()

    def ends(question: Question) -> Ending | None:
        is_large = question.config is not None and question.config.get("batch_size", 64) != 64
        is_claim = heard.phases[-1:] == ["claim"]
        return CRASH if is_large and is_claim and question.kind == "measure" else None

    search = begun(tmp_path, ends=ends)
    result = search.go_on(300.0, heard)
    assert result.finding is Finding.FASTER
    assert dict(result.changes) == {"workers": 2}
    assert result.larger_batch is None
    assert search.study.records[-1].outcome is Outcome.CRASHED


@pytest.mark.parametrize("sampler", ["autotune", "random"])
@pytest.mark.parametrize("how", GIVEN)
def test_named_accumulation_may_win_without_a_check(tmp_path: Path, how: str, sampler: str) -> None:
    """A larger batch, which nobody named, is not among what may be recommended."""
    speeds: dict[str, dict[KnobValue, float]] = {**SPEEDS, "accumulation_steps": {2: 1.2}}
    script = Script(speeds, noise=0.02, process_noise=0.01)
    result = begin(tmp_path, script, GIVEN[how], sampler=sampler).go_on(180.0)
    assert result.finding is Finding.FASTER
    assert dict(result.changes) == {"workers": 2, "accumulation_steps": 2}


def gib(base: float, sample: float, power: float = 1.0) -> Callable[[Config], int]:
    """Return the memory of batches: a part for each sample beside what all have."""
    return lambda config: round((base + sample * int(config["batch_size"]) ** power) * GIB)


# Speed of a batch; memory of it; batches that may win; how many may be too large
ON_A_GPU: dict[str, tuple[Callable[[int], float], Callable[[Config], int], set[int], int]] = {
    "between two doublings": (lambda n: n / (n + 100), gib(4.0, 0.1), {320}, 0),
    "without room for twice its batch": (lambda n: n / (n + 100), gib(20.0, 0.15), {104}, 0),
    "more memory than a line": (lambda n: n / (n + 100), gib(4.0, 0.0025, 1.6), {336, 384}, 2),
    "the largest on offer fits": (lambda n: n / (n + 100), gib(2.0, 0.03), {384}, 0),
    "slower from 256 on": (lambda n: min(n, 512 - n), gib(4.0, 0.1), {256}, 0),
}


@pytest.mark.parametrize("name", ON_A_GPU)
def test_on_a_gpu_the_largest_batch_that_fits_wins_where_larger_ones_are_faster(
    tmp_path: Path, name: str
) -> None:
    """Of 40 GiB, some are CUDA's, and a part is left free."""
    speed, device_bytes, sizes, most = ON_A_GPU[name]
    script = Script(
        {"batch_size": {n: speed(n) / speed(64) for n in range(8, 512, 8)}, "workers": {1: 1.2}},
        profile=make_profile(device="cuda"),
        noise=0.02,
        process_noise=0.01,
        device_bytes=device_bytes,
        gpus=(replace(A100, usable_bytes=39 * GIB + GIB // 2),),
    )
    knobs = {**KNOBS, "batch_size": (64, 128, 256, 384), "memory_format": ("contiguous",)}
    search = begin(tmp_path, script, knobs, may_change=MayChange.ANY)
    result = search.go_on(180.0)
    assert result.finding is Finding.FASTER, result.reason
    assert result.best["batch_size"] in sizes
    assert result.best_file().config["batch_size"] == result.best["batch_size"]
    too_large = [r for r in result.records if r.outcome is Outcome.OUT_OF_MEMORY]
    assert len(too_large) <= most
    assert search.go_on(220.0).best["batch_size"] in sizes, "the record holds such a batch"
