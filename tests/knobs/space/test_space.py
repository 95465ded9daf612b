"""Search spaces: narrowed by the user, resolved for a machine and a program."""

from dataclasses import replace

import pytest

from autotune.errors import UsageError
from autotune.program.config import Config
from autotune.program.may_change import MayChange
from autotune.program.profile import RunLength
from tests.made import MACHINES, configs_of, make_hardware, make_loader, make_profile, make_space

HARDWARE = make_hardware()
PROFILE = make_profile()
SPACE = make_space(["workers", "prefetch_factor", "batch_size", "precision", "compile"])


def test_what_every_config_has_is_held_unless_the_user_says_otherwise() -> None:
    """Where it can act; configs that take turns would else find each other's memory."""
    name, (known, unknown) = (
        "keep_freed_memory",
        (make_profile(mmap_threshold=n) for n in (8 << 20, None)),
    )
    space = make_space(["workers"])
    assert space.resolve(HARDWARE, unknown).fixed == {}
    resolved = space.resolve(HARDWARE, known)
    assert resolved.baseline[name] is False
    assert resolved.start[name] is True
    assert {*resolved.domains} == {"workers"}
    assert space.fix({name: False}).resolve(HARDWARE, known).start[name] is False
    assert name in space.with_values({name: [True, False]}).resolve(HARDWARE, known).domains


BATCHES = make_space(["batch_size", "accumulation_steps"])


@pytest.mark.parametrize(("most", "largest"), [(None, 2048), (128, 128), (64, 64), (100_000, 8192)])
def test_the_samples_of_a_step_have_a_limit(most: int | None, largest: int) -> None:
    """By default 32 times the program's own 64, however many batches make a step."""
    space = replace(BATCHES, max_global_batch=most).resolve(HARDWARE, PROFILE)
    steps = [
        int(c["batch_size"]) * int(c["accumulation_steps"]) for c in configs_of(space, space.start)
    ]
    assert max(steps) == largest


def test_every_demanded_knob_that_cannot_act_is_named_with_its_reason() -> None:
    space = SPACE.tune(["pinning", "cudnn", "workers"])
    with pytest.raises(UsageError) as refusal:
        space.resolve(HARDWARE, PROFILE)
    message = str(refusal.value)
    assert "pinning: the model is on the CPU" in message
    assert "cudnn: the model is on the cpu device" in message
    assert "workers" not in message
    assert "Leave them out" in message


def test_a_level_says_what_is_searched_and_who_names_a_setting_has_decided() -> None:
    usual = make_space(["workers", "in_order", "precision", "batch_size"])
    named = usual.with_values({"in_order": [True, False]})
    nothing, rounding = {"workers"}, {"workers", "precision", "batch_size"}
    searched = {
        MayChange.NOTHING: nothing,
        MayChange.ROUNDING: rounding,
        MayChange.BATCH: {*rounding, "in_order"},
        MayChange.ANY: {*rounding, "in_order"},
    }
    for level, knobs in searched.items():
        resolved = usual.resolve(HARDWARE, PROFILE, level)
        assert resolved.domains.keys() == knobs, level
        assert resolved.defers_growth is (level is MayChange.ROUNDING)
        assert resolved.defers(OWN.replace(batch_size=128)) is resolved.defers_growth
    assert resolved.refused == {}
    assert "in_order" in named.resolve(HARDWARE, PROFILE, MayChange.ROUNDING).domains
    for wish in (named, usual.fix({"precision": "bf16"}), usual.tune(["batch_size"])):
        with pytest.raises(UsageError, match="only with --may-change "):
            wish.resolve(HARDWARE, PROFILE, MayChange.NOTHING)


OWN = BATCHES.resolve(HARDWARE, PROFILE).baseline
RESOLVED = SPACE.resolve(HARDWARE, PROFILE)
WITH_START = make_space([*SPACE.knobs, "flush_denormal"]).resolve(HARDWARE, PROFILE)


def test_only_restart_knobs_need_a_fresh_process() -> None:
    here, other = WITH_START.baseline, WITH_START.baseline.replace(flush_denormal=True)
    assert not WITH_START.needs_restart(here, here)
    live = here.replace(workers=2, precision="bf16", compile="default")
    assert not WITH_START.needs_restart(here, live)
    assert WITH_START.needs_restart(here, other)
    assert WITH_START.needs_restart(other, here)
    assert not WITH_START.needs_restart(other, other.replace(batch_size=256))


