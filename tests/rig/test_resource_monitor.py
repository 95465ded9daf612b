"""ResourceMonitor: what is read about a rig from outside ends up at the right blocks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from autotune.machine.probes.host import HostMemory
from autotune.measurement.block import Block
from autotune.measurement.interference import GpuReading, Interference
from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement
from autotune.rig import resource_monitor
from autotune.rig.resource_monitor import (
    HELD_BYTES,
    NEAR_S,
    ResourceMonitor,
    annotate,
    mean_power_w,
)
from tests.made import A100, GIB, H100
from tests.readings import THROTTLED, GpuState, NvmlReadings, at_work

SHARED = "another process was on the GPU"
BLOCK = Block(64, 2, 1.0, 0.0, ended_at_s=11.0)  # from 10 to 11


def shared_at(at_s: float) -> GpuReading:
    return GpuReading(at_s, A100.uuid, foreign_processes=(4711,))


def hot_at(at_s: float) -> GpuReading:
    return GpuReading(at_s, A100.uuid, slowdowns=("hardware slowdown",))


def made_watch(
    monkeypatch: pytest.MonkeyPatch,
    nvml: NvmlReadings,
    uuids: tuple[str, ...] = (A100.uuid,),
    used_before: int | None = None,
) -> ResourceMonitor:
    # A watch makes its probes itself and these import pynvml, which needs a driver.
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    before = {} if used_before is None else {A100.uuid: used_before}
    return ResourceMonitor(os.getpid(), uuids, before)


# --- readings of the GPUs and blocks --------------------------------------------------------------


@pytest.mark.parametrize("at_s", [10.0, 10.5, 11.0, 10 - NEAR_S / 2, 11 + NEAR_S / 2])
def test_a_reading_during_a_block_or_near_it_speaks_for_it(at_s: float) -> None:
    marked = annotate(BLOCK, [shared_at(at_s)])
    assert marked.is_disturbed
    assert marked.interference == Interference(gpu=(SHARED,))


@pytest.mark.parametrize("at_s", [10 - 2 * NEAR_S, 11 + 2 * NEAR_S])
def test_a_reading_far_from_a_block_says_nothing_about_it(at_s: float) -> None:
    assert annotate(BLOCK, [shared_at(at_s)]) is BLOCK


def test_readings_of_a_gpu_at_work_alone_leave_a_block_as_it_is() -> None:
    assert annotate(BLOCK, [GpuReading(10.5, A100.uuid, 1410, 1410, utilization_pct=97)]) is BLOCK


def test_each_reason_is_said_once_in_the_order_it_was_seen() -> None:
    readings = [hot_at(10.1), shared_at(10.2), hot_at(10.6), shared_at(10.7)]
    marked = annotate(BLOCK, readings)
    assert marked.interference is not None
    assert marked.interference.gpu == ("the GPU was slowed down (hardware slowdown)", SHARED)


def test_what_the_rig_saw_itself_stays_at_the_block() -> None:
    own = Block(64, 2, 1.0, 0.0, ended_at_s=11.0, interference=Interference(foreign_share=0.5))
    marked = annotate(own, [shared_at(10.5)])
    assert marked.interference == Interference(foreign_share=0.5, gpu=(SHARED,))


# --- power ----------------------------------------------------------------------------------------


def test_power_is_energy_over_time_between_the_first_and_last_reading_in_the_window() -> None:
    readings = [(9.0, 0.0), (10.0, 500.0), (10.5, 510.0), (12.0, 700.0), (13.0, 9000.0)]
    assert mean_power_w(readings, 10.0, 12.5) == pytest.approx(100)


@pytest.mark.parametrize(
    "readings",
    [[], [(10.5, 5.0)], [(10.5, 5.0), (10.7, 9.0)], [(9.0, 5.0), (10.5, 9.0), (13.0, 30.0)]],
    ids=["none", "one", "too near to each other", "one in the window"],
)
def test_too_few_readings_tell_no_power(readings: Sequence[tuple[float, float]]) -> None:
    assert mean_power_w(readings, 10.0, 12.0) is None


# --- a whole window -------------------------------------------------------------------------------


def completed(
    monkeypatch: pytest.MonkeyPatch,
    nvml: NvmlReadings,
    *uuids: str,
    used: tuple[str, ...] | None = None,
    device: str = "cuda",
) -> Measurement:
    """A window of ten blocks of a second each, every one faster than the one before.

    Args:
        monkeypatch: Sets the clock and NVML.
        nvml: What the driver says.
        *uuids: The GPUs that the program sees.
        used: Those that it turns out to use; None does not tell.
        device: What the program trains on.
    """
    now = 100.0
    # Readings half a second apart, without waiting for them.
    monkeypatch.setattr(resource_monitor, "monotonic", lambda: now)
    watcher = made_watch(monkeypatch, nvml, uuids)
    if used is not None:
        watcher.watch(used)
    nvml.asked.clear()
    watcher.reset()
    for _ in range(20):
        now += 0.5
        for uuid in uuids:
            nvml.states[uuid] = half_a_second_later(nvml.states[uuid])
        watcher.sample()
    blocks = tuple(
        Block(1000 + 10 * place, 1, 1.0, 0.0, ended_at_s=101.0 + place) for place in range(10)
    )
    interval = Interval(1045.0, 1040.0, 1050.0)
    return watcher.complete(Measurement(interval, blocks, 1.0, "steady", "narrow"), device)


def half_a_second_later(state: GpuState) -> GpuState:
    """At 250 W."""
    energy_mj = state.energy_mj
    return replace(state, energy_mj=None if energy_mj is None else energy_mj + 125_000)


def test_a_window_on_gpus_gets_their_power_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {A100.uuid: GpuState(), H100.uuid: GpuState()}
    nvml = NvmlReadings([A100, H100], [3 * GIB], states=states)
    result = completed(monkeypatch, nvml, A100.uuid, H100.uuid)
    assert result.power_w == pytest.approx(500)
    assert result.joules_per_sample == pytest.approx(500 / 1045)
    assert result.memory.device_used_bytes == 6 * GIB
    assert result.memory.host_bytes
    assert result.warnings == ()
    assert result.throughput == Interval(1045.0, 1040.0, 1050.0)


def test_a_window_on_a_throttled_gpu_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = NvmlReadings([A100], states={A100.uuid: THROTTLED})
    result = completed(monkeypatch, nvml, A100.uuid)
    assert result.disturbed_share == 1
    assert "hardware thermal slowdown" in result.warnings[0]
    assert result.throughput.low == pytest.approx(1000)
    assert result.throughput.high == pytest.approx(1090)


def busy_elsewhere(pid: int) -> NvmlReadings:
    """An A100 at work, beside an H100 on which another process computes at a lowered clock."""
    busy = replace(THROTTLED, samples=(at_work(pid, 90, ago_s=-60.0),))
    states = {A100.uuid: GpuState(), H100.uuid: busy}
    return NvmlReadings([A100, H100], [3 * GIB], states=states)


def test_what_happens_on_a_gpu_that_the_program_does_not_use_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = busy_elsewhere(os.getppid())
    both = A100.uuid, H100.uuid
    assert completed(monkeypatch, nvml, *both).disturbed_share == 1, "as long as nobody tells"
    alone = completed(monkeypatch, nvml, *both, used=(A100.uuid,))
    assert alone.disturbed_share == 0
    assert alone.warnings == ()
    assert alone.power_w == pytest.approx(250)
    assert alone.memory.device_used_bytes == 3 * GIB
    assert nvml.asked == {A100.uuid}


def test_a_program_on_the_cpu_is_never_disturbed_by_a_busy_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = busy_elsewhere(os.getppid())
    result = completed(monkeypatch, nvml, A100.uuid, H100.uuid, used=(), device="cpu")
    assert result.disturbed_share == 0
    assert result.memory.device_used_bytes is None
    assert nvml.asked == set()


def test_a_gpu_without_an_energy_counter_leaves_power_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = NvmlReadings([A100], states={A100.uuid: GpuState(energy_mj=None)})
    assert completed(monkeypatch, nvml, A100.uuid).power_w is None


def test_one_of_two_gpus_without_an_energy_counter_leaves_power_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = {A100.uuid: GpuState(), H100.uuid: GpuState(energy_mj=None)}
    nvml = NvmlReadings([A100, H100], states=states)
    assert completed(monkeypatch, nvml, A100.uuid, H100.uuid).power_w is None


# --- what reading memory costs --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cost_s", "readings"), [(0.0, 61), (0.04, 58), (0.1, 30), (0.2, 15), (3.0, 4)]
)
def test_memory_is_read_less_often_where_that_takes_a_twentieth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, cost_s: float, readings: int
) -> None:
    now, read = 100.0, 0

    def read_memory(_: object) -> None:
        nonlocal now, read
        now, read = now + cost_s, read + 1

    monkeypatch.setattr(resource_monitor, "monotonic", lambda: now)
    monkeypatch.setattr(HostMemory, "sample", read_memory)
    watcher = ResourceMonitor(os.getpid(), (), {})
    until = now + 60
    while now <= until:
        watcher.sample()
        now += 0.125
    assert read == pytest.approx(readings, abs=2)


# --- memory that does not come back ---------------------------------------------------------------


@pytest.fixture
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is recorded here does not change with time: its grace need not last seconds.
    monkeypatch.setattr(resource_monitor, "SETTLE_S", 0.15)


@pytest.mark.usefixtures("_short_grace")
@pytest.mark.parametrize(
    "readings",
    [[GIB], [GIB + HELD_BYTES], [3 * GIB, 2 * GIB, GIB]],
    ids=["at once", "but for the driver's bookkeeping", "after a moment"],
)
def test_memory_that_comes_back_is_not_held(
    monkeypatch: pytest.MonkeyPatch, readings: list[int]
) -> None:
    nvml = NvmlReadings([A100], readings)
    assert made_watch(monkeypatch, nvml, used_before=GIB).held_bytes() == 0


@pytest.mark.usefixtures("_short_grace")
def test_memory_that_does_not_come_back_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = NvmlReadings([A100], [5 * GIB, 3 * GIB])
    assert made_watch(monkeypatch, nvml, used_before=GIB).held_bytes() == 2 * GIB


@pytest.mark.usefixtures("_short_grace")
def test_memory_is_held_only_on_gpus_in_use_whose_use_before_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watcher = made_watch(monkeypatch, NvmlReadings([A100, H100], [5 * GIB]), used_before=GIB)
    watcher.watch((A100.uuid, H100.uuid))
    assert watcher.held_bytes() == 4 * GIB, "of the A100: how full the H100 was, nobody knows"
    watcher.watch((H100.uuid,))
    assert watcher.held_bytes() == 0


def test_where_memory_is_unknown_nothing_is_said_to_be_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = NvmlReadings([A100], [5 * GIB])
    assert made_watch(monkeypatch, full, used_before=None).held_bytes() == 0
    silent = NvmlReadings([A100], [5 * GIB], fails_at="nvmlDeviceGetMemoryInfo")
    assert made_watch(monkeypatch, silent, used_before=GIB).held_bytes() == 0
    assert made_watch(monkeypatch, NvmlReadings(), uuids=(), used_before=None).held_bytes() == 0
