"""The claim of whole searches on the scripted machine: fresh processes, and what they may show."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from autotune.measurement.claim import LEAST_PAIRS
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.turn import Played
from autotune.program.config import Config, KnobValue
from autotune.results.finding import Finding
from autotune.results.record import ClaimProcess
from autotune.results.result import SearchResult
from autotune.tuning import baseline, live_rig
from autotune.tuning.budget import parse_duration
from autotune.tuning.events import Phase
from autotune.tuning.plan import PAIRS, PROCESSES
from autotune.tuning.proof import LEAST_ROUNDS, MOST_TOLD, told
from tests.made import make_profile
from tests.scripted import CRASH, Question, Script, Searched, VirtualClock, begin
from tests.tuning.watched import (
    TWO,
    TWO_FASTER,
    Factors,
    Heard,
    Killed,
    Knobs,
    found,
    interrupt,
    is_fast,
    kill,
)

ONE: Knobs = {"precision": ("fp32", "bf16")}
FRESH: Knobs = {"flush_denormal": (False, True)}
UNSURE = Script({"precision": {"bf16": 1.06}}, noise=0.1, ratio_noise=0.05)
FULL = Ending(Outcome.OUT_OF_MEMORY, "the memory is full")


def fresh(result: SearchResult) -> list[ClaimProcess]:
    """Return the processes that were started for the claim."""
    return [one for one in result.claim if not one.is_of_search]


def opened(search: Searched, *, since: int) -> list[KnobValue]:
    """Return as what the claim's processes were started, by their precision."""
    kinds = [q for q in search.machine.asked if q.rig >= since]
    firsts = {q.rig: q for q in reversed(kinds) if q.kind == "measure" and q.config}
    return [q.config["precision"] for _, q in sorted(firsts.items()) if q.config]


def in_phase(
    heard: Heard, phase: str, ends: Callable[[Question], Ending | None]
) -> Callable[[Question], Ending | None]:
    """Return how questions end in one phase of a search."""
    return lambda question: ends(question) if heard.phases[-1:] == [phase] else None


# --- how many processes, and how they begin -------------------------------------------------------


def test_ninety_seconds_hold_two_fresh_processes_that_begin_alternately(tmp_path: Path) -> None:
    search, result = found(tmp_path, Script({"precision": {"bf16": 1.3}}), 90.0, ONE)
    assert result.finding is Finding.FASTER
    first, second = fresh(result)
    assert (first.starts_as_written, second.starts_as_written) == (True, False)
    assert opened(search, since=result.processes - 1) == ["fp32", "bf16"]
    assert first.baseline is not None
    assert first.winner is None, "what came second never was alone in a fresh process"
    assert second.winner is not None
    assert all(one.rounds >= LEAST_ROUNDS and one.cost_s > 8.0 for one in (first, second))
    assert result.speedup.low <= 1.3 <= result.speedup.high
    assert result.throughput[1].estimate / result.throughput[0].estimate == pytest.approx(1.3, 0.1)


def test_a_longer_budget_holds_up_to_four_as_long_as_it_is_not_sure(tmp_path: Path) -> None:
    counts = {}
    for factor, script in ((1.06, UNSURE), (1.5, Script({"precision": {"bf16": 1.5}}))):
        counts[factor] = [
            len(fresh(found(tmp_path / f"{factor}{seed}", script, 300.0, ONE, seed=seed)[1]))
            for seed in range(6)
        ]
    assert max(counts[1.06]) == max(PROCESSES), counts
    assert set(counts[1.5]) == {2}


def test_where_starts_take_longer_than_planned_turns_fill_the_time(tmp_path: Path) -> None:
    for late_s in (2.0, 3.0, 4.0):
        heard, clocks = Heard(), list[VirtualClock]()

        def delay(
            question: Question, late_s: float = late_s, clocks: list[VirtualClock] = clocks
        ) -> None:
            clocks[0].now_s += late_s * (question.kind == "open")

        script = replace(UNSURE, noise=0.3, ends=in_phase(heard, "claim", delay))
        search = begin(tmp_path / f"{late_s}", script, ONE)
        clocks.append(search.machine.clock)
        result = search.go_on(90.0, heard)
        assert len(fresh(result)) == 2
        assert result.seconds > 85.0


