"""Several ranks: which moves try them, what they mean for a step, and what is said of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.knobs.space.space import ResolvedSpace
from autotune.machine.hardware import Hardware
from autotune.measurement.readings import RankLoad
from autotune.program.config import Config, KnobValue
from autotune.program.domain import ranks_in
from autotune.program.lr import batch_growth
from autotune.program.profile import Profile
from autotune.results.rank_notes import parallel_notes
from autotune.results.record import TrialRecord
from autotune.tuning.choosing.diagnosis import diagnose
from autotune.tuning.choosing.proposals import Proposals
from autotune.tuning.proof import Match
from tests.made import (
    A100,
    make_applied,
    make_hardware,
    make_measurement,
    make_profile,
    make_record,
    make_space,
    make_study,
    profile_with,
)

KNOBS = ["devices", "threads", "batch_size"]
EIGHT_GPUS = make_hardware(cpu_quota=64, gpus=(A100,) * 8)
CUDA = make_profile(device="cuda")


def space_on(hardware: Hardware, profile: Profile) -> ResolvedSpace:
    """Return what can be searched of strategies and what goes with them."""
    return make_space(KNOBS).resolve(hardware, profile)


def device_moves(hardware: Hardware, profile: Profile) -> list[dict[str, KnobValue]]:
    diagnosis = diagnose(profile, make_measurement(), space_on(hardware, profile), hardware)
    assert not diagnosis.all_in.keys() & {"devices"}
    return [dict(move.changes) for move in diagnosis.devices]


@pytest.mark.parametrize("cores", [2, 3, 4, 6, 8, 16, 64])
def test_every_number_of_ranks_is_tried_with_its_share_of_the_cores(cores: int) -> None:
    moves = device_moves(make_hardware(cpu_quota=cores), make_profile(threads=cores))
    counts = {ranks_in(move) for move in moves}
    assert {2, cores} <= counts
    assert len(counts) >= cores.bit_length() - 1
    for move in moves:
        threads, ranks = int(str(move["threads"])), ranks_in(move)
        assert 1 <= threads * ranks <= cores
        if cores % 2 == 0 and ranks in {1, 2}:
            assert threads == cores // ranks


def test_gpus_are_tried_all_at_once_first_and_copies_by_threads_once() -> None:
    moves = device_moves(EIGHT_GPUS, CUDA)
    assert [ranks_in(m) for m in moves[:3]] == [8, 8, 8]
    assert [m["devices"] for m in moves].count("data_parallel") == 1
    assert not any("threads" in m for m in moves)


def test_with_the_largest_batch_in_front_ranks_are_tried_with_smaller_ones(tmp_path: Path) -> None:
    space = make_space(KNOBS)
    study = make_study(tmp_path, space)
    resolved = space.resolve(EIGHT_GPUS, CUDA)
    best = resolved.baseline.replace(batch_size=2048)
    for config, speedup in ((resolved.baseline, 1.0), (best, 3.0)):
        study.tell(make_record(config, speedup), resolved)
    diagnosis = diagnose(CUDA, make_measurement(), resolved, EIGHT_GPUS)
    proposals = Proposals(study, resolved, diagnosis)
    found = []
    for proposal in proposals.restarted(lambda: True):
        found.append(proposal.config)
        study.tell(make_record(proposal.config, 0.5), resolved, proposal.trial)
        if len(found) == len(diagnosis.devices):
            break
    assert {ranks_in(c) for c in found} >= {2, 4, 8}
    for config in found:
        ranks = ranks_in(config)
        assert ranks * int(config["batch_size"]) <= 2048
        if ranks > 1:
            assert ranks * int(config["batch_size"]) == 2048, "as much as a step may have"


@pytest.mark.parametrize("knobs", [KNOBS, ["devices"]], ids=["tuned", "fixed"])
def test_ranks_in_the_place_of_replicas_share_the_batch(tmp_path: Path, knobs: list[str]) -> None:
    """They are what nn.DataParallel is compared with, whether the batch is tuned or not."""
    wrapped = profile_with(CUDA, replicas=8)
    space = make_space(knobs)
    resolved = space.resolve(EIGHT_GPUS, wrapped)
    study = make_study(tmp_path, space)
    assert ("batch_size" in resolved.domains) is ("batch_size" in knobs)
    samples = 128 if "batch_size" in knobs else 64
    larger = resolved.baseline.replace(batch_size=samples)
    for config, speedup in ((resolved.baseline, 1.0), (larger, 1.3)):
        study.tell(make_record(config, speedup), resolved)
    diagnosis = diagnose(wrapped, make_measurement(), resolved, EIGHT_GPUS)
    found: list[Config] = []
    for proposal in Proposals(study, resolved, diagnosis).restarted(lambda: True):
        found.append(proposal.config)
        speed = 3.0 if proposal.config["devices"] == "ddp-8" else 0.5
        study.tell(make_record(proposal.config, speed + len(found) / 100), resolved)
    assert [config["devices"] for config in found[:3]] == ["ddp-8", "single", "fsdp-8"]
    assert {str(c["devices"]) for c in found} == {
        *(f"{name}-{ranks}" for name in ("ddp", "fsdp", "zero1") for ranks in (2, 4, 8)),
        "single",
    }
    for config in found:
        assert int(config["batch_size"]) * ranks_in(config) == samples
        assert not resolved.grows(config) or samples == 128


def test_a_step_has_the_samples_of_all_ranks_and_the_rate_follows() -> None:
    before: dict[str, KnobValue] = {"batch_size": 32, "devices": "single"}
    assert batch_growth(before, {"batch_size": 32, "devices": "ddp-4"}) == 4.0
    assert batch_growth({"devices": "own-1"}, {"devices": "own-2"}) == 2.0
    own: dict[str, KnobValue] = {"batch_size": 64, "devices": "own-4"}
    assert batch_growth(before, own, counts_ranks=False) == 2.0, "the program counts them itself"


def test_a_global_batch_that_is_kept_is_shared_out_evenly_among_the_ranks() -> None:
    space = make_space([*KNOBS, "accumulation_steps"]).keep_global_batch()
    resolved = space.resolve(EIGHT_GPUS, CUDA)
    config = resolved.canonical(resolved.baseline.replace(devices="ddp-4", accumulation_steps=2))
    assert config["batch_size"] == 8, "of 64"
    assert not resolved.conflicts(config)
    profile = make_profile(loaders=(replace(CUDA.loaders[0], batch_size=60),), device="cuda")
    odd = space.resolve(EIGHT_GPUS, profile)
    assert {ranks_in({"devices": v}) for v in odd.domains["devices"].values} == {1, 2, 4}
    config = odd.canonical(odd.baseline.replace(devices="ddp-4", accumulation_steps=4))
    assert any("do not divide evenly" in sentence for sentence in odd.conflicts(config))
    unknown = space.resolve(EIGHT_GPUS, make_profile(loaders=(), device="cuda"))
    assert "devices" not in unknown.domains


def test_the_rank_that_others_wait_for_and_what_communication_costs_are_told() -> None:
    def ranked(*own_ms: float, communication_ms: float, speedup: float) -> TrialRecord:
        """Two ranks by ddp that do this much by themselves; the slowest waits for nobody."""
        step_ms = max(own_ms) + communication_ms
        ranks = tuple(
            RankLoad(rank, step_ms / 1e3, 0.0, (step_ms - own) / 1e3)
            for rank, own in enumerate(own_ms)
        )
        record = make_record({"devices": "ddp-2"}, speedup)
        return replace(record, measurement=make_measurement(ranks=ranks))

    uneven = ranked(60.0, 90.0, communication_ms=10.0, speedup=1.5)
    assert uneven.measurement is not None
    assert uneven.measurement.communication_share == pytest.approx(0.1)
    assert uneven.measurement.imbalance_share == pytest.approx(0.15)
    assert uneven.measurement.slowest_rank == 1
    notes = parallel_notes([uneven], Config({}))
    assert any("rank 1 is the slowest, and the others wait 15%" in note for note in notes)
    assert all(note.startswith("2 ranks by ddp reached 1.50x") for note in notes)
    even = ranked(90.0, 90.0, communication_ms=10.0, speedup=1.9)
    said = "2 ranks by ddp: communication is under way in 10% of a step"
    assert parallel_notes([even], even.config) == (said,)
    (note,) = parallel_notes([ranked(40.0, 40.0, communication_ms=60.0, speedup=0.8)], Config({}))
    assert "60% of a step; a larger batch or accumulation_steps" in note
    assert parallel_notes([make_record({"devices": "single"}, 1.0)], Config({})) == ()


def test_configs_that_differ_in_ranks_are_compared_in_a_process_of_each() -> None:
    space = space_on(EIGHT_GPUS, CUDA)
    base = make_applied(space.baseline, baseline=space.baseline)
    ranks = space.baseline.replace(devices="ddp-2")
    batch = space.baseline.replace(batch_size=128)
    for winner, is_apart in ((ranks, True), (batch, False)):
        match = Match(None, space, base, winner, lambda: None)  # type: ignore[arg-type]
        assert match.is_apart is is_apart
