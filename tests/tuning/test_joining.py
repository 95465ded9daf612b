"""Who may join a shared study, from the user's side."""

import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import InMemoryStorage

from autotune.errors import OutOfReachError, UsageError
from autotune.program.program import Program, ProgramKind, parse_program
from autotune.program.sharing_options import SharingOptions
from autotune.results.record import SearchInfo
from autotune.sharing.agreement import agreement_of, disagreement
from autotune.sharing.board import Board
from autotune.sharing.entries import Member
from autotune.tuning.joining import OPENING_S, PAUSE_S, opened, serve_on, served
from autotune.tuning.search_request import SearchRequest
from tests.made import make_hardware


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")
    return parse_program("train.py", ["--lr", "1"])


def head_of(program: Program, **typed: object) -> SearchInfo:
    request = SearchRequest(program, **typed)  # type: ignore[arg-type]
    return SearchInfo(
        program, request.space_searched(), request.options(), make_hardware(), created=""
    )


def test_who_searches_something_else_is_refused_in_one_line_that_says_what_differs(
    program: Program,
) -> None:
    theirs = agreement_of(head_of(program))
    Path("train.py").write_text("print(2)\n")
    edited = parse_program("train.py", ["--lr", "1"])
    for ours, said in (
        (
            head_of(edited),
            f"is {program.fingerprint[:8]}… there, and {edited.fingerprint[:8]}… here",
        ),
        (head_of(replace(program, args=("--lr", "2"))), "'train.py --lr 2' here"),
        (head_of(replace(program, ranks=2)), "(2 ranks)' here"),
        (head_of(program, tune=["workers"]), "batch_size is 'left open' there"),
        (head_of(program, set={"workers": [0, 1]}), "workers is 'left open' there, "),
        (head_of(program, set={"workers": 3}), "and '3' here"),
        (head_of(program, lr_rule="sqrt"), "--lr-rule is"),
        (head_of(program, may_change="batch"), "--may-change is 'rounding' there, and 'batch'"),
        (head_of(program, objective="memory"), "the goal is 'throughput' there, and 'memory' here"),
        (head_of(program, max_memory="90%"), "--max-memory 0.9' here"),
    ):
        told = disagreement("resnet", theirs, agreement_of(ours))
        assert told.startswith("The study 'resnet' searches something else: ")
        assert said in told, told
        assert len(told.splitlines()) == 1
    told = disagreement("resnet", theirs, replace(theirs, version="0.1"))
    assert f"autotune is '{theirs.version}' there, and '0.1' here" in told
    told = disagreement("resnet", replace(theirs, space="a later form"), theirs)
    assert "more. Start what the others" in told


def test_budget_fence_sampler_seed_and_output_are_each_members_own(program: Program) -> None:
    ours = agreement_of(head_of(program))
    for typed in ({"budget": "9m"}, {"sampler": "tpe"}, {"seed": 3}, {"output": "there.yaml"}):
        assert not disagreement("resnet", ours, agreement_of(head_of(program, **typed)))


def test_a_function_of_one_process_is_searched_by_no_other_machine(program: Program) -> None:
    pickled = replace(program, kind=ProgramKind.PICKLED_FUNCTION)
    with pytest.raises(UsageError, match="Write it into a file"):
        agreement_of(head_of(pickled))


class Away:
    """A store that is out of reach for some calls."""

    def __init__(self, calls: int) -> None:
        self.calls, self.store = calls, InMemoryStorage()

    def __getattr__(self, name: str) -> Any:
        if self.calls > 0:
            self.calls -= 1
            raise OutOfReachError("too many clients")
        return getattr(self.store, name)


def test_a_storage_that_is_out_of_reach_is_tried_again_for_a_minute_and_that_is_said(
    program: Program,
) -> None:
    agreement, told, waited = agreement_of(head_of(program)), list[str](), list[float]()
    store = Away(3)
    opened(Board(store, "x"), agreement, told.append, lambda: sum(waited), waited.append)
    assert store.get_study_id_from_name("x") == 0
    assert told == ["Trying again for 60 s: too many clients"]
    assert len(waited) == 3
    assert max(waited) <= PAUSE_S
    with pytest.raises(OutOfReachError):
        opened(Board(Away(10**6), "x"), agreement, told.append, lambda: sum(waited), waited.append)
    assert OPENING_S <= sum(waited) < 2 * OPENING_S + PAUSE_S


def test_many_that_open_a_study_at_once_create_it_once(program: Program) -> None:
    agreement, store = agreement_of(head_of(program)), InMemoryStorage()
    with ThreadPoolExecutor(8) as pool:
        boards = [Board(store, "x") for _ in range(8)]
        [*pool.map(lambda one: opened(one, agreement, print), boards)]
    assert len(store.get_all_studies()) == 1


def test_who_finds_that_another_one_has_just_created_the_study_joins_it(program: Program) -> None:
    store = InMemoryStorage()

    class Second:
        """Looks before another one has created the study, and creates it afterwards."""

        def __getattr__(self, name: str) -> Any:
            if name == "create_new_study":
                Board(store, "x").open(agreement_of(head_of(program)))
            return getattr(store, name)

    opened(Board(Second(), "x"), agreement_of(head_of(program)), print)
    assert len(store.get_all_studies()) == 1


def test_a_study_is_served_until_its_last_member_has_left_or_a_ctrl_c(
    program: Program,
) -> None:
    sharing = SharingOptions("grpc://node1:7000", "x", serves=True)
    board = Board(InMemoryStorage(), "x")
    board.open(agreement_of(head_of(program)))
    other = Member("b", "node2", "boot", "pid", 7, 99)
    board.beat(other)
    told: list[str] = []
    says = iter([other, replace(other, left=True)])
    serve_on(board, sharing, told.append, lambda _: board.beat(next(says)))
    assert len(told) == 1
    assert "until the last member has left (node2); Ctrl-C ends that" in told[0]

    def ctrl_c(_: float) -> None:
        raise KeyboardInterrupt

    board.beat(other)
    serve_on(board, sharing, told.append, ctrl_c)
    assert "no longer served. Its members measure on" in told[-1]
    board.beat(replace(other, left=True))
    jobs = iter([["job 1"], []])
    serve_on(board, sharing, told.append, lambda _: None, lambda: next(jobs))
    assert "(job 1)" in told[-1], "who waits in a queue yet is served, too"
    assert not [*jobs]


def test_ctrl_c_ends_the_serving_also_behind_the_and_of_a_script(tmp_path: Path) -> None:
    sharing = SharingOptions("grpc://127.0.0.1:0", "x", serves=True)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), served(sharing, tmp_path, print):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_address_that_is_none_of_this_machines_is_refused_without_another_word(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    sharing = SharingOptions("grpc://192.0.2.1:7000", "x", serves=True)
    with pytest.raises(UsageError, match="for 'autotune resume' free this one"):
        served(sharing, tmp_path, told.append).__enter__()
    assert not told
