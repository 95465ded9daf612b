"""Advice from readings: each kind where its cause was read, and none in the twin without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.measurement.examination import (
    Affinity,
    BiasedConvs,
    Cost,
    Examination,
    HostReads,
    ItemsExamined,
    KeptGraphs,
    MemoryGrowth,
    Operators,
)
from autotune.measurement.rank_load import RankLoad
from autotune.measurement.step_breakdown import StepBreakdown, StepParts
from autotune.program.profile import OptimizerFacts
from autotune.results.advice import MEMBERS, Advice, Readings, advise
from autotune.results.doctor_report import DoctorReport
from tests.made import HARDWARE, LOADER, PROFILE, make_measurement, profile_with

STEP_S = 0.02
MIB = 1 << 20
ITEMS = ItemsExamined(
    items=100, item_s=0.002, shares=dict.fromkeys(Cost, 0.0) | {Cost.PYTHON: 1.0},
    where="data.py:31", where_share=0.9, item_bytes=4096.0, is_random=False, len_items=60_000,
)  # fmt: skip
GROWN = tuple(500 * MIB + n * 40 * MIB for n in range(7))
SGD = OptimizerFacts("SGD", ("SGD", "Optimizer"), (0.1,), initial_lrs=(0.1,))


def readings(
    examination: Examination = Examination(),  # noqa: B008 - a frozen value
    wait: float = 0.0,
    data_gain: float = 1.0,
    **more: Any,
) -> Readings:
    """A program of 20 ms a step that waits for data for a share of the time."""
    measured = make_measurement(
        3200, wait_share=wait, step_s=STEP_S, samples_per_step=more.pop("samples_per_step", 64.0),
        largest_step=64, ranks=more.pop("ranks", ()),
    )  # fmt: skip
    profile = profile_with(PROFILE, **more.pop("profile", {}))
    ready = measured.throughput.times(data_gain)
    found = Readings(
        HARDWARE, profile, measured, StepBreakdown(synthetic_data_throughput=ready),
        replace(examination, steps=100, step_s=STEP_S),
    )  # fmt: skip
    return replace(found, **more)


def names(found: Readings) -> list[str]:
    return [advice.name for advice in advise(found)]


def only(found: Readings) -> Advice:
    (advice,) = advise(found)
    return advice


def test_a_program_without_a_fault_gets_no_advice() -> None:
    quiet = Examination(
        items=ITEMS,
        kept_graphs=KeptGraphs(1, 100, "train.py:9"),
        operators=Operators(100, 5e-6),
        affinity=Affinity((0, 1), (0, 1), ((0, 1), (0, 1))),
        growth=MemoryGrowth(10, (500 * MIB,) * 7),
        host_reads=(HostReads("item", "train.py:41", 1.0, 1e-5),),
    )
    assert names(readings(quiet)) == []


@pytest.mark.parametrize(
    ("shares", "more", "name"),
    [
        ({Cost.PYTHON: 0.9, Cost.NATIVE: 0.1}, {}, "python"),
        ({Cost.NATIVE: 0.8, Cost.PYTHON: 0.2}, {}, "native"),
        ({Cost.DISK: 0.6, Cost.NATIVE: 0.4}, {"disk_bytes": 8e6}, "disk"),
        ({Cost.NETWORK: 0.9, Cost.PYTHON: 0.1}, {}, "network"),
        ({Cost.WAITING: 0.9, Cost.PYTHON: 0.1}, {}, "waiting"),
        # many small files on a slow disk: their number is the cause, the disk a symptom
        ({Cost.DISK: 0.7, Cost.FILES: 0.1}, {"opens": 40, "bytes_per_open": 200}, "small files"),
        ({Cost.FILES: 0.9, Cost.PYTHON: 0.1}, {"opens": 1, "bytes_per_open": 9e6}, "files"),
    ],
)
def test_a_program_that_waits_is_told_why(
    shares: dict[Cost, float], more: dict[str, float], name: str
) -> None:
    items = replace(ITEMS, shares=shares, **more)  # type: ignore[arg-type]
    found = readings(Examination(items=items), wait=0.5, data_gain=2.0)
    assert names(found)[0] == f"input-bound: {name}"
    assert names(replace(found, measurement=readings().measurement)) == [], "it does not wait"
    first = advise(found)[0]
    assert first.where == "data.py:31"
    assert first.gain is not None
    assert first.gain.most == pytest.approx(2.0)


def test_waiting_that_costs_nothing_is_no_fault() -> None:
    assert names(readings(Examination(items=ITEMS), wait=0.2, data_gain=1.02)) == []


def test_without_workers_no_more_can_be_gained_than_the_waiting() -> None:
    found = readings(Examination(items=ITEMS), wait=0.2, data_gain=4.0)
    assert found.data_gain == pytest.approx(1.25)
    workers = replace(LOADER, num_workers=2)
    assert replace(found, profile=replace(PROFILE, loaders=(workers,))).data_gain == 4.0


def test_items_are_cached_only_where_they_fit() -> None:
    found = readings(Examination(items=ITEMS), wait=0.5, data_gain=2.0)
    assert "cache items" in names(found)
    large = Examination(items=replace(ITEMS, item_bytes=1e6))
    assert "cache items" not in names(readings(large, wait=0.5, data_gain=2.0))
    random = Examination(items=replace(ITEMS, is_random=True))
    advice = advise(readings(random, wait=0.5, data_gain=2.0))
    assert any("before the random part" in one.mend for one in advice)


def test_many_small_operators_are_launch_bound() -> None:
    assert names(readings(Examination(operators=Operators(3000, 4e-6)))) == ["launch-bound"]
    assert names(readings(Examination(operators=Operators(300, 4e-6)))) == []


def test_reads_that_take_a_share_of_the_step_are_named() -> None:
    reads = (HostReads("item", "train.py:41", 64.0, 0.1 * STEP_S),)
    advice = only(readings(Examination(host_reads=reads)))
    assert (advice.name, advice.where) == ("reads on the host", "train.py:41")
    assert advice.gain is not None
    assert advice.gain.most == pytest.approx(1 / 0.9)


def test_a_read_that_waits_for_queued_work_costs_only_what_the_device_idles() -> None:
    reads = (HostReads("item", "train.py:41", 1.0, 0.9 * STEP_S),)
    on_gpu = readings(Examination(host_reads=reads), profile={"device": "cuda"})
    busy = StepParts(0.0, 0.0, 0.9 * STEP_S, 0.1 * STEP_S, 0.0, 0.0, 10, launch_s=0.2 * STEP_S)
    assert names(replace(on_gpu, breakdown=StepBreakdown(busy))) == []
    idle = replace(busy, sync_s=0.2 * STEP_S)
    assert names(replace(on_gpu, breakdown=StepBreakdown(idle))) == ["reads on the host"]


def test_a_host_that_is_ahead_of_the_device_is_not_launch_bound() -> None:
    many = readings(Examination(operators=Operators(3000, 4e-6)), profile={"device": "cuda"})
    ahead = StepParts(0.0, 0.0, 0.9 * STEP_S, 0.1 * STEP_S, 0.0, 0.0, 10, launch_s=0.5 * STEP_S)
    assert names(replace(many, breakdown=StepBreakdown(ahead))) == []
    behind = replace(ahead, launch_s=0.95 * STEP_S)
    assert names(replace(many, breakdown=StepBreakdown(behind))) == ["launch-bound"]


def test_kept_graphs_explain_growing_memory() -> None:
    growth = MemoryGrowth(10, GROWN)
    kept = Examination(kept_graphs=KeptGraphs(100, 100, "train.py:9"), growth=growth)
    assert names(readings(kept)) == ["kept graphs"]
    assert "4 MiB" in only(readings(kept)).evidence
    assert names(readings(Examination(growth=growth))) == ["memory growth"]


def test_memory_that_grows_now_and_then_is_no_leak() -> None:
    wavy = tuple(500 * MIB + (n % 3) * 40 * MIB for n in range(7))
    assert names(readings(Examination(growth=MemoryGrowth(10, wavy)))) == []
    once_given_back = (*GROWN[:5], GROWN[3], GROWN[3] + 40 * MIB)
    assert names(readings(Examination(growth=MemoryGrowth(10, once_given_back)))) == [
        "memory growth"
    ]


def test_biases_before_a_norm_are_named_with_their_cost() -> None:
    advice = only(readings(Examination(biased_convs=BiasedConvs(("stem", "a", "b"), 5, 0.002))))
    assert "stem, a, b and 2 more" in advice.evidence
    assert advice.gain is not None
    assert advice.gain.most == pytest.approx(1 / 0.9)


def test_processes_tied_to_too_few_cores_are_told() -> None:
    bound = Examination(affinity=Affinity((0, 1, 2, 3), (0,), ((0,), (0,))))
    assert names(readings(bound)) == ["affinity: training process"], "workers inherit it"
    workers = Examination(affinity=Affinity((0, 1, 2, 3), (0, 1, 2, 3), ((0,), (0,))))
    assert names(readings(workers)) == ["affinity: workers"]
    apart = Examination(affinity=Affinity((0, 1, 2, 3), (0, 1, 2, 3), ((0,), (1,))))
    assert names(readings(apart)) == []


def test_debugging_switches_are_told() -> None:
    on = readings(profile={"anomaly_detection": True, "autograd_profiler": True})
    assert names(on) == ["left on: anomaly_detection", "left on: autograd_profiler"]


def test_data_parallel_is_told() -> None:
    wrapped = readings(profile={"distributed_by": "nn.DataParallel"})
    assert names(wrapped) == ["DataParallel"]


def test_the_slowest_rank_is_named_with_its_reason() -> None:
    ranks = (RankLoad(0, 0.05, 0.001, 0.03), RankLoad(1, 0.05, 0.025, 0.005))
    advice = only(readings(ranks=ranks))
    assert advice.name == "straggler"
    assert "Rank 1" in advice.problem
    assert "loading its data" in advice.evidence
    even = (RankLoad(0, 0.05, 0.001, 0.01), RankLoad(1, 0.05, 0.001, 0.012))
    assert names(readings(ranks=even)) == []
    busy = (RankLoad(0, 0.05, 0.001, 0.03), RankLoad(1, 0.05, 0.001, 0.005, queued_s=0.024))
    assert names(readings(ranks=busy)) == [], "other programs use its core"


def test_a_rank_is_slow_if_it_is_the_slowest_each_time() -> None:
    first = readings(ranks=(RankLoad(0, 0.05, 0.001, 0.03), RankLoad(1, 0.05, 0.025, 0.005)))
    second = readings(ranks=(RankLoad(0, 0.05, 0.001, 0.005), RankLoad(1, 0.05, 0.025, 0.03)))
    again = (first.measurement, first.measurement)
    assert names(replace(first, again=again)) == ["straggler"]
    assert names(replace(first, again=(first.measurement, second.measurement))) == []


def test_a_large_batch_without_a_warm_up_is_told() -> None:
    def found(optimizer: OptimizerFacts) -> list[str]:
        return names(readings(samples_per_step=4096.0, profile={"optimizers": (optimizer,)}))

    assert found(SGD) == ["large batch"]
    assert found(replace(SGD, lrs=(0.001,))) == []
    assert found(replace(SGD, families=("LAMB", "Optimizer"))) == []


def test_the_largest_gain_comes_first_and_the_report_is_data() -> None:
    both = Examination(
        operators=Operators(3000, 4e-6),
        host_reads=(HostReads("item", "train.py:41", 64.0, 0.1 * STEP_S),),
    )
    report = DoctorReport("train.py", readings(both))
    data = report.as_data()
    assert [one["name"] for one in data["advice"]] == ["launch-bound", "reads on the host"]
    assert data["advice"][0].keys() == {"name", "problem", "evidence", "mend", "where", "gain"}
    assert data["wait_share"] == 0.0


def test_every_member_stays_silent_without_readings() -> None:
    empty = replace(readings(), examination=Examination(), breakdown=StepBreakdown())
    assert [member for member in MEMBERS if [*member(empty)]] == []