BY_STEPS = RunLength(where="--max-steps 200", steps=200)


def test_a_program_of_fixed_steps_tries_a_larger_batch_only_where_it_is_named() -> None:
    profile = make_profile(length=BY_STEPS, zero_grad_to_none=True)
    space = make_space(["batch_size", "accumulation_steps", "workers"])
    resolved = space.resolve(HARDWARE, profile)
    assert {*resolved.domains} == {"workers"}
    for knob in ("batch_size", "accumulation_steps"):
        assert BY_STEPS.where in resolved.refused[knob]
        assert "--tune" in resolved.refused[knob]
    named = space.tune(["batch_size"]).resolve(HARDWARE, profile)
    assert named.domains["batch_size"].values == (64, 128, 256, 512)
    fixed = space.fix({"batch_size": 256}).resolve(HARDWARE, profile)
    assert fixed.start["batch_size"] == 256


def test_a_space_is_narrowed_by_copy_to_what_the_user_asks_for() -> None:
    tuned = SPACE.tune(["precision", "threads"])
    assert tuned.knobs == {"precision": None, "threads": None}, "also one outside of the space"
    assert tuned.requested == {"precision", "threads"}
    own = make_space({"batch_size": (64, 128), "precision": None}).tune(["batch_size"])
    assert own.knobs == {"batch_size": (64, 128)}
    fixed = SPACE.fix({"precision": "bf16"}).fix({"workers": 2})
    assert fixed.fixed == {"precision": "bf16", "workers": 2}
    assert fixed.requested == fixed.fixed.keys()
    assert not {"precision", "workers"} & fixed.knobs.keys()
    given = SPACE.with_values({"batch_size": [96, 192, 96]})
    assert given.knobs["batch_size"] == (96, 192)
    assert given.requested == {"batch_size"}
    assert make_space(list(SPACE.knobs)) == SPACE
    held = make_space(["workers"], fixed={"precision": "bf16"})
    for asked in (held.tune(["precision"]), held.with_values({"precision": ["fp32", "bf16"]})):
        assert "precision" in asked.resolve(HARDWARE, PROFILE).domains


def test_a_kept_global_batch_is_cut_into_equal_accumulated_steps() -> None:
    space = BATCHES.keep_global_batch().resolve(HARDWARE, PROFILE)
    assert set(space.domains) == {"accumulation_steps"}
    batches = {c["accumulation_steps"]: c["batch_size"] for c in configs_of(space, space.start)}
    assert batches == {1: 64, 2: 32, 4: 16}
    assert "stays the same" in space.refused["batch_size"]
    by_steps = make_profile(length=BY_STEPS, zero_grad_to_none=True)
    assert BATCHES.keep_global_batch().resolve(HARDWARE, by_steps).domains == space.domains
    six = make_profile(loaders=(make_loader(batch_size=6),))
    space = BATCHES.keep_global_batch().resolve(HARDWARE, six)
    assert space.domains["accumulation_steps"].values == (1, 2)
    alone = SPACE.keep_global_batch().resolve(HARDWARE, PROFILE)
    assert {c["batch_size"] for c in configs_of(alone, alone.start)} == {64}
    with pytest.raises(UsageError, match="You named batch_size, but"):
        SPACE.tune(["batch_size"]).keep_global_batch()


def test_a_batch_beyond_the_limit_can_be_asked_for_by_value() -> None:
    space = BATCHES.with_values({"batch_size": [4096]}).resolve(HARDWARE, PROFILE)
    assert not space.conflicts(space.baseline.replace(batch_size=4096))
    assert space.conflicts(space.baseline.replace(batch_size=4096, accumulation_steps=2))


def test_all_unknown_knobs_and_values_are_named_with_their_option_and_the_nearest() -> None:
    with pytest.raises(UsageError) as refusal:
        SPACE.tune(["batchsize", "precision", "zzz"])
    message = str(refusal.value)
    assert "--tune: Unknown setting 'batchsize'. Did you mean 'batch_size'?" in message
    assert "--tune: Unknown setting 'zzz'. Settings: workers, pinning, " in message
    for typed, meant in (("num_worker", "workers"), ("pin_memory", "pinning")):
        with pytest.raises(UsageError, match=f"--set: Unknown.*Did you mean '{meant}'"):
            SPACE.with_values({typed: [2]})
    with pytest.raises(UsageError, match="--set: setting 'precision' takes fp32 or tf32 or medium"):
        SPACE.fix({"precision": "fp8"})


