"""Diagnosis: where the time goes decides what is tried first, within what the space offers."""

from dataclasses import replace
from itertools import product

import pytest

from autotune.knobs import registry
from autotune.knobs.space.space import SearchSpace
from autotune.machine.hardware import Hardware
from autotune.measurement.examination import Batches, Operators, StepBreakdown, StepParts
from autotune.program.profile import Profile
from autotune.tuning.choosing.diagnosis import Bottleneck, Diagnosis, diagnose
from tests.knobs.test_contract import PROFILES
from tests.made import (
    MACHINES,
    make_measurement,
    make_space,
    profile_with,
)

EVERYTHING = make_space(list(registry()))


def diagnosed(
    wait_share: float,
    hardware: Hardware = MACHINES["two cores"],
    profile: Profile = PROFILES["conv net on the CPU"],
    space: SearchSpace = EVERYTHING,
    breakdown: StepBreakdown = StepBreakdown(),  # noqa: B008 - a frozen value
) -> Diagnosis:
    measurement = make_measurement(wait_share=wait_share)
    return diagnose(profile, measurement, space.resolve(hardware, profile), hardware, breakdown)


def test_the_share_of_waiting_decides_the_verdict_and_is_its_evidence() -> None:
    for verdict, shares in (
        (Bottleneck.COMPUTE_BOUND, (0.0, 0.09)),
        (Bottleneck.PARTLY, (0.1, 0.24)),
        (Bottleneck.INPUT_BOUND, (0.3, 0.95)),
    ):
        for wait_share in shares:
            diagnosis = diagnosed(wait_share)
            assert diagnosis.verdict is verdict
            assert f"{100 * wait_share:.0f} % of the time" in diagnosis.evidence


def test_small_operators_are_told_from_computing_and_from_waiting() -> None:
    parts = StepParts(0.0, 0.0, 0.095, 0.005, 0.0, 0.0, 10)
    for calls, wait_share, verdict, short in (
        (200, 0.0, Bottleneck.COMPUTE_BOUND, "computing takes 95 % of a step"),
        (2000, 0.0, Bottleneck.LAUNCH_BOUND, "calling 2,000 small operators takes 60 % of a step"),
        (2000, 0.7, Bottleneck.INPUT_BOUND, "waits for data 70 % of the time"),
    ):
        operators = Operators(calls, 3e-5, 0.1)
        found = diagnosed(wait_share, breakdown=StepBreakdown(parts, operators=operators))
        assert (found.verdict, found.short) == (verdict, short)
        assert found.evidence.lower().removeprefix("it ").startswith(short)


def test_on_a_gpu_only_a_host_that_is_not_ahead_is_bound_by_launching() -> (
    None
):  # not seen on a GPU
    profile, hardware = PROFILES["conv net on CUDA"], MACHINES["A100"]
    for launch_s, verdict in ((0.03, Bottleneck.COMPUTE_BOUND), (0.09, Bottleneck.LAUNCH_BOUND)):
        parts = StepParts(0.0, 0.0, 0.095, 0.005, 0.0, 0.0, 10, launch_s)
        breakdown = StepBreakdown(parts, operators=Operators(2000, 3e-5, 0.1))
        assert diagnosed(0.0, hardware, profile, breakdown=breakdown).verdict is verdict


def test_what_faster_loading_can_give_is_said_and_that_it_comes_first() -> None:
    throughput = make_measurement().throughput
    breakdown = StepBreakdown(synthetic_data_throughput=throughput.times(9.0))
    said = diagnosed(0.55, breakdown=breakdown).evidence
    assert said.startswith(
        "It waits for data 55 % of the time. "
        "Faster loading can give at most 2.2x; so that is tried first"
    )
    assert "tried first" not in diagnosed(0.1, breakdown=breakdown).evidence


def test_shapes_that_change_are_evidence_and_stand_beside_what_times_each_anew() -> None:
    profile, hardware = PROFILES["conv net on CUDA"], MACHINES["A100"]
    for shapes in (30, 1):
        breakdown = StepBreakdown(batches=Batches(90, shapes))
        found = diagnosed(0.0, hardware, profile, breakdown=breakdown)
        assert found.shapes == shapes
        assert ("Its batches have 30 shapes (90 were seen)" in found.evidence) is (shapes > 1)


def test_a_host_that_waits_while_its_gpu_computes_is_not_input_bound() -> None:
    profile, hardware = PROFILES["conv net on CUDA"], MACHINES["A100"]
    for idle_s, verdict in ((0.001, Bottleneck.COMPUTE_BOUND), (0.08, Bottleneck.INPUT_BOUND)):
        split = StepParts(idle_s, 0.0, 0.1 - idle_s, 0.0, 0.0, 0.0, steps=9, launch_s=0.01)
        diagnosis = diagnose(
            profile,
            make_measurement(wait_share=0.8),
            EVERYTHING.resolve(hardware, profile),
            hardware,
            StepBreakdown(split),
        )
        assert diagnosis.verdict is verdict
        assert f"{1000 * idle_s:.0f} % of the time" in diagnosis.evidence


def test_workers_come_where_the_program_waits_and_share_the_cores_with_the_threads() -> None:
    for wait_share in (0.6, 0.1):
        all_in = diagnosed(wait_share).all_in
        assert (all_in["workers"], all_in["threads"]) == (1, 1)
    assert not diagnosed(0.0).all_in.keys() & {"workers", "threads"}


def test_beside_gpus_the_first_try_leaves_each_rank_a_core_to_launch_kernels() -> None:
    for ranks, workers in ((1, 12), (2, 4), (8, 1)):
        profile = profile_with(PROFILES["conv net on CUDA"], world_size=ranks)
        assert diagnosed(0.6, MACHINES["H100"], profile).all_in["workers"] == workers


def test_a_larger_batch_is_sure_to_help_up_to_a_point_which_is_lower_where_memory_is() -> None:
    space = make_space({"batch_size": (16, 64, 128, 256, 512)})
    assert diagnosed(0.0, space=space).all_in == {"batch_size": 256}
    cuda = PROFILES["conv net on CUDA"]
    assert diagnosed(0.0, MACHINES["A100"], cuda, space).all_in == {"batch_size": 128}
    none = make_space({"batch_size": (16, 64)})
    assert diagnosed(0.0, space=none).all_in == {}


def test_reduced_precision_is_sure_to_help_only_where_the_hardware_computes_in_it() -> None:
    space = make_space(["precision", "memory_format"])
    plain = replace(MACHINES["two cores"], cpu_flags=())
    able = replace(MACHINES["two cores"], cpu_flags=("avx512_bf16",))
    assert diagnosed(0.0, plain, space=space).all_in == {"memory_format": "channels_last"}
    assert diagnosed(0.0, able, space=space).all_in == {
        "memory_format": "channels_last",
        "precision": "bf16",
    }


@pytest.mark.parametrize("hardware", MACHINES.values(), ids=MACHINES.keys())
def test_all_stays_within_the_space_and_changes_something(hardware: Hardware) -> None:
    for (name, profile), wait_share in product(PROFILES.items(), (0.0, 0.1, 0.6)):
        space = EVERYTHING.resolve(hardware, profile)
        diagnosis = diagnosed(wait_share, hardware, profile)
        for changes in (diagnosis.all_in, *(move.changes for move in diagnosis.devices)):
            for knob, value in changes.items():
                assert value in space.domains[knob].values, (name, wait_share)
        assert all(move.why for move in diagnosis.devices), (name, wait_share)
        unchanged = {k for k, v in diagnosis.all_in.items() if space.baseline[k] == v}
        assert unchanged <= {"workers", "threads"}, (name, wait_share)
