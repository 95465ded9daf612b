"""What follows from what a study holds: who is dead, who has a right, what other groups found."""

import os
from dataclasses import replace

from autotune.files.lease import Lease
from autotune.knobs.space.space import ResolvedSpace
from autotune.program.config import Config
from autotune.results.finding import Finding
from autotune.sharing.entries import (
    Answer,
    Claimed,
    Member,
    Published,
    Request,
    RequestState,
    Right,
    Rounds,
    Tried,
)
from autotune.sharing.liveness import Liveness
from autotune.sharing.snapshot import Snapshot, is_of, may_hold
from tests.made import make_hardware, make_interval, make_profile, make_record, make_space
from tests.sharing.worlds import BEAT_S, SPACE, WRITTEN, Clock, configs, process_of, rounds_of

HERE = Lease.of_this_process()
ELSEWHERE = Member("b", "b", "another boot", "pid:[1]", 7, 8)
FIRST, SECOND, *_ = configs(5)
HELD, DONE, LOST, VOID = RequestState


def member(id_: str, **changes: object) -> Member:
    made = Member(id_, id_, HERE.boot, HERE.container, HERE.pid, HERE.started_ticks, "cpu")
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_member_is_dead_after_six_beats_and_three_looks_or_once_its_process_is_gone() -> None:
    clock = Clock()
    observer = Liveness(clock, BEAT_S)
    gone = member("gone", pid=os.getpid(), started_ticks=HERE.started_ticks + 1)
    inside = replace(gone, id="inside", container="pid:[2]")  # a number that means nothing here
    assert observer.look([ELSEWHERE, gone, inside]) == {"gone"}
    # Outside of containers, the processes that can be seen have the same name on all machines
    assert not Liveness(clock, BEAT_S).look([replace(gone, boot="another boot")])
    clock.now_s = 59.0
    assert observer.look([ELSEWHERE, inside]) == {"gone"}
    clock.now_s = 300.0  # the observer was stopped: it has looked twice since
    assert observer.look([ELSEWHERE, inside]) == {"gone"}
    assert observer.look([ELSEWHERE, inside]) == {"gone", "b", "inside"}
    beating = replace(ELSEWHERE, beat=1)
    assert observer.look([beating, replace(inside, left=True)]) == {"gone"}


def request(number: int, attempt: int, who: str, state: RequestState = HELD) -> Request:
    is_open = state is HELD
    return Request(Right.TRY, attempt, who, who, "cpu", FIRST, state, number, number, is_open)


def seen(*requests: Request, dead: str = "", tried: str = "") -> Snapshot:
    members = {id_: member(id_) for id_ in "abc"}
    records = tuple(
        Published(id_, n, id_, "cpu", Tried(make_record(FIRST))) for n, id_ in enumerate(tried)
    )
    return Snapshot(None, members, frozenset(dead), records, requests)


FREE = [
    ((), 1),
    ((request(0, 1, "a"),), None),
    ((request(0, 1, "a", VOID),), 1),
    ((request(0, 1, "a", DONE),), None),
    ((request(0, 1, "a", LOST),), 2),
    ((request(0, 1, "a", LOST), request(1, 2, "b")), None),
    ((request(0, 1, "a", LOST), request(1, 2, "b", LOST)), None),
]


def test_a_config_is_free_once_and_once_more_after_its_holder_was_lost() -> None:
    for requests, attempt in FREE:
        assert seen(*requests).free_attempt("cpu", FIRST) == attempt, requests
        assert seen(*requests, tried="c").free_attempt("cpu", FIRST) is None
        assert seen(*requests).free_attempt("gpu", FIRST) == 1


CLOSING = [
    # what there is, who is dead, who has told its result, what a closes
    ([request(0, 1, "a")], "", "", []),
    ([request(0, 1, "a"), request(1, 1, "a")], "", "", [(1, VOID)]),
    ([request(0, 1, "b"), request(1, 1, "a")], "", "", [(1, VOID)]),
    ([request(0, 1, "b")], "", "", []),
    ([request(0, 1, "b")], "b", "", [(0, LOST)]),
    ([request(0, 1, "b")], "b", "b", [(0, DONE)]),
    ([request(0, 1, "x")], "", "", [(0, LOST)]),
    ([request(0, 1, "a")], "", "a", [(0, DONE)]),
    ([replace(request(0, 1, "a"), process="before the kill")], "", "", [(0, LOST)]),
    ([replace(request(0, 1, "b", VOID), is_open=True)], "", "", []),
    ([replace(request(0, 1, "a", VOID), is_open=True)], "", "", [(0, VOID)]),
]