def test_one_value_holds_a_setting_and_several_are_candidates_whatever_the_name() -> None:
    flag, keyword = "--hidden", "keyword.width"
    given = SPACE.set(
        {
            "precision": "bf16",
            "workers": [0, 2],
            flag: ["8", "16"],
            "width": 4,
            "env:OMP_NUM_THREADS": ["1", "2"],
        },
        has_keywords=True,
    )
    assert given.fixed == {"precision": "bf16", keyword: 4}
    assert given.knobs["workers"] == (0, 2)
    assert given.knobs[flag] == ("8", "16")
    assert given.knobs["$OMP_NUM_THREADS"] == ("1", "2")
    assert "precision" not in given.knobs
    assert given.requested == {"precision", "workers", flag, keyword, "$OMP_NUM_THREADS"}
    again = given.set({"precision": ["fp32", "bf16"]})
    assert again.knobs["precision"] == ("fp32", "bf16")
    assert "precision" not in again.fixed
    for wrong, said in (
        ({"width": 4}, "--set: Unknown setting 'width'"),
        ({"precision": []}, "--set precision has no value"),
    ):
        with pytest.raises(UsageError, match=said):
            SPACE.set(wrong)


def test_a_resolved_space_offers_what_fits_and_says_why_the_rest_does_not() -> None:
    space = make_space(["workers", "pinning", "precision", "cudnn"], fixed={"attention": "flash"})
    resolved = space.resolve(HARDWARE, PROFILE)
    offered = {n: d.values for n, d in resolved.domains.items()}
    assert offered == {"workers": (0, 1, 2), "precision": ("fp32", "medium", "bf16")}
    assert set(resolved.refused) == {"pinning", "cudnn", "attention"}
    assert "on the CPU" in resolved.refused["pinning"]
    assert resolved.fixed == {}, "what a shipped space fixes is left out where it cannot act"
    assert resolved.baseline == Config({"workers": 0, "precision": "fp32"})
    profile = make_profile(loaders=(make_loader(num_workers=3, dataset_len=100),))
    resolved = SPACE.resolve(HARDWARE, profile)
    assert resolved.domains["workers"].values == (0, 1, 2, 3), "the program's value among them"
    reason = "batches of 128 cut 100 samples into fewer than 20 steps"
    assert resolved.refused["batch_size"] == reason, "a knob with one value is not searched"
    resolved = SPACE.fix({"precision": "bf16"}).resolve(HARDWARE, PROFILE)
    assert resolved.baseline["precision"] == "fp32"
    assert resolved.start == resolved.baseline.replace(precision="bf16")
    cuda = make_profile(device="cuda")
    with pytest.raises(UsageError, match=r"precision: bf16 needs compute capability 8\.0"):
        SPACE.fix({"precision": "bf16"}).resolve(MACHINES["V100"], cuda)


def test_a_knob_that_the_program_reads_itself_is_searched_in_fresh_processes() -> None:
    """It may hand the value to a loader of another library, which the seams never see."""
    for own in (0, 4):
        profile = make_profile(loaders=(), config_reads={"workers": own, "hidden": 128})
        resolved = SPACE.with_values({"workers": [0, 2, 4]}).resolve(HARDWARE, profile)
        assert resolved.baseline["workers"] == own
        assert resolved.domains["workers"].values == (0, 2, 4)
        assert resolved.restart == {"workers"}
        assert "hidden" not in resolved.baseline


def test_each_config_is_listed_once_and_those_that_differ_in_idle_knobs_are_one() -> None:
    deep = RESOLVED.baseline.replace(workers=0, prefetch_factor=8)
    assert RESOLVED.canonical(deep) == RESOLVED.baseline
    configs = configs_of(RESOLVED, RESOLVED.baseline)
    loading = 1 + 2 * 3  # no workers; one or two of them with each of three depths
    assert len(configs) == loading * 6 * 3 * 2
    assert RESOLVED.baseline in configs
    assert all(RESOLVED.canonical(config) == config for config in configs)
    for flushes in (False, True):
        config = WITH_START.baseline.replace(flush_denormal=flushes)
        assert {c["flush_denormal"] for c in configs_of(WITH_START, config)} == {flushes}
