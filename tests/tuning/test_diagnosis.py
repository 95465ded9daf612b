"""Diagnosis: where the time goes decides what is tried first, and only what the space offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from autotune.knobs import registry
from autotune.knobs.space.space import SearchSpace
from autotune.machine.hardware import Hardware
from autotune.program.config import KnobValue
from autotune.program.profile import Profile
from autotune.tuning.diagnosis import Bottleneck, Diagnosis, Family, diagnose
from tests.made import MACHINES, make_loader, make_measurement, make_profile, make_space

EVERYTHING = make_space(list(registry()))
PROGRAMS = {
    "conv net on the CPU": make_profile(),
    "net without convolutions on the CPU": make_profile(conv2d_layers=0),
    "conv net on CUDA": make_profile(device="cuda"),
    "no loader": make_profile(loaders=()),
    "two loaders": make_profile(loaders=(make_loader(), make_loader(ordinal=1))),
    "many workers of its own": make_profile(loaders=(make_loader(num_workers=16),)),
}


def diagnosed(
    wait_share: float,
    hardware: Hardware = MACHINES["two cores"],
    profile: Profile = PROGRAMS["conv net on the CPU"],
    space: SearchSpace = EVERYTHING,
) -> Diagnosis:
    measurement = make_measurement(wait_share=wait_share)
    return diagnose(profile, measurement, space.resolve(hardware, profile), hardware)


def families(diagnosis: Diagnosis) -> list[Family]:
    """Return the families in the order of their first move."""
    return list(dict.fromkeys(move.family for move in diagnosis.moves))


def changes(diagnosis: Diagnosis) -> list[Mapping[str, KnobValue]]:
    return [dict(move.changes) for move in diagnosis.moves]


@pytest.mark.parametrize(
    ("wait_share", "verdict"),
    [
        (0.0, Bottleneck.COMPUTE_BOUND),
        (0.02, Bottleneck.COMPUTE_BOUND),
        (0.1, Bottleneck.MIXED),
        (0.24, Bottleneck.MIXED),
        (0.3, Bottleneck.INPUT_BOUND),
        (0.95, Bottleneck.INPUT_BOUND),
    ],
)
def test_the_share_of_waiting_decides_the_verdict_and_is_its_evidence(
    wait_share: float, verdict: Bottleneck
) -> None:
    diagnosis = diagnosed(wait_share)
    assert diagnosis.verdict is verdict
    assert f"{wait_share:.0%}" in diagnosis.evidence


def test_a_program_without_a_loader_is_never_input_bound() -> None:
    diagnosis = diagnosed(0.9, profile=PROGRAMS["no loader"])
    assert diagnosis.verdict is Bottleneck.COMPUTE_BOUND
    assert "without a DataLoader" in diagnosis.evidence
    assert Family.LOADING not in families(diagnosis)


def test_loading_is_tried_first_where_the_program_waits_for_it_and_last_elsewhere() -> None:
    assert families(diagnosed(0.6)) == [Family.LOADING, Family.COMPUTE, Family.BATCH]
    assert families(diagnosed(0.1)) == [Family.COMPUTE, Family.BATCH, Family.LOADING]
    assert families(diagnosed(0.0)) == [Family.COMPUTE, Family.BATCH, Family.LOADING]


def test_workers_and_threads_that_share_few_cores_move_together() -> None:
    found = changes(diagnosed(0.6))
    assert {"num_workers": 2, "num_threads": 1} in found
    assert {"num_workers": 1, "num_threads": 1} in found


def test_workers_beside_a_gpu_move_with_pinned_memory() -> None:
    found = changes(diagnosed(0.6, MACHINES["A100"], PROGRAMS["conv net on CUDA"]))
    assert {"num_workers": 12, "pin_memory": True} in found
    assert not any("num_threads" in move for move in found)


def test_larger_batches_are_tried_and_smaller_ones_are_not() -> None:
    space = make_space({"batch_size": (16, 64, 128, 256, 512)})
    found = changes(diagnosed(0.0, space=space))
    assert sorted(int(move["batch_size"]) for move in found) == [128, 256, 512]


def test_the_largest_batch_is_tried_with_blocks_that_keep_nothing_as_well() -> None:
    space = make_space({"batch_size": (64, 512), "activation_checkpointing": ("off", "all")})
    profile = make_profile(repeated_blocks=8)
    found = changes(diagnosed(0.0, profile=profile, space=space))
    assert {"batch_size": 512, "activation_checkpointing": "all"} in found


@pytest.mark.parametrize("wait_share", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("profile", PROGRAMS.values(), ids=PROGRAMS.keys())
@pytest.mark.parametrize("hardware", MACHINES.values(), ids=MACHINES.keys())
def test_moves_stay_within_the_space_and_say_why(
    hardware: Hardware, profile: Profile, wait_share: float
) -> None:
    space = EVERYTHING.resolve(hardware, profile)
    diagnosis = diagnosed(wait_share, hardware, profile)
    for move in diagnosis.moves:
        assert move.changes
        assert move.why
        for knob, value in move.changes.items():
            assert value in space.domains[knob].values
    distinct = {frozenset(move.changes.items()) for move in diagnosis.moves}
    assert len(distinct) == len(diagnosis.moves)


@pytest.mark.parametrize(
    "knobs",
    [
        {"num_workers": (0, 7)},
        {"precision": ("fp32",), "channels_last": None},
        {"batch_size": (8, 16)},
        {"num_threads": (1,)},
        {"compile": None},
    ],
)
def test_moves_stay_within_the_users_own_values(
    knobs: Mapping[str, tuple[KnobValue, ...] | None],
) -> None:
    space = make_space(knobs).resolve(MACHINES["two cores"], make_profile())
    for move in diagnosed(0.6, space=make_space(knobs)).moves:
        for knob, value in move.changes.items():
            assert value in space.domains[knob].values


def test_what_the_program_does_already_is_no_move_of_its_own() -> None:
    profile = make_profile(device="cuda", channels_last=True, cudnn_benchmark=True)
    found = changes(diagnosed(0.0, MACHINES["A100"], profile))
    assert {"channels_last": True} not in found
    assert {"cudnn_benchmark": True} not in found


def test_fixed_knobs_are_no_moves() -> None:
    space = EVERYTHING.fix({"precision": "bf16", "num_workers": 0})
    knobs: set[str] = set().union(*changes(diagnosed(0.6, space=space)))
    assert not knobs & {"precision", "num_workers"}


def test_an_empty_space_has_no_moves() -> None:
    moves: Sequence[object] = diagnosed(0.6, space=make_space([])).moves
    assert not moves
