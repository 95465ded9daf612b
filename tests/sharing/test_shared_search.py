"""Whole searches of several machines that share a study, in virtual time."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from autotune.measurement.claim import LEAST_PROCESSES
from autotune.measurement.outcome import Ending
from autotune.measurement.turn import Played
from autotune.program.config import Config, KnobValue
from autotune.results.finding import Finding
from autotune.results.record import ClaimProcess, PlayedRounds
from autotune.sharing.board import Board
from autotune.sharing.entries import (
    Entry,
    Published,
    Refused,
    Request,
    RequestState,
    Right,
    Rounds,
    Tried,
)
from autotune.tuning.agree import ANNOUNCED
from autotune.tuning.choosing.proposals import ELSEWHERE
from tests.made import make_profile
from tests.scripted import CRASH, Question, Script
from tests.together import AGREEMENT, STUDY, Killed, Part, Together, search_together
from tests.tuning.watched import TWO, TWO_FASTER, Heard, Knobs

SCRIPT = Script(TWO_FASTER, noise=0.03, ratio_noise=0.01)
BEST = {"precision": "bf16", "memory_format": "channels_last"}
INTEL = "Intel Xeon 8480"


def together(folder: Path, *parts: Part, knobs: Knobs = TWO) -> Together:
    """Return searches that are over, of which each has other random numbers."""
    return search_together(folder, [replace(p, seed=n) for n, p in enumerate(parts)], knobs)


def announced(found: Together) -> list[Request]:
    """Return all that was announced, in order."""
    made = [one for one in found.look().requests if one.right is Right.ANNOUNCE]
    return [one for one in made if one.state is not RequestState.VOID]


def refused(found: Together) -> set[str]:
    """Return the names of announcements that a member has refused."""
    entries = (one.entry for one in found.look().published)
    return {one.announcement for one in entries if isinstance(one, Refused)}


def tries(found: Together) -> list[Request]:
    """Return the rights that were had to try something."""
    made = [one for one in found.look().requests if one.right is Right.TRY]
    return [one for one in made if one.state is not RequestState.VOID]


def hosts(found: Together, member: int) -> list[str]:
    """Return the machines that the answer of one rests on."""
    result = found.results[member]
    return [] if result is None else sorted(one.host for one in result.shared.pooled)


def _has(question: Question, knob: str, value: KnobValue) -> bool:
    return question.config is not None and question.config.get(knob) == value


def played_by(found: Together, host: str) -> int:
    """Return how many answers of rigs a machine has shared."""
    entries = [one.entry for one in found.look().published if one.host == host]
    return sum(len(one.played.rounds) for one in entries if isinstance(one, Rounds))


def test_machines_of_one_kind_come_to_one_answer_that_rests_on_all_of_them(tmp_path: Path) -> None:
    found = together(tmp_path, Part(SCRIPT), Part(SCRIPT))
    (announcement,) = announced(found)
    assert BEST.items() <= announcement.config.items()
    for number, result in enumerate(found.found):
        assert result.finding is Finding.FASTER
        assert result.best == announcement.config
        assert hosts(found, number) == ["host-0", "host-1"]
        assert all(one.processes >= LEAST_PROCESSES for one in result.shared.machines)
        assert [one.host for one in result.shared.machines if one.is_here] == [f"host-{number}"]
        assert result.speedup.low < 1.68 < result.speedup.high
        assert all(one.announcement == announcement.name for one in result.claim)


def test_all_members_claim_the_same_together_in_a_short_search(tmp_path: Path) -> None:
    # One process of the claim takes a fifth of the budget, so what they do must be in step
    script = replace(SCRIPT, start_s=8.0, noise=0.07)
    for number, joins_s in enumerate((0.5, 2.0, 4.5)):
        parts = (Part(script, budget_s=90.0), Part(script, joins_s=joins_s, budget_s=90.0))
        found = together(tmp_path / f"{number}", *parts)
        (announcement,) = announced(found)
        for member, result in enumerate(found.found):
            assert (result.finding, result.best) == (Finding.FASTER, announcement.config)
            assert hosts(found, member) == ["host-0", "host-1"]
            assert result.seconds < 1.15 * 90.0


def test_one_that_finds_nothing_itself_claims_what_others_announce(tmp_path: Path) -> None:
    # On its machine all changes cost speed; two of those wait for nobody
    slow = replace(
        SCRIPT, factors={knob: dict.fromkeys(to, 0.8) for knob, to in TWO_FASTER.items()}
    )
    found = together(tmp_path / "one", Part(SCRIPT), Part(slow))
    (announcement,) = announced(found)
    assert {one.config for one in found.found[1].claim} == {announcement.config}
    none = together(tmp_path / "none", Part(slow), Part(slow))
    assert not announced(none)
    assert all(one.finding is Finding.NOTHING_FOUND for one in none.found)
    assert all(one.seconds < 180.0 for one in none.found)


def test_machines_that_measure_other_costs_of_page_faults_have_the_same_configs(
    tmp_path: Path,
) -> None:
    """Others that use a machine may hide what its page faults cost."""
    script = replace(SCRIPT, profile=make_profile(mmap_threshold=8 << 20), fault_s=10e-6)
    none, some = (replace(script, faults=(count, count)) for count in (0, 1000))
    found = together(tmp_path, Part(none), Part(some))
    (announcement,) = announced(found)
    assert [one.best for one in found.found] == [announcement.config] * 2
    assert hosts(found, 0) == hosts(found, 1) == ["host-0", "host-1"]


def test_machines_try_different_configs_and_hear_of_the_best_from_the_others(
    tmp_path: Path,
) -> None:
    workers: dict[KnobValue, float] = {1: 1.06, 2: 1.12, 3: 1.18, 4: 1.24, 5: 1.3, 6: 1.2}
    knobs: Knobs = {"workers": (0, 1, 2, 3, 4, 5, 6), "prefetch_factor": (2, 4, 8), **TWO}
    script = Script({"workers": workers, **TWO_FASTER}, noise=0.05)
    found = together(tmp_path, Part(script), Part(script), Part(script), knobs=knobs)
    (announcement,) = announced(found)
    assert [one.best for one in found.found] == [announcement.config] * 3
    tried = [{record.config for record in one.records} for one in found.found]
    assert len(set.union(*tried)) > max(map(len, tried))
    whys = {record.why for one in found.found for record in one.records}
    assert whys & {ELSEWHERE, ANNOUNCED}


def test_one_that_dies_costs_the_others_nothing_but_its_processes(tmp_path: Path) -> None:
    alone = together(tmp_path / "alone", Part(SCRIPT))
    (one,) = alone.found
    assert (hosts(alone, 0), one.finding) == (["host-0"], Finding.FASTER)
    for dies_s in (20.0, 50.0, 80.0):
        found = together(tmp_path / f"{dies_s}", Part(SCRIPT), Part(SCRIPT, dies_s=dies_s))
        (result,) = found.found
        assert result.finding is Finding.FASTER
        assert BEST.items() <= result.best.items()
        assert "host-0" in hosts(found, 0)
        assert result.seconds < 1.15 * 180.0


def test_one_that_joins_late_claims_what_was_announced(tmp_path: Path) -> None:
    # the first is in its claim by then, and the last comes when the others are gone
    script = replace(SCRIPT, start_s=8.0)
    found = together(tmp_path, Part(script), Part(script), Part(script, joins_s=400.0))
    (announcement,) = announced(found)
    late = found.found[-1]
    assert (late.finding, late.best) == (Finding.FASTER, announcement.config)
    assert hosts(found, 2) == ["host-0", "host-1", "host-2"]
    assert [record.why for record in late.records[1:]] == [ANNOUNCED]
    assert not found.searches[-1].study.rounds


def test_machines_of_two_kinds_get_two_answers_of_which_neither_knows_the_other(
    tmp_path: Path,
) -> None:
    other = replace(
        SCRIPT, factors={"precision": {"bf16": 0.7}, "memory_format": {"channels_last": 1.3}}
    )
    parts = [Part(SCRIPT), Part(other, cpu_name=INTEL)] * 2
    found = together(tmp_path, *parts)
    answers: list[Config] = []
    for number, result in enumerate(found.found):
        assert result.finding is Finding.FASTER
        assert hosts(found, number) == [f"host-{n}" for n in range(4) if n % 2 == number % 2]
        answers.append(result.best)
    assert answers[0] == answers[2] != answers[1] == answers[3]
    assert {*answers[1].changes_from(found.found[1].baseline)} == {"memory_format"}
    last = max(found.found, key=lambda result: result.seconds)
    (group,) = last.shared.groups
    changes = [Config(one.best.changes_from(one.baseline)) for one in found.found]
    assert group.config in changes
    assert group.config != changes[found.found.index(last)]


def test_machines_of_one_kind_that_surely_differ_get_answers_of_their_own(tmp_path: Path) -> None:
    faster = replace(SCRIPT, factors={"precision": {"bf16": 2.4}}, ratio_noise=0.0, noise=0.01)
    slower = replace(faster, factors={"precision": {"bf16": 1.2}})
    found = together(tmp_path, Part(faster), Part(slower), knobs={"precision": TWO["precision"]})
    for number, truth in enumerate((2.4, 1.2)):
        result = found.found[number]
        assert result.speedup.low < truth < result.speedup.high
        assert hosts(found, number) == [f"host-{number}"]
        (other,) = (one for one in result.shared.machines if one.differs)
        assert other.host == f"host-{1 - number}"
        assert result.best_file().machines == (f"host-{number}",)


def test_one_that_is_cut_off_measures_on_and_delivers_later(tmp_path: Path) -> None:
    def cut(now_s: float) -> bool:
        return 12.0 < now_s < 33.0

    found = together(tmp_path, Part(SCRIPT), Part(SCRIPT, is_cut=cut))
    assert [hosts(found, n) for n in (0, 1)] == [["host-0", "host-1"]] * 2
    assert played_by(found, "host-1") == len(found.searches[1].study.rounds)
    # never reached again: it claims for itself, and says so
    found = together(tmp_path / "cut", Part(SCRIPT), Part(SCRIPT, is_cut=lambda now_s: now_s > 20))
    assert [hosts(found, n) for n in (0, 1)] == [["host-0"], ["host-1"]]
    assert all(one.finding is Finding.FASTER for one in found.found)
    assert not any(one.announcement for one in found.found[1].claim)


def test_a_search_that_goes_on_joins_again_and_delivers_what_was_left(tmp_path: Path) -> None:
    cut = Part(SCRIPT, seed=1, is_cut=lambda now_s: now_s > 12.0, dies_s=60.0)
    found = search_together(tmp_path, [Part(SCRIPT), cut], TWO)
    search = found.searches[1]
    assert played_by(found, "host-1") < len(search.study.rounds)
    again = Part(SCRIPT, seed=1, host="host-1", joins_s=600.0)
    later = Together([search], found.storage).go([again])
    assert played_by(later, "host-1") == len(search.study.rounds)
    assert hosts(later, 0) == ["host-0", "host-1"]
    assert len(announced(later)) == 1
    assert len(later.look().members) == 2


def test_what_is_not_of_this_space_is_never_taken_from_a_study(tmp_path: Path) -> None:
    found = together(tmp_path / "first", Part(SCRIPT))
    board = Board(cast("Any", found.storage), STUDY)
    board.open(AGREEMENT)
    ((group, written),) = [
        (one.group, one.entry.played.configs[0])
        for one in board.look().published[:1]
        if isinstance(one.entry, Rounds)
    ]
    turns = Played(1.0, 64.0), Played(0.1, 64.0)
    for number, foreign in enumerate(
        (written.replace(workers=64), written.replace(precision="int4"), Config({"--rm": "/"}))
    ):
        rounds = Rounds(PlayedRounds(1, (written, foreign), (turns,)))
        tried = Tried(replace(found.found[0].records[0], config=foreign))
        entries: tuple[Entry, ...] = (rounds, tried)
        for nth, entry in enumerate(entries):
            board.put(Published("stranger-1", 2 * number + nth + 1, "stranger", group, entry))
    heard = Heard()
    part = Part(SCRIPT, joins_s=600.0, seed=1, events=heard, host="here")
    (result,) = search_together(tmp_path / "second", [part], TWO, storage=found.storage).found
    assert BEST.items() <= result.best.items()
    assert {knob for one in result.records for knob in one.config} == {*written}
    assert not any(one.config["precision"] == "int4" for one in result.records)
    assert any("left out" in note for note in heard.warnings)


def test_a_config_that_trains_something_else_on_one_machine_is_refused_there(
    tmp_path: Path,
) -> None:
    # The wrong one is announced by the other, which joined long before
    def wrong(config: Config) -> float:
        return 1.5 if config.get("precision") == "bf16" else 1.0

    heard = Heard()
    odd = replace(SCRIPT, trains=wrong)
    found = together(tmp_path, Part(SCRIPT), Part(odd, joins_s=110.0, events=heard))
    first, late = found.found
    assert "precision" in first.changes
    assert "precision" not in late.changes
    assert refused(found) == {announced(found)[0].name}
    assert any("does not claim" in warning for warning in heard.warnings)
    (refusal,) = late.shared.refusals
    assert (refusal.announced_by, refusal.host) == ("host-0", "host-1")
    assert refusal.config == first.best


def test_a_config_that_fails_in_a_fresh_process_of_one_machine_is_refused_there(
    tmp_path: Path,
) -> None:
    heard = Heard()

    def ends(question: Question) -> Ending | None:
        is_claim = "confirm" in heard.phases and question.kind == "measure"
        return CRASH if is_claim and _has(question, "precision", "bf16") else None

    broken = replace(SCRIPT, ends=ends)
    found = together(tmp_path, Part(SCRIPT), Part(broken, events=heard))
    assert refused(found)
    assert "precision" not in found.found[1].changes


def test_one_on_which_the_announced_config_has_failed_goes_on_with_its_race(
    tmp_path: Path,
) -> None:
    def ends(question: Question) -> Ending | None:
        return CRASH if _has(question, "precision", "bf16") else None

    # It starts slowly, so that the other one announces what has failed here before it knows more
    first = replace(SCRIPT, factors={"precision": {"bf16": 1.5}})
    slow = replace(SCRIPT, factors={"memory_format": {"channels_last": 1.4}}, ends=ends)
    for start_s in (25.0, 30.0):
        parts = (Part(first), Part(replace(slow, start_s=start_s)))
        found = together(tmp_path / f"{start_s}", *parts)
        assert announced(found)[0].name in refused(found)
        result = found.found[1]
        assert result.finding is Finding.FASTER
        assert {*result.changes} == {"memory_format"}


def test_one_whose_user_stops_it_costs_the_others_nothing(tmp_path: Path) -> None:
    class Stops(Heard):
        def on_process(self, process: ClaimProcess) -> None:
            super().on_process(process)
            raise KeyboardInterrupt

    found = together(tmp_path, Part(SCRIPT), Part(SCRIPT, events=Stops()))
    (result,) = found.found
    assert result.finding is Finding.FASTER
    assert all(member.left for member in found.look().members.values())
    assert result.seconds < 1.15 * 180.0


def test_expensive_starts_are_shared_out(tmp_path: Path) -> None:
    apart: Knobs = {"flush_denormal": (False, True), "precision": ("fp32", "bf16")}
    compiled: Knobs = {"compile": ("off", "default"), "workers": (0, 1)}
    cases: list[tuple[Knobs, Script, Callable[[Config], bool]]] = [
        (apart, Script({"flush_denormal": {True: 0.9}}), lambda c: bool(c["flush_denormal"])),
        (
            compiled,
            Script({"compile": {"default": 0.8}}, compile_s=15.0),
            lambda c: c.get("compile") == "default",
        ),
    ]
    for number, (knobs, script, is_expensive) in enumerate(cases):
        parts = [Part(script, budget_s=300.0)] * 3
        found = together(tmp_path / f"{number}", *parts, knobs=knobs)
        own = [
            [r for r in search.study.records if is_expensive(r.config)] for search in found.searches
        ]
        assert sum(map(bool, own)) == 1, [[r.why for r in its] for its in own]
        assert [one.state for one in tries(found)] == [RequestState.DONE]
        told = [
            {r.is_elsewhere for r in one.records if is_expensive(r.config)} for one in found.found
        ]
        assert sorted(told, key=str) == [{False}, {True}, {True}]


def test_an_expensive_start_of_a_machine_that_died_comes_back_once(tmp_path: Path) -> None:
    deaths: list[int] = []

    def dies(most: int) -> Callable[[Question], None]:
        def ends(question: Question) -> None:
            if _has(question, "compile", "default") and len(deaths) < most:
                deaths.append(question.rig)
                raise Killed

        return ends

    knobs: Knobs = {"compile": ("off", "default"), "workers": (0, 1)}
    for most in (1, 2):
        deaths.clear()
        script = Script({"compile": {"default": 1.4}}, compile_s=15.0, ends=dies(most))
        parts = [Part(script, budget_s=400.0)] * 3
        found = together(tmp_path / f"{most}", *parts, knobs=knobs)
        assert len(found.found) == 3 - most
        states = [one.state for one in tries(found)]
        assert states == [RequestState.LOST, RequestState.DONE if most == 1 else RequestState.LOST]
        compiled = {one.best.get("compile") for one in found.found}
        # After two losses it may be what kills machines: nobody tries it again
        assert compiled == {"default" if most == 1 else "off"}


def test_what_one_machine_refuses_none_announces_again(tmp_path: Path) -> None:
    def wrong(config: Config) -> float:
        return 1.5 if config.get("precision") == "bf16" else 1.0

    # The first begins its claim late, so that the refusal of the other comes before
    odd = replace(SCRIPT, trains=wrong)
    found = together(tmp_path, Part(odd), Part(SCRIPT, joins_s=4.0), Part(SCRIPT, joins_s=8.0))
    made = announced(found)
    configs = [one.config for one in made]
    assert len(configs) == len({*configs})
    assert "precision" not in found.found[0].changes
