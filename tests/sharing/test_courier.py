"""Eight members in threads of their own over one storage that fails at random, before and after."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.trial import TrialState
from sqlalchemy import event

from autotune.program.config import Config
from autotune.sharing.board import Board
from autotune.sharing.courier import Pace
from autotune.sharing.entries import arm_of
from autotune.sharing.joined import Joined, member_of
from autotune.sharing.snapshot import NOTHING
from tests.made import make_record
from tests.sharing.worlds import AGREEMENT, SPACE, Flaky, configs, process_of, rounds_of

MEMBERS, ROUNDS, BEAT_S = 8, 3, 0.1
KILLED = (1, 2)  # numbers of the members that end without a word, with a config in their hands
FAULTS = ["before", "after", "late", *[""] * 37]


class LockedStorage:
    """A file that one thread uses at a time, as one connection to a server would be."""

    def __init__(self, path: Path) -> None:
        self._storage = RDBStorage(f"sqlite:///{path}")
        event.listen(self._storage.engine, "connect", _without_waiting_for_the_disk)
        self._storage.engine.dispose()
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            with self._lock:
                return getattr(self._storage, name)(*given, **named)

        return call


def _without_waiting_for_the_disk(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA synchronous=OFF")


def in_memory(_folder: Path) -> Any:
    return InMemoryStorage()


def in_sqlite(folder: Path) -> Any:
    return LockedStorage(folder / "study.db")


def joined(number: int, storage: Any, folder: Path) -> Joined:
    dice = random.Random(number)

    def fails(_name: str) -> str:
        how = dice.choice(FAULTS)
        if how == "late":
            time.sleep(BEAT_S)
            return ""
        return how

    board = Board(Flaky(storage, fails), "study", beat_s=BEAT_S)
    member = member_of(board, AGREEMENT, folder / str(number), Pace(beat_s=BEAT_S))
    member.join("cpu", "a CPU", SPACE)
    return member


def search(number: int, member: Joined) -> None:
    """Do what a search does with its membership, in a hurry; some are killed while they try."""
    if number in KILLED:
        kill(member)
        return
    for turn in range(ROUNDS):
        for config in member.preferred(configs(5)):
            if not member.courier.is_lone and member.may_try(config):
                member.tried(make_record(config))
        member.played(rounds_of(configs(5)[turn % 5], turn))
    claim(member, configs(5)[number % 5])
    leave(member)


def claim(member: Joined, config: Config) -> None:
    while (announced := member.announce(config)) is None:
        time.sleep(BEAT_S / 4)
    for _ in range(2):
        member.claimed(process_of(announced))
    while member.awaits_claims() or member.courier.spool.waiting:
        time.sleep(BEAT_S / 4)


def kill(member: Joined) -> None:
    """End a member's thread without a word: no request after this one reaches the study."""
    member.courier.over = "killed"
    member.courier.hurry()
    assert member.courier._thread is not None
    member.courier._thread.join()


def leave(member: Joined) -> None:
    member.leave()
    assert member.courier._thread is not None
    member.courier._thread.join()


@pytest.mark.parametrize("make_storage", [in_memory, in_sqlite])
def test_whatever_fails_each_result_is_there_once_and_each_right_is_of_one_member(
    make_storage: Callable[[Path], Any], tmp_path: Path
) -> None:
    storage = make_storage(tmp_path)
    members = [joined(number, storage, tmp_path) for number in range(MEMBERS)]
    for number in KILLED:
        while not members[number].may_try(configs(5)[number]):
            time.sleep(BEAT_S / 4)
    threads = [
        threading.Thread(target=search, args=(number, member))
        for number, member in enumerate(members)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    study = storage.get_study_id_from_name("study")
    attributes = storage.get_study_user_attrs(study)
    trials = storage.get_all_trials(study)
    assert TrialState.RUNNING not in {trial.state for trial in trials}
    counted = [trial.user_attrs for trial in trials if not trial.user_attrs.get("void")]
    hand_outs = [one for one in counted if one["kind"] == "try"]
    names = Counter(one["name"] for one in hand_outs)
    assert set(names.values()) <= {1}, "one holder of each name"
    assert max(Counter(name.rsplit(":", 1)[0] for name in names).values()) <= 2
    winners = {one["name"] for one in counted if one["kind"] == "winner"}
    assert winners == {"winner:cpu:1"}
    living = [member for member in members if not member.courier.over]
    assert {member.courier.over for member in members} == {"", "killed"}
    claimed = [
        (one["member"], one["entry"]["process"]["config"]["values_by_knob"])
        for one in attributes.values()
        if isinstance(one, dict) and one.get("kind") == "claimed"
    ]
    assert Counter(member for member, _ in claimed) == dict.fromkeys((m.id for m in living), 2)
    assert len({str(config) for _, config in claimed}) == 1
    answers = [one for one in attributes.values() if isinstance(one, dict) and "entry" in one]
    arms = {f"try:{arm_of('cpu', config)}" for config in configs(5)}
    assert {name.rsplit(":", 1)[0] for name in names} <= arms
    of_living = {one.id for one in living}
    played = [one for one in answers if one["kind"] == "rounds" and one["member"] in of_living]
    assert sum(len(one["entry"]["turns"]) for one in played) == ROUNDS * len(living)


def test_the_engine_never_waits_long_for_a_study_that_does_not_answer(tmp_path: Path) -> None:
    storage, answers = InMemoryStorage(), threading.Event()
    answers.set()

    def waits(_name: str) -> str:
        answers.wait()
        return ""

    board = Board(Flaky(storage, waits), "study", beat_s=BEAT_S)
    board.open(AGREEMENT)
    pace = Pace(beat_s=BEAT_S, wait_s=0.05, leave_s=0.05)
    member = member_of(board, AGREEMENT, tmp_path, pace)
    member.join("cpu", "a CPU", SPACE)
    while member.courier.snapshot is NOTHING:
        time.sleep(BEAT_S / 10)
    answers.clear()
    assert not member.may_try(configs(1)[0])
    assert member.announce(configs(1)[0]) is None
    member.played(rounds_of(configs(1)[0]))
    member.leave()
    said: list[str] = []
    member.say = said.append
    member.leave()
    assert "did not reach the shared study" in said[0]
    answers.set()
    leave(member)
    trials = storage.get_all_trials(storage.get_study_id_from_name("study"))
    assert {one.state for one in trials if one.user_attrs["kind"] == "try"} <= {TrialState.FAIL}
    assert not member.courier.spool.waiting


def test_who_leaves_tries_at_once_whatever_failed_before(tmp_path: Path) -> None:
    storage, is_cut = InMemoryStorage(), threading.Event()
    board = Board(Flaky(storage, lambda _name: "before" if is_cut.is_set() else ""), "study")
    member = member_of(board, AGREEMENT, tmp_path, Pace(beat_s=60.0))
    while member.courier.snapshot is NOTHING:
        time.sleep(0.01)
    is_cut.set()
    member.played(rounds_of(configs(1)[0]))
    member.join("cpu", "a CPU", SPACE)
    while not member.courier._contact.faults:
        time.sleep(0.01)
    is_cut.clear()
    leave(member)
    assert not member.courier.spool.waiting
    (study,) = storage.get_all_studies()
    assert study.user_attrs[f"member:{member.id}"]["left"]