def test_turns_after_the_choice_count_but_are_no_fresh_process(tmp_path: Path) -> None:
    search, result = found(tmp_path, Script({"precision": {"bf16": 1.3}}), 90.0, ONE)
    own = [one for one in result.claim if one.is_of_search]
    assert len(own) == 1
    assert len(result.claim) == 3
    assert own[0].rounds >= LEAST_ROUNDS
    assert own[0].baseline is own[0].winner is None
    last = max(q.nth for q in search.machine.asked if q.rig == 1)
    assert last > len(search.study.rounds), "they come after the last round of the race"
    only = replace(result, claim=())
    assert only.speedup == result.speedup


def test_a_process_keeps_its_rounds_one_by_one_and_of_many_some(tmp_path: Path) -> None:
    for count in (7, MOST_TOLD, MOST_TOLD + 1, 1000):
        kept = told([(Played(1.0, 10.0), Played(0.8, 12.0))] * count)
        assert set(kept) == {1.5}
        assert len(kept) == count or MOST_TOLD / 2 < len(kept) <= MOST_TOLD < count
    _, result = found(tmp_path, Script({"precision": {"bf16": 1.3}}), 90.0, ONE)
    for one in result.claim:
        assert len(one.turns) == one.rounds
        assert median(one.turns) == pytest.approx(one.ratio.interval.estimate, rel=0.1)
    with pytest.raises(ValueError, match="positive"):
        replace(result.claim[0], turns=(1.0, 0.0))


# --- what fails -----------------------------------------------------------------------------------


def test_a_candidate_that_fails_in_a_fresh_process_gives_way_to_the_next(tmp_path: Path) -> None:
    for ending in (CRASH, FULL):

        def ends(question: Question, ending: Ending = ending) -> Ending | None:
            nhwc = {"memory_format": "channels_last"}.items()
            both = is_fast(question) and question.config and nhwc <= question.config.items()
            return ending if both and question.kind == "measure" else None

        heard = Heard()
        script = Script(TWO_FASTER, ends=in_phase(heard, "claim", ends))
        _, result = found(tmp_path / ending.outcome, script, 240.0, TWO, heard)
        assert result.finding is Finding.FASTER, result.reason
        assert dict(result.changes) == {"precision": "bf16"}
        assert any("failed in a fresh process" in w and ending.reason in w for w in heard.warnings)


def test_a_winner_that_fails_in_whatever_process_of_its_own_is_not_claimed(tmp_path: Path) -> None:
    for start in (1, 2, 3):
        starts = 0

        def ends(question: Question, start: int = start) -> Ending | None:
            nonlocal starts
            is_own = question.config is not None and question.config["flush_denormal"] is True
            starts += is_own and question.kind == "open"
            return FULL if is_own and question.kind == "open" and starts == start else None

        heard = Heard()
        script = Script({"flush_denormal": {True: 1.6}}, ends=in_phase(heard, "claim", ends))
        _, result = found(tmp_path / str(start), script, 400.0, FRESH, heard)
        assert starts == start
        assert result.finding is not Finding.FASTER
        assert any("failed in a fresh process: the memory is full" in w for w in heard.warnings)


def test_a_winner_loses_by_an_error_of_a_gpu_only_if_another_process_repeats_it(
    tmp_path: Path,
) -> None:
    hit = replace(CRASH, reason="RuntimeError: CUDA error: unspecified launch failure")
    for knobs, winner, phase, budget_s in (
        (ONE, Config({"precision": "bf16"}), "claim", 120.0),
        (FRESH, Config({"flush_denormal": True}), Phase.TRY, 400.0),
    ):
        for most in (1, 2):
            hits = 0

            def ends(question: Question, its: Config = winner, most: int = most) -> Ending | None:
                nonlocal hits
                is_its = question.config is not None and its.items() <= question.config.items()
                is_hit = is_its and question.kind == "measure" and hits < most
                hits += is_hit
                return hit if is_hit else None

            heard = Heard()
            factors: Factors = {knob: {value: 1.6} for knob, value in winner.items()}
            script = Script(factors, ends=in_phase(heard, phase, ends))
            _, result = found(tmp_path / f"{phase}{most}", script, budget_s, knobs, heard)
            assert hits == most
            assert (result.finding is Finding.FASTER) is (most == 1), result.reason


