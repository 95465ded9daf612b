"""Members of one study in virtual time: what each may do, and what all of them know."""

import errno
import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState, create_trial

from autotune.errors import SharedStudyError
from autotune.files import access
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.config import Config
from autotune.results.finding import Finding
from autotune.results.shared_answer import Refusal
from autotune.sharing.board import Board
from autotune.sharing.entries import (
    Answer,
    Claimed,
    Entry,
    Published,
    Rounds,
    Tried,
    as_json,
)
from autotune.sharing.standing import standing
from benchmarks.machines import REQUESTS_A_BEAT
from tests.made import make_interval, make_record
from tests.sharing.worlds import (
    AGREEMENT,
    BEAT_S,
    WRITTEN,
    World,
    configs,
    process_of,
    rounds_of,
)

FIRST, SECOND, THIRD, *_ = configs(5)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(InMemoryStorage(), tmp_path)


def requests(world: World) -> list[Any]:
    """Return all trials of the study, also those that are void."""
    found = world.storage.get_all_trials(world.storage.get_study_id_from_name("study"))
    return list(found)


def trials(world: World) -> list[tuple[str, TrialState]]:
    valid = (one for one in requests(world) if not one.user_attrs.get("void"))
    return [(one.user_attrs["name"], one.state) for one in valid]


def results(world: World) -> list[str]:
    attributes = world.storage.get_study_user_attrs(world.storage.get_study_id_from_name("study"))
    return [name for name in attributes if name.startswith("result:")]


def test_a_config_is_tried_by_one_member_and_its_record_is_known_to_all(world: World) -> None:
    one, other = world.join("a"), world.join("b")
    assert one.may_try(FIRST)
    assert one.may_try(FIRST), "it still has the right"
    assert not other.may_try(FIRST)
    assert len(requests(world)) == 1, "whether it is there was looked up before it was written"
    assert other.may_try(SECOND)
    one.tried(make_record(FIRST))
    world.pass_s(20)
    assert [record.config for record in other.tried_elsewhere()] == [FIRST]
    assert not one.tried_elsewhere()
    assert not one.may_try(FIRST)
    other.leave()
    world.pass_s(20)
    assert one.may_try(SECOND), "who leaves gives back what is not done"
    one.leave()
    assert {state for _, state in trials(world)} == {TrialState.COMPLETE}


def test_a_trial_on_top_of_another_config_is_known_by_what_it_was_asked_for(world: World) -> None:
    one, other = world.join("a"), world.join("b")
    assert one.may_try(FIRST)
    one.tried(make_record(SECOND), FIRST)
    world.pass_s(20)
    assert not other.may_try(FIRST)
    assert other.may_try(SECOND)


def test_what_a_dead_member_held_is_tried_once_more_and_then_by_nobody(world: World) -> None:
    first, second, third = world.join("a"), world.join("b"), world.join("c")
    assert first.may_try(FIRST)
    world.pass_s(50, second, third)
    assert not second.may_try(FIRST), "a member that is quiet for a while lives"
    world.pass_s(20, second, third)
    assert second.may_try(FIRST)
    assert not third.may_try(FIRST)
    world.pass_s(80, third)
    assert not third.may_try(FIRST), "it may be what kills machines"
    third.leave()
    assert {state for _, state in trials(world)} == {TrialState.FAIL}
    assert len(trials(world)) == 2


def test_a_member_that_was_stopped_and_wakes_up_has_its_result_counted(world: World) -> None:
    stopped, other = world.join("a"), world.join("b")
    assert stopped.may_try(FIRST)
    world.pass_s(90, other)
    assert other.may_try(FIRST)
    stopped.tried(make_record(FIRST))  # ends what was given away meanwhile
    world.pass_s(30)
    assert [record.config for record in other.tried_elsewhere()] == [FIRST]
    other.tried(make_record(FIRST))
    world.pass_s(20)
    assert not world.said["a"], "it is nothing to tell the user"
    assert [state for _, state in trials(world)] == [TrialState.FAIL, TrialState.COMPLETE]