def test_each_closes_its_own_requests_and_those_of_the_dead() -> None:
    for requests, dead, tried, expected in CLOSING:
        found = seen(*requests, dead=dead, tried=tried)
        closing = found.to_close("a", "a", {one.name for one in requests})
        assert [(one.number, state) for one, state in closing] == expected, requests
    assert seen(request(0, 1, "a")).to_close("a", "a", ()) == [(request(0, 1, "a"), VOID)]


def test_only_configs_of_the_own_space_are_taken_and_values_are_told_apart_by_type() -> None:
    assert is_of(SPACE, WRITTEN)
    assert is_of(SPACE, FIRST)
    for strange in (
        FIRST.replace(flush_denormal=1),
        FIRST.replace(workers="2"),
        FIRST.replace(tf32=True),
        Config({"workers": FIRST["workers"]}),
    ):
        assert not is_of(SPACE, strange), strange
    space = make_space(["batch_size", "accumulation_steps"]).resolve(
        make_hardware(), make_profile()
    )
    own = space.start
    assert is_of(space, own)
    half = int(own["batch_size"]) // 2
    shared = own.replace(batch_size=half, accumulation_steps=2)
    assert is_of(space, shared) == ("accumulation_steps" in space.domains)
    assert not is_of(space, own.replace(batch_size=7))


def test_a_config_of_another_machine_has_settings_that_are_known_here() -> None:
    assert may_hold(SPACE, FIRST.replace(workers=31)), "it has more cores"
    assert not may_hold(SPACE, FIRST.replace(workers=-1))
    assert not may_hold(SPACE, FIRST.replace(**{"$LD_PRELOAD": "evil.so"}))
    flagged = replace_fixed(SPACE, "--width", "64")
    assert may_hold(flagged, WRITTEN.replace(**{"--width": "64"}))
    assert not may_hold(flagged, WRITTEN.replace(**{"--width": "$(rm -r ~)"}))


def replace_fixed(space: ResolvedSpace, knob: str, value: str) -> ResolvedSpace:
    return replace(space, fixed={**space.fixed, knob: value})


def test_other_groups_answer_by_what_rests_on_most_machines() -> None:
    answers = [
        Answer("", None, None, Finding.TOO_NOISY),
        Answer("w", FIRST, make_interval(1.2), Finding.FASTER, ("d",)),
        Answer("w", FIRST, make_interval(1.3), Finding.FASTER, ("e", "d")),
        Answer("w", SECOND.replace(workers=-5), make_interval(9.0), Finding.FASTER, tuple("xyz")),
    ]
    published = tuple(Published("d", n, "d", "gpu", one) for n, one in enumerate(answers))
    others = {"d": member("d", group="gpu", machine="H100")}
    found = Snapshot(None, others, frozenset(), published).answers("cpu", SPACE)
    assert [(one.group, one.machine, one.machines) for one in found] == [
        ("gpu", "H100", ("d", "e"))
    ]
    assert found[0].speedup == make_interval(1.3)
    assert not Snapshot(None, others, frozenset(), published).answers("gpu", SPACE)


def test_a_process_of_a_claim_counts_for_the_announcement_that_its_member_had_read() -> None:
    made = Request(Right.ANNOUNCE, 2, "a", "a", "cpu", FIRST, DONE, 1, 1, is_open=False)
    process = process_of(made)
    claimed = [
        Claimed(made.name, process),
        Claimed(replace(made, turn=1).name, process),
        Claimed(made.name, replace(process, config=SECOND)),
    ]
    published = tuple(Published("b", n, "b", "cpu", one) for n, one in enumerate(claimed))
    found = Snapshot(None, {"b": member("b")}, frozenset(), published, (made,))
    assert found.claims(made, "a") == {"b": [process]}
    assert [one.id for one in found.owing(made, "a")] == ["b"], "it owes one more"


def test_a_process_of_another_member_keeps_its_number_whoever_joins() -> None:
    # Members that measure on GPUs of one host; what is known of a process is kept by its number
    published = tuple(Published(id_, 1, "node", "cpu", Rounds(rounds_of(FIRST))) for id_ in "bc")
    found = [
        Snapshot(None, {one: member(one) for one in ids}, frozenset(), published).rounds(
            "cpu", "d", SPACE
        )
        for ids in ("bcd", "abcd", "d")
    ]
    assert found[0] == found[1] == found[2]
    assert len({one.process for one in found[0]["node"]}) == 2