def test_a_claim_in_which_the_program_as_written_fails_blames_no_config(tmp_path: Path) -> None:
    def ends(question: Question) -> Ending | None:
        return CRASH if question.kind == "measure" and not is_fast(question) else None

    heard = Heard()
    script = Script({"precision": {"bf16": 1.5}}, ends=in_phase(heard, "claim", ends))
    _, result = found(tmp_path, script, 120.0, ONE, heard)
    assert result.finding is Finding.UNCONFIRMED
    assert "the program as written failed in a fresh process" in result.reason
    assert not any("The best config failed" in warning for warning in heard.warnings)


def test_nothing_is_claimed_while_others_take_the_machine_from_the_program(tmp_path: Path) -> None:
    """Two threads that wait for each other suffer far more from that than one does."""
    for since_s in (20.0, 30.0, 50.0, 70.0):
        script = Script({"threads": {1: 1.1}}, busy=(since_s, 20.0))
        search, result = found(tmp_path / f"{since_s}", script, 120.0, {"threads": (1, 2)})
        assert all(abs(one.ratio.value) < 0.5 for one in search.study.claim), since_s
        if result.finding is Finding.FASTER:
            assert since_s == 70.0, "two processes had been measured before"
            continue
        assert result.finding is Finding.UNCONFIRMED
        assert result.best == result.baseline
        assert result.reason.startswith("other programs slowed yours down from 1,0")
        assert result.claim == search.study.claim, "what was measured before is not forgotten"


