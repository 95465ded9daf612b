"""The flags of a program, seen while the real parsers read its command line."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator

import click
import pytest
from transformers import HfArgumentParser, TrainingArguments

from autotune.inside.seams.flags import FlagsSeam
from autotune.program.flags import Flag, find
from tests.watching import installed


@pytest.fixture
def seam() -> Iterator[FlagsSeam]:
    with installed(FlagsSeam()) as seam:
        yield seam


def start(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", *line.split()])


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--hidden", "-H", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--mode", choices=["quick", "best"], default="best")
    parser.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--no-cuda", dest="cuda", action="store_false")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--name")
    return parser


def test_argparse_tells_names_types_values_and_choices(
    seam: FlagsSeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(monkeypatch, "here --hidden 64 --fast")
    parser().parse_args()
    assert seam.all() == (
        Flag("--hidden", ("-H",), 64, "int"),
        Flag("--lr", (), 0.001, "float"),
        Flag("--mode", (), "best", "str", ("quick", "best")),
        Flag("--amp", (), True, "bool", is_switch=True, negation="--no-amp"),
        Flag("--fast", (), True, "bool", is_switch=True),
        Flag("--no-cuda", (), False, "bool", is_switch=True),
        Flag("--name", (), None, "str"),
    )


def test_what_is_parsed_from_elsewhere_is_no_flag_of_the_program(
    seam: FlagsSeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(monkeypatch, "here")
    parser().parse_args(["there", "--hidden", "1"])
    assert seam.all() == ()


def test_click_tells_the_same(seam: FlagsSeam, monkeypatch: pytest.MonkeyPatch) -> None:
    start(monkeypatch, "--hidden 64")

    @click.command()
    @click.option("--hidden", "-H", default=128)
    @click.option("--mode", type=click.Choice(["quick", "best"]), default="best")
    @click.option("--amp/--no-amp", default=True)
    @click.option("--sizes", multiple=True, type=int)
    def main(**_values: object) -> None: ...

    main(standalone_mode=False)
    assert [f for f in seam.all() if f.name != "--help"] == [
        Flag("--hidden", ("-H",), 64, "int"),
        Flag("--mode", (), "best", "str", ("quick", "best")),
        Flag("--amp", (), True, "bool", is_switch=True, negation="--no-amp"),
    ]


def test_the_parser_of_transformers_tells_the_trainers_arguments(
    seam: FlagsSeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(monkeypatch, "--output_dir out --per_device_train_batch_size 4")
    HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()  # type: ignore[arg-type]
    batch = find(seam.all(), "--per_device_train_batch_size")
    assert batch is not None
    assert (batch.value, batch.takes) == (4, "int")
    accumulate = find(seam.all(), "--gradient_accumulation_steps")
    assert accumulate is not None
    assert accumulate.value == 1
    compiled = find(seam.all(), "--torch_compile")
    assert compiled is not None
    assert compiled.is_truth


def test_a_program_that_reads_its_arguments_itself_shows_what_it_was_given(
    seam: FlagsSeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(monkeypatch, "data --hidden=64 --lr 0.1 -v -5")
    assert seam.all() == (
        Flag("--hidden", value="64"),
        Flag("--lr", value="0.1"),
        Flag("-v", value=True, is_switch=True),
    )


def test_a_function_tells_its_keywords(seam: FlagsSeam, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(
        data: str, hidden: int = 128, rate: float = 0.1, *, callback: object = None
    ) -> None: ...

    start(monkeypatch, "data")
    seam.see_keywords(inspect.signature(train), {"rate": 0.5})
    assert seam.all() == (
        Flag("keyword.hidden", value=128, takes="int"),
        Flag("keyword.rate", value=0.5, takes="float"),
    )
