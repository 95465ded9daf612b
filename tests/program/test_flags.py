"""Flags of the program's own: into its arguments, and what knobs they mean."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.inside.seams.trainers import TrainersSeam
from autotune.knobs import launch_plan_for, registry
from autotune.knobs.space.space import SearchSpace
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain
from autotune.program.flags import AS_WRITTEN, Flag, find
from autotune.program.profile import OptimizerFacts, RunLength, told_by
from autotune.program.program import LaunchPlan
from tests.made import make_hardware, make_profile

HIDDEN = Flag("--hidden", ("-H",), 128, "int")
AMP = Flag("--amp", (), True, "bool", is_switch=True, negation="--no-amp")
MAYBE = Flag("--maybe", (), True, "bool", has_optional_value=True)
KEYWORD = Flag("keyword.hidden", value=128, takes="int")
FAST = Flag("--fast", ("-f",), False, "bool", is_switch=True)


@pytest.mark.parametrize(
    ("flag", "before", "value", "after"),
    [
        (HIDDEN, "", "256", "--hidden=256"),
        (HIDDEN, "--lr 1 --hidden 64 data", "256", "--lr 1 --hidden 256 data"),
        (HIDDEN, "--hidden=64 --lr 1", "256", "--hidden=256 --lr 1"),
        (HIDDEN, "-H 64 data", "256", "--hidden=256 data"),
        (HIDDEN, "-v -- --hidden", "256", "-v --hidden=256 -- --hidden"),
        (HIDDEN, "--hidden-layers 3", "256", "--hidden-layers 3 --hidden=256"),
        (HIDDEN, "--hidden 64", AS_WRITTEN, "--hidden 64"),
        (Flag("-bs"), "-bs 32 x", "64", "-bs 64 x"),
        (MAYBE, "--maybe --bf16", "false", "--maybe false --bf16"),
        (AMP, "--no-amp x", "true", "--amp x"),
        (AMP, "--amp x", "false", "--no-amp x"),
        (FAST, "--fast x", "false", "x"),
        (FAST, "x", "true", "x --fast"),
    ],
)
def test_a_flag_takes_the_place_of_its_old(flag: Flag, before: str, value: str, after: str) -> None:
    assert " ".join(flag.into(before.split(" ") if before else [], value)) == after


def test_a_flag_is_found_by_any_of_its_spellings() -> None:
    assert find([AMP, HIDDEN], "-H") is HIDDEN
    assert find([AMP, HIDDEN], "--hid") is None
    assert Flag("--Batch-Size", ("-b",)).words == {"batch_size", "b"}


@pytest.mark.parametrize(
    ("name", "values", "flags", "offered"),
    [
        ("--hidden", ["256", "512"], (HIDDEN,), ("128", "256", "512")),
        ("--hidden", ["256"], (), (AS_WRITTEN, "256")),  # the program hides its flags
        ("keyword.hidden", [256, 512], (KEYWORD,), (128, 256, 512)),
        ("$KMP_BLOCKTIME", [0], (), ("200", "0")),
        ("$NOT_SET_AT_ALL", ["x"], (), (AS_WRITTEN, "x")),
    ],
)
def test_the_users_values_join_the_programs_own(
    name: str,
    values: list[KnobValue],
    flags: tuple[Flag, ...],
    offered: tuple[KnobValue, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KMP_BLOCKTIME", "200")
    space = SearchSpace("own", {}).with_values({name: values})
    resolved = space.resolve(make_hardware(), make_profile(flags=flags))
    assert resolved.domains[name] == Domain(offered)
    assert resolved.baseline[name] == offered[0]
    assert resolved.restart == {name}


def test_what_the_program_would_not_take_is_refused() -> None:
    mode = Flag("--mode", (), "quick", "str", ("quick", "best"))
    profile = make_profile(flags=(HIDDEN, AMP, mode))
    for name, value, said in (
        ("--hiden", "256", "Did you mean '--hidden'?"),
        ("--hidden", "big", "takes int values, not big"),
        ("--amp", "maybe", "true or false, not maybe"),
        ("--mode", "slow", "takes quick or best, not slow"),
    ):
        with pytest.raises(UsageError, match=re.escape(said)):
            SearchSpace("own", {}).with_values({name: [value]}).resolve(make_hardware(), profile)
    for name in ("-", "--", "$", "keyword.", "keyword.a b", "hidden"):
        assert name not in registry()


WRITTEN: dict[str, KnobValue] = {"--hidden": "128", "keyword.depth": 2, "$A": AS_WRITTEN}


def applied(flags: dict[str, Flag], changes: dict[str, KnobValue]) -> AppliedConfig:
    base = AppliedConfig.as_written(Config(WRITTEN), make_profile(), flags=flags)
    return replace(base, config=base.baseline.replace(**changes))


def test_changes_reach_arguments_keywords_and_environment() -> None:
    flags = {"--hidden": HIDDEN, "keyword.depth": Flag("keyword.depth", value=2)}
    changed = applied(flags, {"--hidden": "256", "keyword.depth": 3, "$A": "1"})
    plan = launch_plan_for(changed, LaunchPlan((), "/", args=("--hidden", "128")))
    assert plan.args == ("--hidden", "256")
    assert plan.keywords == {"depth": 3}
    assert plan.env == {"A": "1"}
    unchanged = launch_plan_for(applied(flags, {}), LaunchPlan((), "/", args=("x",)))
    assert unchanged == LaunchPlan((), "/", args=("x",))


def test_a_flag_of_a_function_gets_the_type_that_it_has() -> None:
    knobs: dict[str, KnobValue] = {"batch_size": 64, "compile": "off"}
    flags = {
        "batch_size": Flag("keyword.batch_size", value=32, takes="int"),
        "compile": Flag("keyword.compile", value=True, takes="bool"),
    }
    base = AppliedConfig.as_written(
        Config({"batch_size": 32, "compile": "default"}), make_profile(), flags=flags
    )
    plan = launch_plan_for(replace(base, config=Config(knobs)), LaunchPlan((), "/"))
    assert plan.keywords == {"batch_size": 64, "compile": False}


# --- flags that mean a knob -----------------------------------------------------------------------

BATCH = Flag("--batch-size", ("-b",), 12, "int")
ACCUMULATE = Flag("--gradient_accumulation_steps", (), 4, "int")
DTYPE = Flag("--dtype", (), "float32", "str", ("float32", "bfloat16"))
COMPILE = Flag("--compile", (), False, "bool", is_switch=True)
CHECKPOINT = Flag("--gradient-checkpointing", (), False, "bool")
WORKERS = Flag("--workers", ("-j",), 0, "int")


@pytest.mark.parametrize(
    ("knob", "flag", "values", "last"),
    [
        ("batch_size", BATCH, (12, 24, 48, 96), "--batch-size=96"),
        ("accumulation_steps", ACCUMULATE, (1, 2, 4, 8), "--gradient_accumulation_steps=8"),
        ("precision", DTYPE, ("fp32", "bf16"), "--dtype=bfloat16"),
        ("compile", COMPILE, ("off", "default"), "--compile"),
        ("activation_checkpointing", CHECKPOINT, ("off", "all"), "--gradient-checkpointing=true"),
        ("workers", WORKERS, (0, 1, 2, 4), "--workers=4"),
    ],
)
def test_a_flag_stands_in_where_the_seams_cannot_reach(
    knob: str, flag: Flag, values: tuple[KnobValue, ...], last: str
) -> None:
    profile = make_profile(
        loaders=(),
        flags=(HIDDEN, flag),
        is_compiled=True,
        repeated_blocks=0,
        weights_dtype="bfloat16",
    )
    space = SearchSpace("auto", {knob: None})
    hardware = make_hardware(cpu_quota=4)
    assert knob not in space.resolve(hardware, profile).flags
    resolved = replace(space, uses_flags=True).resolve(hardware, profile)
    assert resolved.domains[knob].values == values
    assert resolved.flags == {knob: flag}
    assert knob in resolved.restart
    base = AppliedConfig.as_written(resolved.baseline, profile, flags=resolved.flags)
    moved = replace(base, config=resolved.baseline.replace(**{knob: values[-1]}))
    assert launch_plan_for(moved, LaunchPlan((), "/")).args == (last,)


def test_a_flag_of_the_batch_is_used_unasked_where_the_rate_can_follow_it() -> None:
    """By its square root, which does not depend on whether the loss is a sum."""
    adam = OptimizerFacts("AdamW", ("AdamW",), (0.001,))
    sgd = OptimizerFacts("SGD", ("SGD",), (0.1,))
    space = SearchSpace("default", {"batch_size": None})
    for changes, is_used in (
        ({"optimizers": (adam,)}, True),
        ({"optimizers": (sgd,)}, False),
        ({"optimizers": (adam,), "length": RunLength(steps=100, where="--max-steps 100")}, False),
        ({"optimizers": (adam,), "steps_by_hand": "train.py:9"}, False),
    ):
        profile = make_profile(loaders=(), flags=(BATCH,), **changes)
        resolved = space.resolve(make_hardware(), profile)
        assert ("batch_size" in resolved.flags) is is_used, changes
        if is_used:
            assert resolved.domains["batch_size"].values == (12, 24, 48, 96)
            assert not resolved.asked, "it is tried if it promises enough"


def test_a_flag_tells_the_epochs_or_the_steps_and_nothing_else_does() -> None:
    steps, epochs = Flag("--max-steps", value=200), Flag("--num_epochs", value="30")
    assert told_by([epochs, steps]) == RunLength(where="--max-steps 200", steps=200)
    assert told_by([epochs]) == RunLength(30, "--num_epochs 30")
    assert str(told_by([epochs])) == "30 epochs (--num_epochs 30)"
    assert told_by([epochs]).bounded_by_steps == ""
    # none given, as many as the data have, and the steps of a roll-out
    others = [Flag("--epochs"), Flag("--max_steps", value=-1), Flag("--n-steps", value=128)]
    assert told_by(others) == RunLength()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"max_epochs": 5}, RunLength(5.0, "max_epochs=5 of its Trainer")),
        ({"max_epochs": -1}, RunLength(None, "max_epochs=-1 of its Trainer")),
        (
            {"max_epochs": -1, "max_steps": 70},
            RunLength(None, "max_steps=70 of its Trainer", 70.0),
        ),
        # whichever ends first
        ({"max_epochs": 5, "max_steps": 70}, RunLength(None, "max_steps=70 of its Trainer")),
    ],
)
def test_a_trainer_tells_epochs_or_steps(arguments: dict[str, Any], expected: RunLength) -> None:
    class Trainer(SimpleNamespace):
        __hash__ = object.__hash__  # type: ignore[assignment]

    seam = TrainersSeam(endless=True)
    trainer = Trainer(**{"accumulate_grad_batches": 1, "max_steps": -1, **arguments})
    seam._begins(trainer, "lightning")
    assert seam.length == expected
