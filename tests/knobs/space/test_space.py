"""Search spaces: narrowed by the user, resolved for a machine and a program."""

from __future__ import annotations

import pytest

from autotune.errors import UsageError
from autotune.knobs.space.space import SearchSpace
from autotune.program.config import Config
from autotune.program.profile import RunLength
from tests.made import A100, MACHINES, make_hardware, make_loader, make_profile, make_space

HARDWARE = make_hardware()
PROFILE = make_profile()
SPACE = make_space(["workers", "prefetch_factor", "batch_size", "precision", "compile"])


# --- what the user asks for -----------------------------------------------------------------------


def test_tuning_some_knobs_leaves_the_others_out_and_demands_them() -> None:
    space = SPACE.tune(["precision", "batch_size"])
    assert list(space.knobs) == ["precision", "batch_size"]
    assert space.requested == {"precision", "batch_size"}


def test_a_tuned_knob_keeps_the_values_of_its_space() -> None:
    space = make_space({"batch_size": (64, 128), "precision": None}).tune(["batch_size"])
    assert space.knobs == {"batch_size": (64, 128)}


def test_a_knob_outside_the_space_can_be_tuned() -> None:
    assert SPACE.tune(["threads"]).knobs == {"threads": None}


def test_fixed_knobs_are_held_and_no_longer_searched() -> None:
    space = SPACE.fix({"precision": "bf16", "workers": 2})
    assert space.fixed == {"precision": "bf16", "workers": 2}
    assert "precision" not in space.knobs
    assert "workers" not in space.knobs
    assert space.requested == {"precision", "workers"}


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


def test_fixing_twice_keeps_both() -> None:
    space = SPACE.fix({"precision": "bf16"}).fix({"workers": 2})
    assert space.fixed == {"precision": "bf16", "workers": 2}


@pytest.mark.parametrize("ask", ["--tune", "--values"])
def test_a_knob_that_the_space_fixes_is_searched_when_the_user_asks_for_it(ask: str) -> None:
    space = make_space(["workers"], fixed={"precision": "bf16"})
    asked = (
        space.tune(["precision"])
        if ask == "--tune"
        else space.with_values({"precision": ["fp32", "bf16"]})
    )
    assert "precision" in asked.resolve(HARDWARE, PROFILE).domains


def test_own_values_replace_those_that_a_knob_would_offer() -> None:
    space = SPACE.with_values({"batch_size": [96, 192, 96]})
    assert space.knobs["batch_size"] == (96, 192)
    assert "precision" in space.knobs
    assert space.requested == {"batch_size"}


def test_narrowing_leaves_the_first_space_as_it_was() -> None:
    SPACE.tune(["precision"]).fix({"workers": 2}).with_values({"batch_size": [96]})
    assert make_space(list(SPACE.knobs)) == SPACE


# --- the global batch -----------------------------------------------------------------------------

BATCHES = make_space(["batch_size", "accumulation_steps"])


def test_a_kept_global_batch_is_cut_into_the_accumulated_steps() -> None:
    space = BATCHES.keep_global_batch().resolve(HARDWARE, PROFILE)
    assert set(space.domains) == {"accumulation_steps"}
    batches = {c["accumulation_steps"]: c["batch_size"] for c in space.configs(space.start)}
    assert batches == {1: 64, 2: 32, 4: 16}
    assert "stays the same" in space.refused["batch_size"]


def test_a_batch_is_cut_into_equal_parts_only() -> None:
    profile = make_profile(loaders=(make_loader(batch_size=6),))
    space = BATCHES.keep_global_batch().resolve(HARDWARE, profile)
    assert space.domains["accumulation_steps"].values == (1, 2)


def test_without_accumulation_a_kept_batch_is_the_programs_own() -> None:
    space = SPACE.keep_global_batch().resolve(HARDWARE, PROFILE)
    assert "batch_size" not in space.domains
    assert {c["batch_size"] for c in space.configs(space.start)} == {64}


def test_a_batch_size_that_was_asked_for_cannot_be_kept() -> None:
    with pytest.raises(UsageError, match="You named batch_size, but"):
        SPACE.tune(["batch_size"]).keep_global_batch()


@pytest.mark.parametrize(("most", "largest"), [(None, 2048), (128, 128), (64, 64), (100_000, 8192)])
def test_the_samples_of_a_step_have_a_limit(most: int | None, largest: int) -> None:
    """By default 32 times the program's own 64, however many batches make a step."""
    space = BATCHES.up_to_global_batch(most).resolve(HARDWARE, PROFILE)
    steps = [
        int(c["batch_size"]) * int(c["accumulation_steps"]) for c in space.configs(space.start)
    ]
    assert max(steps) == largest