def test_the_last_that_leaves_ends_what_a_member_held_that_was_just_killed(world: World) -> None:
    killed, one, last = world.join("a"), world.join("b"), world.join("c")
    world.pass_s(20)
    assert killed.may_try(FIRST)
    one.leave()
    assert trials(world)[0][1] is TrialState.RUNNING, "the other one will see it die"
    last.leave()
    assert trials(world)[0][1] is TrialState.FAIL
    killed.tried(make_record(FIRST))  # it lived: its result counts
    again = world.join("b")
    assert [record.config for record in again.tried_elsewhere()] == [FIRST]


def test_wall_clocks_and_the_times_of_others_mean_nothing(world: World) -> None:
    early = world.join("a")
    late = world.join("b", clock=lambda: world.clock() + 36_000)
    assert early.may_try(FIRST)
    world.pass_s(30)
    assert not late.may_try(FIRST)
    assert not late.courier.snapshot.dead


def test_a_member_that_was_killed_goes_on_under_its_name_and_loses_nothing(world: World) -> None:
    killed, other = world.join("a"), world.join("b")
    assert killed.may_try(FIRST)
    assert killed.may_try(SECOND)
    killed.courier.hurry = lambda: None  # type: ignore[method-assign]  # the kill comes before
    killed.tried(make_record(SECOND))
    killed.played(rounds_of(FIRST))
    world.members.remove(killed)
    again = world.join("a")
    assert again.id == killed.id
    world.pass_s(20)
    assert [record.config for record in other.tried_elsewhere()] == [SECOND]
    assert len(other.others()["a"]) == 1
    assert len(results(world)) == 2
    assert again.may_try(FIRST), "the second attempt: it was killed with the first"
    again.played(rounds_of(SECOND))
    world.pass_s(20)
    assert len(results(world)) == 3, "numbers are not used again"


def test_a_member_that_is_cut_off_measures_on_and_delivers_later(world: World) -> None:
    is_cut = False
    one = world.join("a", fails=lambda _name: "before" if is_cut else "")
    other = world.join("b")
    world.pass_s(20)
    is_cut = True
    for _ in range(3):
        one.played(rounds_of(FIRST))
        world.pass_s(20)
    assert not one.may_try(FIRST), "others may have the right"
    assert one.announce(FIRST) is None
    assert not other.others()
    world.pass_s(60)
    assert one.may_try(FIRST), "others take it for dead: it goes on for itself"
    one.tried(make_record(FIRST))
    is_cut = False
    world.pass_s(20)
    assert len(other.others()["a"]) == 3
    assert len(results(world)) == 2, "rounds that wait together are one entry"
    assert not other.may_try(FIRST)
    said = world.said["a"]
    assert len(said) == 2
    assert said[0].startswith("Cut off from the shared study since")
    assert said[1] == "The shared study is reached again."


def test_what_is_told_late_of_a_cut_is_told_as_over(world: World) -> None:
    is_cut = True
    one = world.join("a", fails=lambda _name: "before" if is_cut else "")
    one.say, say = lambda _text: None, one.say
    one.courier.notes, notes = list, one.courier.notes  # type: ignore[method-assign]
    world.pass_s(20)
    is_cut = False
    world.pass_s(20)
    one.courier.notes = notes  # type: ignore[method-assign]
    one.say = say
    one.drive()
    (said,) = world.said["a"]
    assert said.startswith("The shared study, out of reach since ")
    assert said.endswith(", is reached again.")


def test_who_waits_for_others_looks_twice_a_beat(world: World) -> None:
    one, other = world.join("a"), world.join("b")
    world.pass_s(20)
    one.begin("try settings")
    other.begin("wait for the others")
    announced = one.announce(FIRST)
    assert announced is not None
    world.clock.now_s += 5.0  # half a beat
    assert other.awaits_announcement() is False, "it has read what was announced"
    assert other.announced() == announced


