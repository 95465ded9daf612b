"""The contract that every knob keeps, on every kind of machine and with every kind of program."""

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from autotune.knobs import Knob, Scope, registry
from autotune.knobs.base import Here
from autotune.knobs.torch_flags import ProcessSwitch
from autotune.machine.hardware import Hardware
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.may_change import MayChange
from autotune.program.profile import Profile, TorchSettings
from autotune.program.program import LaunchPlan
from tests.made import MACHINES, make_loader, make_profile

PROFILES = {
    "conv net on the CPU": make_profile(),
    "conv net on CUDA": make_profile(device="cuda"),
    "net without convolutions on CUDA": make_profile(device="cuda", conv2d_layers=0),
    "another device": make_profile(device="mps"),
    "no loader": make_profile(loaders=()),
    "two loaders": make_profile(loaders=(make_loader(), make_loader(ordinal=1))),
    "workers of its own": make_profile(
        loaders=(make_loader(num_workers=3, prefetch_factor=5, pin_memory=True),), device="cuda"
    ),
    "a batch sampler of its own": make_profile(
        loaders=(make_loader(has_batch_sampler=True, batch_size=None),)
    ),
    "whole batches from the dataset": make_profile(loaders=(make_loader(batch_size=None),)),
    "an iterable dataset": make_profile(loaders=(make_loader(iterable=True, dataset_len=None),)),
    "a tiny dataset": make_profile(loaders=(make_loader(dataset_len=70),)),
    "an odd batch": make_profile(loaders=(make_loader(batch_size=7, dataset_len=1001),)),
    "autocast of its own": make_profile(device="cuda", autocast="float16"),
    "compile of its own": make_profile(is_compiled=True),
    "channels_last and cudnn.benchmark of its own": make_profile(
        device="cuda", channels_last=True, cudnn="benchmark"
    ),
    "more threads than cores": make_profile(threads=64),
}
JUNK: tuple[Any, ...] = (
    None, "", "junk", "64", -1, 0.5, 1e9, [], [1], {"a": 1}, (), b"off", object(), float("nan"),
)  # fmt: skip
ACRONYM = re.compile(r"^(DataLoader|[A-Z]{2,})\b")

every_knob = pytest.mark.parametrize("knob", registry().values(), ids=registry().keys())


def everywhere() -> Iterator[tuple[str, Hardware, Profile]]:
    """Yield every machine with every program, and both by name."""
    for machine, hardware in MACHINES.items():
        for program, profile in PROFILES.items():
            yield f"{program}, {machine}", hardware, profile


def values_here(knob: Knob, hardware: Hardware, profile: Profile) -> tuple[KnobValue, ...]:
    """Return all values that a search can give the knob here, the program's own among them."""
    offer = knob.domain(Here(hardware, profile))
    if isinstance(offer, NotOffered):
        return ()
    return offer.including(knob.current(profile)).values


def is_clause(reason: str) -> bool:
    """Tell whether a reason can stand after a colon: no capital but an acronym's, no full stop."""
    is_lower = not reason[:1].isupper() or bool(ACRONYM.match(reason))
    return bool(reason.strip()) and reason == reason.strip() and is_lower and reason[-1] != "."


@every_knob
def test_a_knob_is_known_by_its_name_and_described_in_one_line(knob: Knob) -> None:
    assert type(registry()[knob.name]) is type(knob)
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", knob.name)
    assert re.fullmatch(r"\S.*\.", knob.summary)
    assert isinstance(knob.scope, Scope)
    assert bool(knob.choices) is (knob.value_type is str)
    assert knob.changes in MayChange


@every_knob
def test_a_knob_offers_values_that_are_read_back_or_a_reason_why_not(knob: Knob) -> None:
    plan = LaunchPlan(("python", "train.py"), "/somewhere", {"PATH": "/bin"})
    before = LaunchPlan(plan.argv, plan.cwd, dict(plan.env))
    for where, hardware, profile in everywhere():
        offer = knob.domain(Here(hardware, profile))
        if isinstance(offer, NotOffered):
            assert is_clause(offer.reason), where
            continue
        assert isinstance(offer, Domain), where
        assert all(type(v) is knob.value_type for v in offer.values), where
        for value in values_here(knob, hardware, profile):
            read = knob.parse(value)
            assert (type(read), read) == (type(value), value), where
            assert knob.launch(value, plan).env.items() >= plan.env.items(), where
            assert plan == before, "it is changed by copy"


@every_knob
def test_activity_and_conflicts_are_told_for_any_config(knob: Knob) -> None:
    for where, hardware, profile in everywhere():
        for config in neighbouring_configs(knob, hardware, profile):
            assert isinstance(knob.is_active(config), bool), where
            conflict = knob.conflict(config)
            assert conflict is None or conflict.endswith("."), where


@every_knob
def test_junk_is_refused_with_what_a_knob_takes_and_booleans_are_no_numbers(knob: Knob) -> None:
    for junk in JUNK:
        with pytest.raises(ValueError, match=r"^takes .*, not "):
            knob.parse(junk)
    wrong: tuple[object, ...] = (0, 1) if knob.value_type is bool else (True, False)
    for value in wrong:
        if knob.value_type is str and {False: "off", True: "on"}[bool(value)] in knob.choices:
            continue  # YAML 1.1 reads off and on as booleans
        with pytest.raises(ValueError, match="takes"):
            knob.parse(value)


def neighbouring_configs(knob: Knob, hardware: Hardware, profile: Profile) -> Iterator[Config]:
    """Yield the knob's values alone, and each beside every value of one other knob."""
    for value in values_here(knob, hardware, profile):
        yield Config({knob.name: value})
        for other in registry().values():
            for neighbour in values_here(other, hardware, profile):
                yield Config({other.name: neighbour, knob.name: value})


def test_the_profile_has_the_setting_of_every_process_switch() -> None:
    switches = {name for name, knob in registry().items() if isinstance(knob, ProcessSwitch)}
    assert switches
    assert switches <= {field.name for field in fields(TorchSettings)}