def test_a_batch_beyond_the_limit_can_be_asked_for_by_value() -> None:
    space = BATCHES.with_values({"batch_size": [4096]}).resolve(HARDWARE, PROFILE)
    assert not space.conflicts(space.baseline.replace(batch_size=4096))
    assert space.conflicts(space.baseline.replace(batch_size=4096, accumulation_steps=2))


def test_a_limit_is_a_number_of_samples() -> None:
    with pytest.raises(UsageError, match="takes a number of samples, not 0"):
        SPACE.up_to_global_batch(0)


# --- names ----------------------------------------------------------------------------------------


def test_all_unknown_knobs_are_named_at_once_with_the_nearest() -> None:
    with pytest.raises(UsageError) as refusal:
        SPACE.tune(["batchsize", "precision", "presicion", "zzz"])
    message = str(refusal.value)
    assert "Unknown knob 'batchsize' in --tune. Did you mean 'batch_size'?" in message
    assert "Unknown knob 'presicion' in --tune. Did you mean 'precision'?" in message
    assert "Unknown knob 'zzz' in --tune.\n" in message
    assert "autotune knobs" in message


def test_fix_and_values_name_their_own_option() -> None:
    with pytest.raises(UsageError, match=r"in --fix\. Did you mean 'workers'"):
        SPACE.fix({"num_worker": 2})
    with pytest.raises(UsageError, match=r"in --values\. Did you mean 'workers'"):
        SPACE.with_values({"num_worker": [2]})
    with pytest.raises(UsageError, match="--fix: knob 'precision' takes fp32 or tf32 or medium"):
        SPACE.fix({"precision": "fp8"})
    with pytest.raises(UsageError, match="--values: knob 'batch_size' takes a whole number"):
        SPACE.with_values({"batch_size": [64, "large"]})


# --- resolved -------------------------------------------------------------------------------------


def test_a_resolved_space_offers_what_fits_and_says_why_the_rest_does_not() -> None:
    space = make_space(["workers", "pinning", "precision", "cudnn"])
    resolved = space.resolve(HARDWARE, PROFILE)
    assert {n: d.values for n, d in resolved.domains.items()} == {
        "workers": (0, 1, 2),
        "precision": ("fp32", "medium", "bf16"),
    }
    assert set(resolved.refused) == {"pinning", "cudnn"}
    assert "on the CPU" in resolved.refused["pinning"]
    assert resolved.baseline == Config({"workers": 0, "precision": "fp32"})


def test_the_programs_own_value_is_among_the_candidates() -> None:
    profile = make_profile(loaders=(make_loader(num_workers=3, prefetch_factor=2),))
    resolved = SPACE.with_values({"batch_size": [128, 256]}).resolve(HARDWARE, profile)
    assert resolved.domains["workers"].values == (0, 1, 2, 3)
    assert resolved.domains["batch_size"].values == (64, 128, 256)


def test_a_knob_with_one_value_is_not_searched() -> None:
    profile = make_profile(loaders=(make_loader(dataset_len=100),))
    resolved = SPACE.resolve(HARDWARE, profile)
    assert "batch_size" not in resolved.domains
    reason = "batches of 128 cut 100 samples into fewer than 20 steps"
    assert resolved.refused["batch_size"] == reason


def test_every_demanded_knob_that_cannot_act_is_named_with_its_reason() -> None:
    space = SPACE.tune(["pinning", "cudnn", "workers"])
    with pytest.raises(UsageError) as refusal:
        space.resolve(HARDWARE, PROFILE)
    message = str(refusal.value)
    assert "pinning: the model is on the CPU" in message
    assert "cudnn: the model is on the cpu device" in message
    assert "workers" not in message
    assert "Leave them out" in message


def test_a_fixed_value_that_this_machine_cannot_run_is_an_error() -> None:
    cuda = make_profile(device="cuda")
    with pytest.raises(UsageError, match=r"precision: bf16 needs compute capability 8\.0"):
        SPACE.fix({"precision": "bf16"}).resolve(MACHINES["V100"], cuda)