def test_a_beat_takes_as_many_calls_as_the_replay_counts_and_an_entry_one(world: World) -> None:
    made: list[str] = []
    one = world.join("a", fails=lambda name: made.append(name) or "")  # type: ignore[func-returns-value]
    world.pass_s(20)
    made.clear()
    world.pass_s(10 * BEAT_S)
    assert len(made) == 10 * REQUESTS_A_BEAT, made
    made.clear()
    one.played(rounds_of(FIRST))
    world.pass_s(BEAT_S)
    assert len(made) == REQUESTS_A_BEAT + 1, made


def test_a_lost_answer_doubles_nothing(world: World) -> None:
    dice = random.Random(7)
    one = world.join("a", fails=lambda _name: dice.choice(["after", "before", *[""] * 20]))
    for config in configs(5):
        while not one.may_try(config):
            world.pass_s(10)
        one.tried(make_record(config))
    while one.courier.spool.waiting:
        world.pass_s(10)
    world.pass_s(200)
    one.leave()
    other = world.join("b")
    assert {record.config for record in other.tried_elsewhere()} == {*configs(5)}
    assert len(results(world)) == 5
    assert len(trials(world)) == 5
    assert not [name for name, state in trials(world) if state is TrialState.RUNNING]


def test_what_is_announced_first_is_claimed_by_all_of_its_group(world: World) -> None:
    one, other, elsewhere = world.join("a"), world.join("b"), world.join("c", group="gpu")
    world.pass_s(20)
    made = one.announce(FIRST)
    assert made is not None
    assert other.announce(SECOND) == made == one.announced()
    assert elsewhere.announce(SECOND).config == SECOND  # type: ignore[union-attr]
    assert one.awaits_claims()
    other.claimed(process_of(made))
    other.claimed(replace(process_of(made), announcement=""))  # it began before
    other.claimed(replace(process_of(made), config=SECOND))
    world.pass_s(20)
    assert len(one.claims_elsewhere()["b"]) == 1
    assert one.awaits_claims()
    other.claimed(process_of(made))
    world.pass_s(20)
    assert len(one.claims_elsewhere()["b"]) == 2
    assert not one.awaits_claims()
    assert other.awaits_claims(), "the first has claimed nothing yet"
    world.pass_s(80, other)
    assert not other.awaits_claims(), "who is dead owes nothing"


def test_a_refused_announcement_makes_room_for_another(world: World) -> None:
    one, other = world.join("a"), world.join("b")
    one.announce(FIRST)
    world.pass_s(20)
    other.refuse("it trains something else")
    assert other.announced() is None
    world.pass_s(20)
    assert one.announced() is None
    assert one.refusals() == [Refusal(FIRST, "a", "b", "it trains something else")]
    second = one.announce(SECOND)
    assert second is not None
    assert second.turn == 2
    assert other.announce(THIRD) == second


def test_what_is_not_of_the_own_space_is_left_out_and_counted(world: World) -> None:
    one, other = world.join("a"), world.join("b")
    strange = FIRST.replace(workers=77)
    foreign = Config({**FIRST, "$LD_PRELOAD": "evil.so"})
    for config in (strange, foreign, FIRST):
        other.played(rounds_of(config))
        other.tried(make_record(config))
    board = Board(world.storage, "study")
    board.open(AGREEMENT)
    board.put(Published("x", 1, "x", "cpu", Rounds(rounds_of(FIRST))))
    study = world.storage.get_study_id_from_name("study")
    world.storage.set_study_user_attr(study, "result:x:000002", {"kind": "rounds", "entry": 7})
    world.storage.set_study_user_attr(study, "member:y", "not a member")
    poison = Published("x", 3, "x", "cpu", Rounds(rounds_of(FIRST, cost=float("inf")))).as_json()
    world.storage.set_study_user_attr(study, "result:x:000003", poison)
    world.pass_s(20)
    assert {key: len(its) for key, its in one.others().items()} == {"b": 1, "x": 2}
    assert [record.config for record in one.tried_elsewhere()] == [FIRST]
    assert world.said["a"] == [
        "7 results of others left out: damaged, or of settings that are not here."
    ]
    other.announce(strange)
    world.pass_s(20)
    assert one.announced() is None
    made = one.announce(FIRST)
    assert made is not None
    assert made.turn == 2, "a config that nobody can claim does not stop the group"