@pytest.mark.parametrize("shared", [0, 300, 2000])
def test_the_program_as_written_counts_with_the_page_faults_that_it_has_alone(
    tmp_path: Path, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other configs leave in the heap makes it faster or slower by up to 15 %."""
    for module in (baseline, live_rig):
        monkeypatch.setattr(module, "page_fault_s", lambda: 11e-6)  # alone
    kept = 64 / (64 - 1000 * 0.01)  # of 64 ms a step, 10 us for each page fault
    script = Script(
        {"precision": {"bf16": 1.3}, "keep_freed_memory": {True: kept}},
        profile=make_profile(mmap_threshold=8 << 20),
        noise=0.02,
        faults=(1000, shared),
        fault_s=10e-6,
    )
    _, result = found(tmp_path, script, 120.0, ONE)
    assert dict(result.changes) == {"keep_freed_memory": True, "precision": "bf16"}
    assert result.speedup.low <= 1.3 * kept <= result.speedup.high
    assert result.speedup.half_width_pct < 12
    gains = {one.knob: one.gain for one in result.contributions}
    assert gains["keep_freed_memory"].low <= kept <= gains["keep_freed_memory"].high


def test_a_process_that_fails_after_enough_of_them_takes_no_claim_away(tmp_path: Path) -> None:
    def ends(question: Question) -> Ending | None:
        rigs.add(question.rig)
        return CRASH if len(rigs) > 2 and not is_fast(question) else None

    thirds = 0
    for seed in range(8):
        rigs: set[int] = set()
        heard = Heard()
        script = replace(UNSURE, ends=in_phase(heard, "claim", ends))
        _, result = found(tmp_path / str(seed), script, 300.0, ONE, heard, seed=seed)
        if len(rigs) == 3:
            thirds += 1
            assert len(fresh(result)) == 2
        assert result.finding in {Finding.FASTER, Finding.NOTHING_FOUND, Finding.TOO_NOISY}
    assert thirds


# --- pairs of processes ---------------------------------------------------------------------------


def test_what_needs_a_fresh_process_is_claimed_by_pairs_of_them(tmp_path: Path) -> None:
    script = Script({"flush_denormal": {True: 1.6}}, process_noise=0.04)
    _, result = found(tmp_path, script, 400.0, FRESH)
    assert result.finding is Finding.FASTER
    assert result.speedup.low <= 1.6 <= result.speedup.high
    assert LEAST_PAIRS <= len(result.claim) <= max(PAIRS)
    assert all(one.is_pair and not one.is_of_search for one in result.claim)
    assert all(one.baseline is not None and one.winner is not None for one in result.claim)
    assert [one.starts_as_written for one in result.claim[:3]] == [True, False, True]


# --- no time, no candidate ------------------------------------------------------------------------


def test_a_budget_without_a_claim_says_what_it_takes_and_blames_none(tmp_path: Path) -> None:
    heard = Heard()
    search, result = found(tmp_path, Script(TWO_FASTER), 25.0, TWO, heard)
    assert result.finding is Finding.UNCONFIRMED
    assert "fresh processes take about 27 s, but the budget had only" in result.reason
    (warning, *others) = heard.warnings
    assert "fresh processes take 27 s" in warning
    budget_s = parse_duration(warning.rpartition("--budget ")[2])
    assert not others, "no config failed"
    assert result.candidate is not None
    assert result.candidate["precision"] == "bf16"
    assert search.go_on(budget_s).finding is Finding.FASTER, "as it was told"


def test_what_is_left_of_a_short_budget_goes_into_the_process_that_fits(tmp_path: Path) -> None:
    """The race ends early, and the rest holds one of the two processes that a claim needs."""
    script = Script({"precision": {"bf16": 1.5}}, start_s=10.0, noise=0.005, process_noise=0.01)
    search, result = found(tmp_path, script, 50.0, ONE)
    assert result.finding is Finding.UNCONFIRMED
    assert result.reason == "a claim needs 2 fresh processes, and only 1 was measured"
    assert result.unclaimed is not None
    assert result.unclaimed.low <= 1.5 <= result.unclaimed.high
    (first,) = fresh(result)
    resumed = Heard()
    assert search.go_on(90.0, resumed).finding is Finding.FASTER
    assert search.go_on(91.0, resumed).finding is Finding.FASTER
    assert not resumed.warnings, "what was measured is enough"
    assert search.study.claim_of(result.candidate)[1] == first, "it is not measured again"


def test_a_resumed_claim_goes_on_with_the_processes_that_it_has(tmp_path: Path) -> None:
    search = begin(tmp_path, Script({"precision": {"bf16": 1.3}}), ONE)
    heard = Heard()

    def ends(question: Question) -> Ending | None:
        if "claim" in heard.phases and len(fresh_of(search)) == 1 and question.nth > 2:
            kill()
        return None

    search.machine.script = replace(search.machine.script, ends=ends)
    with pytest.raises(Killed):
        search.go_on(120.0, heard)
    (kept,) = fresh_of(search)
    search.machine.script = replace(search.machine.script, ends=lambda _: None)
    heard = Heard()
    result = search.go_on(150.0, heard)
    assert result.finding is Finding.FASTER
    first, second = fresh(result)
    assert first == kept
    assert (first.starts_as_written, second.starts_as_written) == (True, False)
    assert Phase.AS_WRITTEN not in heard.phases


@pytest.mark.parametrize("requests", [1, 2])
def test_an_interrupted_claim_keeps_what_was_measured(tmp_path: Path, requests: int) -> None:
    """The first Ctrl-C lets the least number of processes end, the second none."""
    search, told = begin(tmp_path, UNSURE, ONE), [requests]

    def ends(_question: Question) -> Ending | None:
        if fresh_of(search) and told[0]:
            told[0] -= 1
            interrupt()
        return None

    search.machine.script = replace(search.machine.script, ends=ends)
    result = search.go_on(300.0)
    assert len(fresh_of(search)) == (2 if requests == 1 else 1)
    assert (result.finding is Finding.UNCONFIRMED) is (requests == 2)


def fresh_of(search: Searched) -> list[ClaimProcess]:
    return [one for one in search.study.claim if not one.is_of_search]
