"""Advice from readings: each kind where its cause was read, and none in the twin without it."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.measurement.examination import (
    Affinity,
    Batches,
    Examination,
    ItemsExamined,
    MemoryGrowth,
    Operators,
    Padding,
    StepBreakdown,
    StepParts,
)
from autotune.measurement.readings import RankLoad
from autotune.program.profile import OptimizerFacts
from autotune.results.advice import MEMBERS, Advice, advise, unsearched
from autotune.results.data.doctor import examined_part
from autotune.results.doctor_report import DoctorReport
from tests.made import (
    A100,
    HARDWARE,
    PROFILE,
    make_hardware,
    make_loader,
    make_measurement,
    make_profile,
    profile_with,
)

STEP_S = 0.02
MIB = 1 << 20
ITEMS = ItemsExamined(100, 0.002, computing_share=0.9, where="data.py:31")
GROWN = tuple(500 * MIB + n * 40 * MIB for n in range(7))
SGD = OptimizerFacts("SGD", ("SGD", "Optimizer"), (0.1,), initial_lrs=(0.1,))
MANY_OPERATORS = Operators(3000, 4e-6, STEP_S)
AHEAD = StepParts(0.0, 0.0, 0.9 * STEP_S, 0.1 * STEP_S, 0.0, 0.0, 10, launch_s=0.5 * STEP_S)
WAITING_RANK = RankLoad(1, 0.05, 0.025, 0.005)  # 45 ms of 50 are its work


def report(
    examination: Examination = Examination(),  # noqa: B008 - a frozen value
    wait: float = 0.0,
    data_gain: float = 1.0,
    **more: Any,
) -> DoctorReport:
    """A program of 20 ms a step that waits for data for a share of the time."""
    measured = make_measurement(
        3200, wait_share=wait, step_s=STEP_S, samples_per_step=more.pop("samples_per_step", 64.0),
        largest_step=64, ranks=more.pop("ranks", ()),
    )  # fmt: skip
    profile = profile_with(PROFILE, **more.pop("profile", {}))
    ready = measured.throughput.times(data_gain)
    parts = {name: more.pop(name, None) for name in ("split", "operators", "batches")}
    breakdown = StepBreakdown(**parts, synthetic_data_throughput=ready)
    return DoctorReport("train.py", HARDWARE, profile, measured, breakdown, examination, **more)


def names(found: DoctorReport) -> list[str]:
    return [advice.name for advice in advise(found)]


def only(found: DoctorReport) -> Advice:
    (advice,) = advise(found)
    return advice


def test_a_program_without_a_fault_gets_no_advice() -> None:
    quiet = Examination(
        ITEMS,
        Affinity((0, 1), (0, 1), ((0, 1), (0, 1))),
        MemoryGrowth(10, (500 * MIB,) * 7),
    )
    assert names(report(quiet, operators=Operators(300, 4e-6, STEP_S))) == []
    assert names(report(quiet, wait=0.2, data_gain=1.02)) == [], "waiting that costs nothing"
    unread = replace(report(), breakdown=StepBreakdown())
    assert [member for member in MEMBERS if [*member(unread)]] == []


@pytest.mark.parametrize(
    ("items", "name", "said"),
    [
        (ITEMS, "input-bound: computing", "decode and resize once"),
        (replace(ITEMS, computing_share=0.1), "input-bound: waiting", "local disk"),
        (replace(ITEMS, opens=40.0), "input-bound: computing", "Pack many small files"),
        (None, "input-bound", "best number of workers"),
    ],
)
def test_programs_that_wait_are_told_why(items: ItemsExamined | None, name: str, said: str) -> None:
    advice = only(report(Examination(items), wait=0.5, data_gain=2.0))
    assert (advice.name, advice.where) == (name, "" if items is None else "data.py:31")
    assert said in advice.mend
    assert advice.gain is not None
    assert advice.gain.most == pytest.approx(2.0)
    assert names(report(Examination(items), wait=0.0, data_gain=2.0)) == [], "it does not wait"


def test_many_small_operators_are_launch_bound_unless_the_host_is_ahead_of_the_device() -> None:
    assert names(report(operators=MANY_OPERATORS)) == ["launch-bound"]
    behind = replace(AHEAD, launch_s=0.95 * STEP_S)
    for split, said in ((AHEAD, []), (behind, ["launch-bound"])):
        assert (
            names(report(operators=MANY_OPERATORS, split=split, profile={"device": "cuda"})) == said
        )


def test_workers_that_slow_launches_are_told_on_a_gpu_alone() -> None:  # not seen on a GPU
    behind = replace(AHEAD, launch_s=0.95 * STEP_S)
    ours = {"device": "cuda", "loaders": (make_loader(num_workers=8),)}
    for while_loading_s, split, profile, said in (
        (8e-6, behind, ours, ["slowed launches"]),
        (4.1e-6, behind, ours, []),
        (None, behind, ours, []),
        (8e-6, AHEAD, ours, []),
        (8e-6, None, {}, []),
    ):
        calls = Operators(1500, 4e-6, STEP_S, while_loading_s)
        assert names(report(operators=calls, split=split, profile=profile)) == said
    advice = only(report(operators=Operators(1500, 4e-6, STEP_S, 8e-6), split=behind, profile=ours))
    assert "8.0 µs while the 8 workers load, 4.0 µs while they rest" in advice.evidence
    assert advice.gain is not None
    assert advice.gain.most == pytest.approx(1 / (1 - 0.6 / 2))


def test_padding_is_told_with_what_batches_of_like_length_give_and_cost() -> None:
    parts = replace(AHEAD, compute_s=0.8 * STEP_S, optimizer_s=0.2 * STEP_S, launch_s=None)
    for share, largest, said in (
        (0.4, 1.0, "Memory stays as it is"),
        (0.7, 0.5, "The largest batch then has 50 % of its tokens now"),
    ):
        filled = Batches(40, 9, Padding(share, 1 - share, largest, "attention_mask"))
        found = report(batches=filled, split=parts)
        advice = only(found)
        assert advice.name == "padding"
        assert said in advice.evidence
        assert "attention_mask" in advice.evidence
        assert advice.gain is not None
        assert advice.gain.most == pytest.approx(1 / (1 - 0.8 * share))
        (line,) = unsearched(found.profile, found.measurement, found.breakdown)
        assert f"at most {advice.gain.most:.1f}x" in line
    little = report(batches=Batches(40, 9, Padding(0.1, 0.92, 1.0, "mask")))
    assert not names(little)
    assert not [*unsearched(little.profile, little.measurement, little.breakdown)]


def test_changing_shapes_are_told_where_each_is_timed_anew() -> None:  # not seen on a GPU
    on = {"device": "cuda", "cudnn": "benchmark"}
    for shapes, profile, said in ((30, on, 1), (1, on, 0), (30, {"device": "cuda"}, 0)):
        found = report(batches=Batches(90, shapes), profile=profile)
        assert names(found) == ["many shapes"] * said


def test_reads_on_the_host_are_told_and_the_largest_gain_first() -> None:
    reads = replace(AHEAD, launch_s=None, sync_s=0.1 * STEP_S, compute_s=0.8 * STEP_S)
    advice = only(report(split=reads))
    assert advice.name == "reads on the host"
    assert advice.gain is not None
    assert advice.gain.most == pytest.approx(1 / 0.9)
    data = examined_part(report(operators=MANY_OPERATORS, split=reads))
    assert [one.name for one in data.advice] == ["launch-bound", "reads on the host"]
    assert data.parts is not None
    assert data.parts["sync calls"] == pytest.approx(0.1 * STEP_S)
    slowed = replace(reads, sync_s=0.2 * STEP_S, compute_s=1.6 * STEP_S, optimizer_s=0.2 * STEP_S)
    assert examined_part(report(split=slowed)).parts == pytest.approx(data.parts)


def test_memory_that_grows_steadily_is_told_and_not_what_comes_and_goes() -> None:
    once_given_back = (*GROWN[:5], GROWN[3], GROWN[3] + 40 * MIB)
    wavy = tuple(500 * MIB + (n % 3) * 40 * MIB for n in range(7))
    for readings, said in ((GROWN, 1), (once_given_back, 1), (wavy, 0)):
        growth = Examination(growth=MemoryGrowth(10, readings))
        assert names(report(growth)) == ["memory growth"] * said
    assert "4 MiB" in only(report(Examination(growth=MemoryGrowth(10, GROWN)))).evidence


def test_processes_tied_to_too_few_cores_are_told() -> None:
    cores = (0, 1, 2, 3)
    for main, workers, said in (
        ((0,), ((0,), (0,)), ["affinity: training process"]),  # workers inherit it
        (cores, ((0,), (0,)), ["affinity: workers"]),
        (cores, ((0,), (1,)), []),
    ):
        assert names(report(Examination(affinity=Affinity(cores, main, workers)))) == said


def test_debugging_switches_and_data_parallel_are_told() -> None:
    on = report(profile={"anomaly_detection": True, "autograd_profiler": True})
    assert names(on) == ["left on: anomaly_detection", "left on: autograd_profiler"]
    off = replace(on.breakdown, without_anomaly_throughput=on.measurement.throughput.times(1.4))
    gains = {advice.name: advice.gain for advice in advise(replace(on, breakdown=off))}
    anomaly = gains["left on: anomaly_detection"]
    assert anomaly is not None
    assert anomaly.most == pytest.approx(1.4)
    said = [*unsearched(on.profile, on.measurement, off)]
    assert "is on: off gives 1.40x." in said[0]
    assert "it slows each step." in said[1]
    assert not names(report(profile={"replicas": 1}))
    assert "among 2 GPUs" in only(report(profile={"replicas": 2})).evidence


def test_the_slowest_rank_is_named_with_its_reason_if_it_is_the_slowest_each_time() -> None:
    slow = (RankLoad(0, 0.05, 0.001, 0.03), WAITING_RANK)
    even = (RankLoad(0, 0.05, 0.001, 0.01), RankLoad(1, 0.05, 0.001, 0.012))
    busy = (slow[0], RankLoad(1, 0.05, 0.001, 0.005, queued_s=0.024))  # others use its core
    other_way = (RankLoad(0, 0.05, 0.001, 0.005), RankLoad(1, 0.05, 0.025, 0.03))
    advice = only(report(ranks=slow))
    assert advice.name == "straggler"
    assert "Rank 1" in advice.problem
    assert "loading its data" in advice.evidence
    for ranks in (even, busy):
        assert names(report(ranks=ranks)) == []
    same, other = (report(ranks=ranks).measurement for ranks in (slow, other_way))
    assert names(report(ranks=slow, again=(same, same))) == ["straggler"]
    assert names(report(ranks=slow, again=(same, other))) == []


def test_a_large_batch_without_a_warm_up_is_told() -> None:
    def found(optimizer: OptimizerFacts) -> list[str]:
        return names(report(samples_per_step=4096.0, profile={"optimizers": (optimizer,)}))

    assert found(SGD) == ["large batch"]
    assert found(replace(SGD, lrs=(0.001,))) == []
    assert found(replace(SGD, families=("LAMB", "Optimizer"))) == []


def test_arithmetic_is_compared_with_the_peak_of_its_own_type() -> None:
    measured = make_measurement()
    flops = StepBreakdown(flops_per_step=0.4 * 312e12 * measured.step_s)  # A100: 312 TFLOP/s bf16
    profile = make_profile(device="cuda", autocast="bfloat16")
    on_gpu = DoctorReport("train.py", make_hardware(gpus=(A100,)), profile, measured, flops)
    assert on_gpu.profile.arithmetic == "bf16"
    assert on_gpu.roofline_share == pytest.approx(0.4)
    for unknown in (
        {"profile": make_profile()},
        {"hardware": HARDWARE},
        {"hardware": make_hardware(gpus=(replace(A100, name="?"),))},
        {"breakdown": StepBreakdown()},
    ):
        assert replace(on_gpu, **unknown).roofline_share is None
