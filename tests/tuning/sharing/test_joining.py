"""Who may join a shared study, from the user's side."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.program.program import Program, ProgramKind, parse_program
from autotune.results.record import SearchInfo
from autotune.tuning.search_request import SearchRequest
from autotune.tuning.sharing.agreement import agreement_of, disagreement
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
        (head_of(edited), f"at {program.fingerprint[:8]}…; yours is {edited.fingerprint[:8]}…"),
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
        assert told.startswith("The study 'resnet' searches something else. ")
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