def test_a_fixed_value_of_a_shipped_space_that_cannot_act_is_refused_and_left_out() -> None:
    space = make_space(["workers"], fixed={"pinning": "blocking"})
    resolved = space.resolve(HARDWARE, PROFILE)
    assert resolved.fixed == {}
    assert "pinning" in resolved.refused


def test_the_search_starts_at_the_baseline_with_the_fixed_values() -> None:
    resolved = SPACE.fix({"precision": "bf16"}).resolve(HARDWARE, PROFILE)
    assert resolved.baseline["precision"] == "fp32"
    assert resolved.start == resolved.baseline.replace(precision="bf16")
    assert "precision" not in resolved.domains


def test_a_program_without_a_loader_can_still_be_searched() -> None:
    resolved = SPACE.resolve(HARDWARE, make_profile(loaders=()))
    assert set(resolved.domains) == {"precision", "compile"}


@pytest.mark.parametrize("own", [0, 4])
def test_a_knob_that_the_program_reads_itself_is_searched_from_the_value_it_got(own: int) -> None:
    """It may hand the value to a loader of another library, which the seams never see."""
    profile = make_profile(loaders=(), config_reads={"workers": own})
    resolved = SPACE.with_values({"workers": [0, 2, 4]}).resolve(HARDWARE, profile)
    assert resolved.baseline["workers"] == own
    assert resolved.domains["workers"].values == (0, 2, 4)


def test_a_knob_that_the_program_reads_itself_needs_a_fresh_process() -> None:
    profile = make_profile(config_reads={"batch_size": 64, "hidden": 128})
    resolved = SPACE.resolve(HARDWARE, profile)
    assert resolved.restart == {"batch_size"}
    assert "hidden" not in resolved.baseline


# --- configs --------------------------------------------------------------------------------------

RESOLVED = SPACE.resolve(HARDWARE, PROFILE)
WITH_START = make_space([*SPACE.knobs, "interop_threads"]).resolve(HARDWARE, PROFILE)


def test_configs_that_differ_in_idle_knobs_only_are_one() -> None:
    deep = RESOLVED.baseline.replace(workers=0, prefetch_factor=8)
    assert RESOLVED.canonical(deep) == RESOLVED.baseline
    working = RESOLVED.baseline.replace(workers=2, prefetch_factor=8)
    assert RESOLVED.canonical(working) == working


def test_a_canonical_config_stays_as_it_is() -> None:
    for config in RESOLVED.configs(RESOLVED.baseline):
        assert RESOLVED.canonical(config) == config


def test_only_restart_knobs_need_a_fresh_process() -> None:
    here, other = WITH_START.baseline, WITH_START.baseline.replace(interop_threads=1)
    assert not WITH_START.needs_restart(here, here)
    live = here.replace(workers=2, precision="bf16", compile="default")
    assert not WITH_START.needs_restart(here, live)
    assert WITH_START.needs_restart(here, other)
    assert WITH_START.needs_restart(other, here)
    assert not WITH_START.needs_restart(other, other.replace(batch_size=256))


def test_all_live_configs_are_listed_once_and_idle_knobs_do_not_multiply_them() -> None:
    configs = list(RESOLVED.configs(RESOLVED.baseline))
    loading = 1 + 2 * 3  # no workers; one or two of them with each of three depths
    assert len(configs) == loading * 6 * 3 * 2
    assert len(set(configs)) == len(configs)
    assert RESOLVED.baseline in configs


def test_configs_are_listed_with_the_restart_knobs_of_the_given_one() -> None:
    for threads in (1, 2):
        config = WITH_START.baseline.replace(interop_threads=threads)
        assert {c["interop_threads"] for c in WITH_START.configs(config)} == {threads}


def test_the_size_counts_every_combination() -> None:
    assert RESOLVED.size == 3 * 3 * 6 * 3 * 2


def test_no_shipped_knob_conflicts_with_the_baseline() -> None:
    everything = SearchSpace("all", dict.fromkeys(SPACE.knobs))
    cuda = make_profile(device="cuda")
    resolved = everything.resolve(make_hardware(gpus=(A100,)), cuda)
    assert resolved.conflicts(resolved.baseline) == []


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


def test_a_program_of_fixed_steps_may_share_out_its_own_batch() -> None:
    profile = make_profile(length=BY_STEPS, zero_grad_to_none=True)
    space = make_space(["accumulation_steps"]).keep_global_batch().resolve(HARDWARE, profile)
    assert space.domains["accumulation_steps"].values == (1, 2, 4)
    assert space.baseline["batch_size"] == 64
