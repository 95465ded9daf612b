"""Whole searches on a scripted machine: what they find and claim, and how they may end."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from autotune.errors import AutotuneError, BudgetError, ProgramError
from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.config import KnobValue
from autotune.results.as_data import as_data
from autotune.results.record import TrialRecord
from autotune.results.result import Finding, SearchResult
from autotune.tuning.budget import CLOSING_S, OVERDRAFT
from autotune.tuning.events import Events
from tests.made import A100, H100, V100, make_hardware, make_profile
from tests.readings import MIG_GPU, unused
from tests.scripted import CRASH, PilotScript, Question, Script, Searched, begin

KNOBS: dict[str, tuple[KnobValue, ...]] = {
    "num_workers": (0, 1, 2),
    "batch_size": (64, 128),
    "precision": ("fp32", "bf16"),
    "num_threads": (1, 2),
    "compile": ("off", "default"),
}
FASTER: dict[str, dict[KnobValue, float]] = {
    "num_workers": {1: 1.5, 2: 1.3},
    "precision": {"bf16": 1.2},
}
NVMLS = make_hardware(gpus=(H100,))  # of a GPU that MIG splits, NVML lists the whole
PHASES = ("baseline", "searching", "rehearsing", "confirming")


def found(
    searched: Searched, budget_s: float = 180.0, events: Events | None = None
) -> SearchResult:
    return searched.go_on(budget_s, events)


def fails_with(
    knob: str, value: KnobValue, ending: Ending, *kinds: str
) -> Callable[[Question], Ending | None]:
    def ends(question: Question) -> Ending | None:
        has_it = question.config is not None and question.config.get(knob) == value
        return ending if has_it and question.kind in kinds else None

    return ends


@dataclass
class Heard(Events):
    """Remembers what a search tells, and acts where a phase begins."""

    on: str = ""
    act: Callable[[], None] = lambda: None
    phases: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    trials: list[TrialRecord] = field(default_factory=list)

    def on_phase(self, name: str) -> None:
        self.phases.append(name)
        if name == self.on:
            self.act()

    def on_trial_end(self, number: int, record: TrialRecord, space: ResolvedSpace) -> None:
        self.trials.append(record)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Killed(BaseException):
    """The search is killed here: nothing of it runs any more."""


def kill() -> None:
    raise Killed


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_what_is_faster_is_found_and_claimed_and_the_true_speedup_lies_in_the_interval(
    tmp_path: Path,
) -> None:
    result = found(begin(tmp_path, Script(FASTER), KNOBS), 300.0)

    assert result.finding is Finding.FASTER, result.reason
    assert result.best["num_workers"] == 1
    assert result.best["precision"] == "bf16"
    assert result.speedup.low <= 1.5 * 1.2 <= result.speedup.high
    assert result.changes.keys() >= {"num_workers", "precision"}


def test_where_nothing_is_faster_the_programs_own_config_is_kept(tmp_path: Path) -> None:
    slower: dict[str, dict[KnobValue, float]] = {
        "num_workers": {1: 0.8, 2: 0.7},
        "precision": {"bf16": 0.6},
        "batch_size": {128: 0.9},
        "num_threads": {1: 0.6},
    }
    result = found(begin(tmp_path, Script(slower), KNOBS))

    assert result.finding is Finding.NO_GAIN
    assert not result.changes
    assert len(result.records) > 4


MACHINES = {
    "drifts": Script(drift=0.1),
    "has pilots": Script(drift=0.1, pilots=PilotScript()),
    "runs no two processes alike": Script(process_noise=0.05, ratio_noise=0.02),
    "has pilots that a config slows": Script(
        drift=0.1, pilots=PilotScript(slowed=lambda config: 0.2 * (config["precision"] != "off"))
    ),
    "has pilots for some configs": Script(
        drift=0.1, pilots=PilotScript(are_missing=lambda config: config["num_workers"] == 2)
    ),
}


def test_equal_configs_are_rarely_claimed_to_differ_whatever_the_machine_is_like(
    tmp_path: Path,
) -> None:
    """At most 2 of 10: at a true rate of 2.5 % that fails once in 600 times; seeds are fixed.

    Rates are measured by ``benchmarks/calibration.py``.
    """
    claims = {
        f"{machine} {seed}": found(
            begin(tmp_path / machine / str(seed), script, KNOBS, seed), 120.0
        ).finding
        for machine, script in MACHINES.items()
        for seed in range(2)
    }
    assert list(claims.values()).count(Finding.FASTER) <= 2, claims


def test_what_was_offered_and_not_measured_is_named(tmp_path: Path) -> None:
    result = found(begin(tmp_path, Script(FASTER), KNOBS), 30.0)
    tried = {
        knob
        for record in result.records
        if record.measurement is not None
        for knob in record.config.changes_from(result.baseline)
    }
    named = {text.partition("=")[0] for text in result.untried}
    assert named
    assert named | tried == set(KNOBS)
    assert not named & tried
    assert "compile=default" in result.untried


@pytest.mark.parametrize("budget_s", [5.0, 8.0, 12.0, 20.0, 30.0, 45.0, 60.0, 90.0, 200.0, 600.0])
def test_a_budget_is_kept(tmp_path: Path, budget_s: float) -> None:
    searched = begin(tmp_path, Script(FASTER), KNOBS)
    began_s = searched.machine.clock()
    try:
        found(searched, budget_s)
    except BudgetError:
        assert budget_s <= 12.0
    took_s = searched.machine.clock() - began_s
    assert took_s <= (1 + OVERDRAFT) * budget_s + CLOSING_S, (took_s, budget_s)


@pytest.mark.parametrize("phase", PHASES)
def test_one_interrupt_ends_the_search_with_what_was_found(tmp_path: Path, phase: str) -> None:
    heard = Heard(on=phase, act=interrupt)
    searched = begin(tmp_path, Script(FASTER), KNOBS)
    try:
        result = found(searched, 240.0, heard)
    except AutotuneError:
        assert phase == "baseline"  # there is nothing to say yet
        return
    assert result.finding in {Finding.FASTER, Finding.NO_GAIN, Finding.UNCONFIRMED}
    if phase in {"rehearsing", "confirming"}:
        assert result.finding is Finding.FASTER, (
            "one Ctrl-C ends the search, not what a claim needs"
        )


def test_a_second_interrupt_skips_the_confirmation(tmp_path: Path) -> None:
    def twice() -> None:
        interrupt()
        interrupt()

    heard = Heard(on="rehearsing", act=twice)
    result = found(begin(tmp_path, Script(FASTER), KNOBS), 240.0, heard)

    assert result.finding is Finding.UNCONFIRMED
    assert result.candidate_speedup is not None


@pytest.mark.parametrize("phase", PHASES)
def test_a_search_that_was_killed_goes_on_where_it_stood(tmp_path: Path, phase: str) -> None:
    searched = begin(tmp_path, Script(FASTER), KNOBS)
    with pytest.raises(Killed):
        found(searched, 300.0, Heard(on=phase, act=kill))
    before = searched.study.records

    heard = Heard()
    result = found(searched, 600.0, heard)

    assert result.finding is Finding.FASTER
    assert [r.config for r in result.records[: len(before)]] == [r.config for r in before]
    assert ("baseline" in heard.phases) == (not before)  # it is measured once
    new = [r.config for r in result.records if r.measurement is not None and not r.is_again]
    assert len(new) == len(set(new)), "only what may be the best is measured twice"


def test_a_trial_that_fails_does_not_end_the_search_and_is_blamed_for_itself_alone(
    tmp_path: Path,
) -> None:
    script = Script(FASTER, ends=fails_with("precision", "bf16", CRASH, "measure"))
    result = found(begin(tmp_path, script, KNOBS), 300.0)

    assert result.finding is Finding.FASTER
    assert result.best["precision"] == "fp32"
    crashed = [r for r in result.records if r.outcome is not Outcome.OK]
    assert crashed
    assert all(r.config["precision"] == "bf16" for r in crashed if r.outcome is Outcome.CRASHED)


def test_out_of_memory_is_told_apart_and_the_search_goes_on(tmp_path: Path) -> None:
    full = Ending(Outcome.OUT_OF_MEMORY, "the GPU's memory is full")
    script = Script(FASTER, ends=fails_with("batch_size", 128, full, "measure"))
    result = found(begin(tmp_path, script, KNOBS), 300.0)

    assert result.finding is Finding.FASTER
    assert Outcome.OUT_OF_MEMORY in {record.outcome for record in result.records}
    assert result.best["batch_size"] == 64


def test_what_configs_leave_behind_in_a_process_is_said_and_costs_a_clear_gain_nothing(
    tmp_path: Path,
) -> None:
    live = {knob: values for knob, values in KNOBS.items() if knob != "compile"}
    for left_behind in (0.0, 0.1):
        script = Script(FASTER, left_behind=left_behind)
        result = found(begin(tmp_path / str(left_behind), script, live), 300.0)
        assert result.finding is Finding.FASTER
        sentences = [w for w in result.warnings if "leaves behind" in w and "by up to 11%" in w]
        assert len(sentences) == (left_behind > 0)


def test_a_config_that_fails_after_its_epoch_gives_way_to_the_next(tmp_path: Path) -> None:
    script = Script(FASTER, ends=fails_with("precision", "bf16", CRASH, "rehearse"))
    heard = Heard()
    result = found(begin(tmp_path, script, KNOBS), 400.0, heard)

    assert result.finding is Finding.FASTER
    assert result.best["precision"] == "fp32"
    assert result.best["num_workers"] == 1
    assert any("precision=bf16" in warning for warning in heard.warnings)


def test_a_candidate_whose_own_processes_fail_gives_way_to_the_next_and_that_is_said(
    tmp_path: Path,
) -> None:
    """A process that was started as written ran it; its own must run it, too."""

    def ends(question: Question) -> Ending | None:
        is_fast = question.config is not None and question.config["num_workers"] == 1
        return CRASH if is_fast and question.kind == "open" else None

    heard = Heard()
    result = found(begin(tmp_path, Script(FASTER, ends=ends), KNOBS), 400.0, heard)

    assert result.best["num_workers"] != 1
    assert any("failed in a fresh process" in warning for warning in heard.warnings)


def test_a_program_that_fails_as_it_is_written_is_said_to(tmp_path: Path) -> None:
    searched = begin(tmp_path, Script(ends=lambda _: replace(CRASH, steps=0)), KNOBS)
    with pytest.raises(ProgramError, match="by itself"):
        found(searched)


def test_a_program_that_trains_without_us_alone_is_said_to_be_our_defect(tmp_path: Path) -> None:
    def ends(question: Question) -> Ending | None:
        return CRASH if question.kind == "open" else None

    with pytest.raises(ProgramError, match="defect of autotune"):
        found(begin(tmp_path, Script(ends=ends), KNOBS))


def test_a_knob_that_needs_a_fresh_process_is_confirmed_in_its_own(tmp_path: Path) -> None:
    script = Script({"compile": {"default": 1.6}})
    searched = begin(tmp_path, script, {"compile": ("off", "default")})
    result = found(searched, 600.0)

    assert result.finding is Finding.FASTER
    assert result.best["compile"] == "default"
    opened = [q.config for q in searched.machine.asked if q.kind == "open" and q.config]
    assert {config["compile"] for config in opened} == {"off", "default"}


def test_steps_of_seconds_are_measured_within_the_budget(tmp_path: Path) -> None:
    script = Script(FASTER, samples_per_s=20.0, step_s=3.2)
    searched = begin(tmp_path, script, KNOBS)
    began_s = searched.machine.clock()
    result = found(searched, 300.0)

    assert result.finding in {Finding.FASTER, Finding.UNCONFIRMED, Finding.NO_GAIN}
    assert len(result.records) > 1
    assert searched.machine.clock() - began_s <= 300.0 * (1 + OVERDRAFT) + CLOSING_S


@pytest.mark.parametrize("start", [1, 2, 3])
def test_a_winner_whose_own_process_fails_is_not_claimed_in_whatever_round(
    tmp_path: Path, start: int
) -> None:
    starts = 0

    def ends(question: Question) -> Ending | None:
        nonlocal starts
        is_compiled = question.config is not None and question.config["compile"] == "default"
        is_confirming = "confirming" in heard.phases
        starts += is_compiled and is_confirming and question.kind == "open"
        if is_compiled and is_confirming and question.kind == "open" and starts == start:
            return Ending(Outcome.OUT_OF_MEMORY, "the memory is full")
        return None

    heard = Heard()
    script = Script({"compile": {"default": 1.6}}, ends=ends)
    result = found(begin(tmp_path, script, {"compile": ("off", "default")}), 900.0, heard)

    assert starts >= start
    assert result.finding is not Finding.FASTER
    assert any("failed in a fresh process: the memory is full" in w for w in heard.warnings)


def test_a_program_that_fails_as_written_in_a_confirmation_is_not_blamed_on_the_config(
    tmp_path: Path,
) -> None:
    rigs: list[int] = []  # of the confirmation

    def ends(question: Question) -> Ending | None:
        if "confirming" not in heard.phases:
            return None
        rigs.append(question.rig)
        is_written = question.config is not None and question.config["num_workers"] == 0
        fails = is_written and question.rig == rigs[0] + 1 and question.kind == "measure"
        return CRASH if fails else None

    heard = Heard()
    script = Script({"num_workers": {1: 1.5}}, ends=ends)
    result = found(begin(tmp_path, script, {"num_workers": (0, 1)}), 400.0, heard)

    assert result.finding is Finding.UNCONFIRMED
    assert result.unclaimed is not None, "the round that was measured is told"
    assert not any("The best config failed" in warning for warning in heard.warnings)


def test_gpus_that_nvml_does_not_list_are_known_once_the_program_has_said_what_it_sees(
    tmp_path: Path,
) -> None:
    """As in a container without libnvidia-ml, on a machine with another GPU beside."""
    seen = (unused(V100), A100)
    script = Script(
        {"precision": {"bf16": 1.5}}, profile=make_profile(device="cuda"), gpus=seen, noise=0.01
    )
    knobs = {"precision": None, "num_workers": (0, 1), "strategy": None, "world_size": None}
    searched = begin(tmp_path, script, knobs)
    with pytest.raises(Killed):
        found(searched, events=Heard(on="searching", act=kill))
    assert searched.study.hardware.gpus == seen
    result = found(searched)  # a session that observes nothing knows them as well
    assert "bf16" in searched.study.space.domains["precision"].values
    assert searched.study.space.domains["world_size"].values == (1, 2)
    assert result.best["precision"] == "bf16"
    assert result.hardware.gpus == result.best_file().hardware.gpus == seen
    assert result.head.hardware.gpus == (), "what a resumed search compares the machine with"


def test_a_best_yaml_names_the_gpus_as_nvml_does_where_it_does(tmp_path: Path) -> None:
    """So that the command that reads it, without torch, finds the same machine."""
    script = Script(profile=make_profile(device="cuda"), gpus=(MIG_GPU,))
    searched = begin(tmp_path, script, {"num_workers": (0, 1)})
    result = replace(found(searched, 40.0), head=replace(searched.study.head, hardware=NVMLS))
    assert result.hardware.gpus == (MIG_GPU,)
    assert result.best_file().warnings(NVMLS, program=None) == []


def test_the_result_as_data_tells_the_first_step_and_what_could_not_be_tried_with_the_reason(
    tmp_path: Path,
) -> None:
    knobs = {"num_workers": (0, 1, 2), "compile": ("off", "default"), "sdpa_backend": None}
    searched = begin(tmp_path, Script(start_s=20.0, first_step_s=17.5), knobs)
    result = found(searched, 60.0)
    data = json.loads(json.dumps(as_data(result)))
    assert data["first_step_s"] == 17.5
    assert data["untried"] == {
        "sdpa_backend": "the program does not call scaled_dot_product_attention",
        "compile=default": "there was no time; a longer --budget leaves some",
    }
    again = searched.study.result
    assert again is not None
    assert as_data(again)["untried"] == data["untried"]
    assert as_data(replace(result, facts=None))["first_step_s"] is None