def places_in(raw: Any, *above: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value of a JSON document."""
    yield above
    if isinstance(raw, dict | list):
        for key in raw if isinstance(raw, dict) else range(len(raw)):
            yield from places_in(raw[key], *above, key)


def with_another(raw: Any, value: Any, *way: Any) -> Any:
    """Return a copy of a JSON document with another value at one place."""
    if not way:
        return value
    copy = raw.copy()
    copy[way[0]] = with_another(raw[way[0]], value, *way[1:])
    return copy


def nested() -> list[Any]:
    deep: list[Any] = []
    for _ in range(900):
        deep = [deep]
    return deep


def test_whatever_stands_in_a_study_ends_no_exchange_and_all_numbers_are_finite(
    world: World,
) -> None:
    one = world.join("a")
    made = one.announce(FIRST)
    assert made is not None
    entries: list[Entry] = [
        Rounds(rounds_of(FIRST)),
        Claimed(made.name, process_of(made)),
        Tried(make_record(FIRST)),
        Answer(made.name, FIRST, make_interval(1.2), Finding.FASTER, ("b",)),
    ]
    strange: list[Any] = [
        None,
        "inf",
        "nan",
        -1,
        0,
        True,
        10**400,
        1e308,
        math.inf,
        math.nan,
        [],
        {},
    ]
    study, number = world.storage.get_study_id_from_name("study"), 0
    for entry in entries:
        for way in places_in(Published("x", 0, "x", "cpu", entry).as_json()):
            for value in [*strange, nested()]:
                number += 1
                raw = Published("x", number, "x", "cpu", entry).as_json()
                name = f"result:x:{number:06d}"
                world.storage.set_study_user_attr(study, name, with_another(raw, value, *way))
    world.pass_s(20)
    assert number > 1000
    assert not one.courier.over
    found = [*one.others().values(), one.tried_elsewhere(), *one.claims_elsewhere().values()]
    assert all(map(len, found))
    json.dumps([as_json(value) for its in found for value in its], allow_nan=False)
    for process in one.claims_elsewhere()["x"]:
        assert math.isfinite(process.ratio.interval.high)
    for rounds in one.others()["x"]:
        assert all(0 < its.cost / its.work < math.inf for its in rounds.stretch.values())
    standing(one.courier.snapshot, ())


def test_a_right_has_the_name_of_what_it_is_for(world: World) -> None:
    one = world.join("a")
    trial = create_trial(
        state=TrialState.COMPLETE,
        value=0.0,
        user_attrs={"kind": "winner", "name": "winner:cpu:1", "turn": 1, "member": "x",
                    "process": "x", "group": "gpu", "value": as_json(SECOND)},
    )  # fmt: skip
    world.storage.create_new_trial(world.storage.get_study_id_from_name("study"), trial)
    world.pass_s(20)
    made = one.announce(FIRST)
    assert made is not None
    assert made.config == FIRST


def test_a_study_that_is_deleted_is_said_to_be_and_the_search_goes_on_alone(world: World) -> None:
    one = world.join("a")
    assert one.may_try(FIRST)
    world.storage.delete_study(world.storage.get_study_id_from_name("study"))
    one.tried(make_record(FIRST))
    world.pass_s(20)
    assert world.said["a"] == ["The shared study 'study' was deleted. This search goes on alone."]
    assert one.may_try(SECOND)
    again = world.join("a")
    assert not again.courier.spool.waiting, "a resumed member makes it anew, and delivers"
    assert len(results(world)) == 1


def test_a_search_that_differs_is_refused_and_one_that_changed_goes_on_alone(world: World) -> None:
    one = world.join("a")
    other = replace(AGREEMENT, may_change="batch")
    with pytest.raises(SharedStudyError, match="may-change is 'rounding' there"):
        Board(world.storage, "study").open(other)
    study = world.storage.get_study_id_from_name("study")
    world.storage.set_study_user_attr(study, "agreement", {**vars(other)})
    world.pass_s(20)
    assert "This search goes on alone." in world.said["a"][0]
    assert one.may_try(FIRST)
    assert one.announce(FIRST) is None
    assert not one.awaits_claims()
    one.leave()
    with pytest.raises(SharedStudyError, match="no shared study 'other'"):
        Board(world.storage, "other").open(None)


def test_members_ask_for_trials_in_orders_of_their_own(world: World) -> None:
    members = [world.join(str(n)) for n in range(6)]
    orders = {tuple(one.preferred(configs(5))) for one in members}
    assert len(orders) > 1
    assert {frozenset(order) for order in orders} == {frozenset(configs(5))}
    assert len({one.number for one in members}) == 6


def test_texts_of_others_are_printable_and_hold_no_traceback(world: World) -> None:
    one, other = world.join("a"), world.join("b")
    ending = Ending(
        Outcome.CRASHED, "ValueError: \x1b[2Jgone \udc80", 'File "/home/user/secret.py"'
    )
    other.tried(replace(make_record(FIRST), measurement=None, ending=ending, speedup=None))
    world.pass_s(20)
    (record,) = one.tried_elsewhere()
    assert record.ending == Ending(Outcome.CRASHED, "ValueError: gone ?")


def test_a_damaged_file_of_the_spool_is_left_out_with_one_line(world: World) -> None:
    is_cut = True
    one = world.join("a", fails=lambda _name: "before" if is_cut else "")
    one.played(rounds_of(FIRST))
    one.played(rounds_of(SECOND))
    folder = world.folder / "a" / "shared"
    (folder / "000001.json").write_text("{", encoding="utf-8")
    one.leave()
    assert "2 results did not reach" in world.said["a"][-1]
    again = world.join("a")
    assert again.courier.spool.damaged == ["000001.json"]
    assert results(world) == [f"result:{one.id}:000002"]
    assert any("000001.json" in text for text in world.said["a"])


def test_on_a_full_disk_results_are_shared_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    one, other = world.join("a"), world.join("b")
    monkeypatch.setattr(access, "write", full)  # a disk cannot be filled in a test
    one.played(rounds_of(FIRST))
    world.pass_s(20)
    assert len(other.others()["a"]) == 1
    assert len(world.said["a"]) == 1
    assert "No space left on device" in world.said["a"][0]
    monkeypatch.undo()
    again = world.join("a")  # killed meanwhile, it remembers no number
    again.played(rounds_of(SECOND))
    world.pass_s(20, again, other)
    assert len(other.others()["a"]) == 2


def test_rounds_of_others_are_told_apart_by_process_and_machine(world: World) -> None:
    one, other, third = world.join("a"), world.join("b"), world.join("c")
    other.played(rounds_of(FIRST, process=1))
    third.played(rounds_of(FIRST, process=1))
    other.played(rounds_of(FIRST, process=2))
    world.pass_s(20)
    found = one.others()
    assert found is one.others(), "what is known is not built again"
    processes = [rounds.process for its in found.values() for rounds in its]
    assert len(set(processes)) == 3
    assert 1 not in processes, "the numbers are not those of this member"
    assert found["b"][0].stretch[WRITTEN].samples == 0.0
    assert found["b"][0].stretch[FIRST].work == 2 * 64.0
