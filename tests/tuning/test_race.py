"""The race of whole searches on the scripted machine: who plays, who leaves, what may go wrong."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.knobs import registry
from autotune.measurement.goal import Goal, Objective
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.applied_config import LOADER_OPTIONS
from autotune.program.config import Config
from autotune.program.may_change import MayChange
from autotune.results.finding import Finding
from autotune.results.record import TrialRecord
from autotune.tuning.budget import OVERDRAFT
from autotune.tuning.choosing.chooser import Chooser, Field
from autotune.tuning.race import SEATS
from tests.made import A100, GIB, make_profile, make_space
from tests.scripted import CRASH, Question, Script, begin
from tests.tuning.watched import (
    FASTER,
    KNOBS,
    TWO,
    TWO_FASTER,
    Factors,
    Heard,
    Knobs,
    found,
    is_fast,
)

RESTART: Knobs = {"flush_denormal": (False, True), **TWO}
FULL = Ending(Outcome.OUT_OF_MEMORY, "the GPU's memory is full")
# What torch, cuBLAS, cuDNN, NCCL, Triton and HIP say after a kernel has failed
OF_A_GPU = (
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "AcceleratorError: CUDA error: device-side assert triggered",
    "RuntimeError: CUDA error: unspecified launch failure",
    "RuntimeError: CUDA error: misaligned address",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(…)`",
    "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "DistBackendError: NCCL error … Cuda failure 700 'an illegal memory access was encountered'",
    "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered",
    "RuntimeError: HIP error: an illegal memory access was encountered",
)
NO_KERNEL = replace(CRASH, reason="AcceleratorError: CUDA error: no kernel image is available")
GROWS: Knobs = {"batch_size": (64, 128), "memory_format": ("contiguous", "channels_last")}
BEST = {"workers": 1, "precision": "bf16"}


def failed(records: tuple[TrialRecord, ...]) -> list[TrialRecord]:
    return [r for r in records if r.outcome not in {Outcome.OK, Outcome.OUT_OF_TIME}]


# --- who plays ------------------------------------------------------------------------------------


def test_the_best_is_found_among_eighty_configs_and_losers_leave(tmp_path: Path) -> None:
    for seed in range(3):
        search, result = found(tmp_path / str(seed), Script(FASTER, drift=0.1), 120.0, seed=seed)
        assert result.finding is Finding.FASTER, result.reason
        assert dict(result.changes) == BEST
        assert result.speedup.low <= 1.3 * 1.2 <= result.speedup.high
        speeds = {r.config: r.speedup.estimate for r in result.records if r.speedup is not None}
        last = search.study.rounds[-1].configs
        assert result.best in last
        losers = {config for config in [*speeds][1:] if speeds[config] < 1.1}
        assert losers
        assert losers.isdisjoint(last)
        assert max(len(played.configs) for played in search.study.rounds) <= SEATS


def test_a_change_that_gives_nothing_is_left_out(tmp_path: Path) -> None:
    """Of two configs that are equally fast, the one with fewer changes is recommended."""
    one: Factors = {"precision": {"bf16": 1.3}}
    changes = [
        found(tmp_path / str(seed), Script(one), 90.0, TWO, seed=seed)[1].changes
        for seed in range(8)
    ]
    assert all(found["precision"] == "bf16" for found in changes)
    assert [*map(len, changes)].count(1) >= 6


def test_what_is_simpler_is_tried_before_a_race_ends_early(tmp_path: Path) -> None:
    small: Factors = {"memory_format": {"channels_last": 1.01}, "optimizer": {"fused": 1.01}}
    script = Script({"workers": {1: 1.3}, "precision": {"bf16": 1.02}, **small}, noise=0.02)
    for seed in (2, 5, 6):
        search, result = found(tmp_path / str(seed), script, 900.0, seed=seed)
        study = search.study
        field = Field(study.records, study.speeds, share_left=0.0, best=result.best)
        space = make_space(KNOBS).resolve(study.hardware, script.profile)
        assert study.speeds is not None
        assert Chooser(space, seed).simplest(field) in {None, *study.speeds.configs}, seed


def test_a_config_comes_back_to_tell_a_change_and_each_record_says_why(tmp_path: Path) -> None:
    search, result = found(tmp_path, Script(FASTER, drift=0.1), 180.0)
    configs = [record.config for record in result.records]
    assert len(set(configs)) > 8
    again = [r for n, r in enumerate(result.records) if r.config in configs[:n]]
    assert all(record.why.startswith("without") for record in again)
    assert all(record.why for record in result.records)
    played = [config for one in search.study.rounds for config in one.configs]
    assert set(played) <= set(configs)
    assert all(one.configs[0] == result.baseline for one in search.study.rounds)


def test_compiling_is_timed_apart_and_takes_turns_as_other_configs_do(tmp_path: Path) -> None:
    knobs: Knobs = {"compile": ("off", "default"), "workers": (0, 1)}
    script = Script({"compile": {"default": 1.6}}, compile_s=15.0)
    search, result = found(tmp_path / "long", script, 600.0, knobs)
    assert result.changes["compile"] == "default"
    assert result.speedup.low <= 1.6 <= result.speedup.high
    assert {played.process for played in search.study.rounds} == {1}
    _, result = found(tmp_path / "short", script, 60.0, knobs)
    assert {record.config["compile"] for record in result.records} == {"off"}
    assert "compile" in result.untried


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [CRASH, NO_KERNEL, FULL], ids=lambda ending: ending.reason[:12])
def test_a_config_fails_alone_and_the_race_goes_on(tmp_path: Path, ending: Ending) -> None:
    script = Script(FASTER, ends=lambda q: ending if is_fast(q) and q.kind == "measure" else None)
    search, result = found(tmp_path, script, 120.0)
    assert dict(result.changes) == {"workers": 1}
    hits = Counter(q.config for q in search.machine.asked if is_fast(q) and q.kind == "measure")
    assert {*hits.values()} == {1}, "its fault is clear"
    lost = failed(result.records)
    assert 1 <= len(lost) <= 4
    assert {record.outcome for record in lost} == {ending.outcome}
    assert {record.config["precision"] for record in lost} == {"bf16"}
    assert all(record.speedup is None and record.measurement is None for record in lost)


@pytest.mark.parametrize("repeats", [False, True])
def test_for_an_error_of_a_gpu_a_config_is_out_where_a_fresh_process_repeats_it(
    tmp_path: Path, *, repeats: bool
) -> None:
    """Such an error comes late, so it may be of what came before, or of the hardware."""
    for name, said in enumerate(OF_A_GPU):

        def ends(question: Question, said: str = said) -> Ending | None:
            is_hit = is_fast(question) and question.kind == "measure"
            again = repeats or question.rig == 1
            return replace(CRASH, reason=said) if is_hit and again else None

        _, result = found(tmp_path / f"{name}", Script(TWO_FASTER, ends=ends), 150.0, TWO)
        outcomes = {record.outcome for record in failed(result.records)}
        assert outcomes == ({Outcome.CRASHED} if repeats else set()), said
        assert result.best["precision"] == ("fp32" if repeats else "bf16")
        assert result.best["memory_format"] == "channels_last"


def test_where_no_other_process_tells_nobody_is_to_blame_for_an_error_of_a_gpu(
    tmp_path: Path,
) -> None:
    def ends(question: Question) -> Ending | None:
        is_hit = is_fast(question) or question.rig > 1
        return replace(CRASH, reason=OF_A_GPU[0]) if is_hit and question.kind != "bare" else None

    _, result = found(tmp_path, Script(TWO_FASTER, ends=ends), 150.0, TWO)
    (record,) = failed(result.records)
    assert record.outcome is Outcome.UNCLEAR


def on_a_gpu(**script: Any) -> Script:
    """Return a program that needs more memory with a larger batch, on a GPU with enough of it."""
    return Script(
        {"batch_size": {128: 1.5}, "memory_format": {"channels_last": 1.2}},
        profile=make_profile(device="cuda"),
        gpus=(replace(A100, usable_bytes=39 * GIB + GIB // 2),),
        device_bytes=lambda config: int(config["batch_size"]) << 26,
        **script,
    )


def test_a_config_whose_steps_find_the_memory_full_is_out_unless_the_program_does_so_itself(
    tmp_path: Path,
) -> None:
    """Its cache is emptied before memory is refused, also where the program catches that error."""
    for name, own in (("one", 0), ("all", 2)):
        script = on_a_gpu(retries=lambda c, own=own: own or 3 * (int(c["batch_size"]) > 64))
        _, result = found(tmp_path / name, script, 150.0, GROWS, may_change=MayChange.ANY)
        assert result.best["batch_size"] == (128 if own else 64)
        lost = failed(result.records)
        assert {record.outcome for record in lost} == (set() if own else {Outcome.OUT_OF_MEMORY})
        assert all("emptied its cache 3 times" in str(record.ending) for record in lost)
        assert all(int(record.config["batch_size"]) > 64 for record in lost)


def test_memory_that_runs_out_in_turns_is_the_fault_of_the_config_that_needs_most(
    tmp_path: Path,
) -> None:
    asked: Counter[Config] = Counter()

    def ends(question: Question) -> Ending | None:
        if question.kind != "measure" or question.config is None:
            return None
        asked[question.config] += 1
        is_late = asked[question.config] > 5
        return FULL if is_late and question.config["batch_size"] == 128 else None

    script = on_a_gpu(ends=ends)
    _, result = found(tmp_path, script, 200.0, GROWS, may_change=MayChange.ANY)
    lost = failed(result.records)
    assert lost
    assert all(record.config["batch_size"] == 128 for record in lost)
    assert {record.outcome for record in lost} == {Outcome.OUT_OF_MEMORY}
    assert dict(result.changes) == {"memory_format": "channels_last"}


@pytest.mark.parametrize("objective", [Objective.THROUGHPUT, Objective.ENERGY])
@pytest.mark.parametrize("steps", [0, 200], ids=["at once", "while it takes turns"])
def test_a_config_under_which_the_loss_becomes_nan_is_out_and_the_race_goes_on(
    tmp_path: Path, steps: int, objective: Objective
) -> None:
    def loss(config: Config, made: int) -> float:
        return math.nan if config["memory_format"] == "channels_last" and made >= steps else 1.0

    script = Script(TWO_FASTER, loss=loss, power_w=lambda _: 50.0)
    _, result = found(tmp_path, script, 240.0, TWO, goal=Goal(objective))
    lost = failed(result.records)
    assert lost
    assert {record.outcome for record in lost} == {Outcome.NOT_FINITE}
    assert {record.config["memory_format"] for record in lost} == {"channels_last"}
    assert all(record.speedup is None for record in lost)
    assert result.finding is Finding.FASTER
    assert dict(result.changes) == {"precision": "bf16"}


def test_a_program_that_comes_to_its_end_is_started_again_and_rounds_go_on(tmp_path: Path) -> None:
    for lives_s in (7.0, 12.0):
        search, result = found(
            tmp_path / f"{lives_s}", Script(TWO_FASTER, lives_s=lives_s), 120.0, TWO
        )
        assert len({played.process for played in search.study.rounds}) > 1
        assert result.finding is Finding.FASTER, (lives_s, result.reason)
        assert result.best["precision"] == "bf16"
        assert not failed(result.records), "its end is nobody's fault"


def test_a_program_that_ends_within_seconds_gets_a_claim_or_is_told_why_not(tmp_path: Path) -> None:
    for lives_s in (0.5, 1.0, 2.5, 4.0):
        script = Script(TWO_FASTER, lives_s=lives_s)
        _, result = found(tmp_path / f"{lives_s}", script, 180.0, TWO)
        assert result.finding is Finding.FASTER or result.reason, lives_s
        assert result.finding not in {Finding.NOTHING_FOUND, Finding.TOO_NOISY}, lives_s


def test_a_process_that_crashes_in_turns_is_replaced_and_nobody_blamed(tmp_path: Path) -> None:
    def ends(question: Question) -> Ending | None:
        # the program as written stays only when a process begins
        is_own = question.config is not None and own.items() <= question.config.items()
        is_late = question.kind == "measure" and question.rig == 1 and question.nth > 40
        return CRASH if is_late and is_own else None

    own = {"workers": 0, "threads": 2, "precision": "fp32", "memory_format": "contiguous"}
    heard = Heard()
    search, result = found(tmp_path, Script(FASTER, ends=ends), 120.0, heard=heard)
    assert not failed(result.records)
    assert {played.process for played in search.study.rounds} == {1, 2}
    assert dict(result.changes) == BEST
    (warning,) = heard.warnings
    assert "failed while configs took turns" in warning


def test_a_config_that_fails_while_another_process_opens_for_it_leaves_once(tmp_path: Path) -> None:
    """The first process crashes, the second ends as the config enters it, in the third it fails."""
    opened: list[int] = []

    def ends(question: Question) -> Ending | None:
        if question.kind == "open":
            opened.append(question.rig)
        if question.kind != "measure" or question.config is None:
            return None
        if len(opened) == 1:
            return CRASH if question.nth > 18 and question.config["precision"] == "fp32" else None
        if question.config["memory_format"] == "contiguous":
            return None
        return Ending(Outcome.RAN_OUT, "it ended") if len(opened) == 2 else CRASH

    _, result = found(tmp_path, Script(TWO_FASTER, ends=ends), 240.0, TWO)
    assert {record.config["memory_format"] for record in failed(result.records)} == {
        "channels_last"
    }
    assert dict(result.changes) == {"precision": "bf16"}


@pytest.mark.parametrize("lives_s", [None, 25.0])
def test_a_decided_race_ends_after_any_processes(tmp_path: Path, lives_s: float | None) -> None:
    """What processes differ by is not made less by more rounds, so nobody waits for that."""
    script = Script(TWO_FASTER, lives_s=lives_s, ratio_noise=0.02)
    search, first = found(tmp_path, script, 600.0, TWO)
    again = search.go_on(1200.0)
    assert len({played.process for played in search.study.rounds}) > 1
    assert first.seconds < 300.0
    assert again.seconds - first.seconds < 120.0
    assert dict(again.changes) == dict(first.changes) == {knob: of[1] for knob, of in TWO.items()}


def test_loaders_that_differ_in_any_option_of_workers_count_as_several() -> None:
    options = {n for n, k in registry().items() if type(k).__module__.endswith("loader_options")}
    assert {*LOADER_OPTIONS} == options | {"batch_size"}


def test_steps_of_seconds_are_compared_within_the_budget(tmp_path: Path) -> None:
    for budget_s in (90.0, 200.0, 400.0):
        search = begin(tmp_path / f"{budget_s}", Script(TWO_FASTER, step_s=3.0), TWO)
        began_s = search.machine.clock()
        result = search.go_on(budget_s)
        assert search.machine.clock() - began_s <= (1 + OVERDRAFT) * budget_s
        assert result.finding in {
            Finding.FASTER,
            *([Finding.UNCONFIRMED] if budget_s < 300 else []),
        }
        assert search.study.rounds


# --- what needs a fresh process -------------------------------------------------------------------


def test_what_the_user_names_is_tried_in_a_fresh_process_however_long_the_race_is_open(
    tmp_path: Path,
) -> None:
    """As with --tune devices, beside a setting whose gain is noisy to the end."""
    space = make_space(dict(RESTART), requested=frozenset({"flush_denormal"}))
    script = Script({**TWO_FASTER, "flush_denormal": {True: 1.6}}, noise=0.6)
    for budget_s in (150.0, 180.0, 240.0):
        search = begin(tmp_path / f"{budget_s}", script, space)
        result = search.go_on(budget_s)
        apart = [r for r in result.records if r.config["flush_denormal"]]
        assert [r.outcome for r in apart] == [Outcome.OK], budget_s


def test_a_long_budget_alone_tries_fresh_processes_on_top_of_the_best(tmp_path: Path) -> None:
    script = Script({**TWO_FASTER, "flush_denormal": {True: 1.6}})
    for budget_s, is_tried in ((90.0, False), (300.0, True)):
        search, result = found(tmp_path / f"{budget_s}", script, budget_s, RESTART)
        apart = [r for r in result.records if r.config["flush_denormal"]]
        assert bool(apart) is is_tried
        assert ("flush_denormal=True" in result.untried) is not is_tried
        in_turns = [config for played in search.study.rounds for config in played.configs]
        assert not any(config["flush_denormal"] for config in in_turns)
        assert result.best["flush_denormal"] is is_tried
        assert result.best["precision"] == "bf16"
    (record,) = apart
    assert record.speedup is not None
    assert record.speedup.half_width_pct > 15, "processes differ, whatever their config"
