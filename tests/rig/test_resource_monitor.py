"""ResourceMonitor: what is read about a rig from outside, while configs take turns in it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from autotune.machine.process_tree import HostMemory
from autotune.measurement.readings import Interference, Memory
from autotune.measurement.turn import Taken, Turn
from autotune.rig import resource_monitor
from autotune.rig.resource_monitor import HELD_BYTES, ResourceMonitor, mean_power_w
from tests.gpu_fakes import THROTTLED, FakeNvml, GpuState, at_work
from tests.made import A100, GIB, H100

SHARED = "another process was on the GPU"
TAKEN = Taken(
    (Turn(0, (1.0,) * 10, (64,) * 10, 0.0),),
    memory=Memory(device_allocated_bytes=GIB),
    interference=Interference(foreign_share=0.5),
)


def made_watch(
    monkeypatch: pytest.MonkeyPatch,
    nvml: FakeNvml,
    uuids: tuple[str, ...] = (A100.uuid,),
    used_before: int | None = None,
) -> ResourceMonitor:
    nvml.install(monkeypatch)
    before = {} if used_before is None else {A100.uuid: used_before}
    return ResourceMonitor(os.getpid(), uuids, before)


def test_power_is_energy_over_time_between_the_first_and_last_reading() -> None:
    readings = [(10.0, 500.0), (10.5, 510.0), (12.0, 700.0)]
    assert mean_power_w(readings) == pytest.approx(100)
    for few in ([], [(10.5, 5.0)], [(10.5, 5.0), (10.7, 9.0)]):
        assert mean_power_w(few) is None


def completed(
    monkeypatch: pytest.MonkeyPatch,
    nvml: FakeNvml,
    *uuids: str,
    used: tuple[str, ...] | None = None,
) -> Taken:
    """Ten seconds of turns on the GPUs that the program sees; *used* are those in use, if known."""
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
            state = nvml.states[uuid]
            if state.energy_mj is not None:  # at 250 W
                nvml.states[uuid] = replace(state, energy_mj=state.energy_mj + 125_000)
        watcher.sample()
    return watcher.complete(TAKEN, "cuda")


def test_turns_on_gpus_get_their_power_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {A100.uuid: GpuState(), H100.uuid: GpuState()}
    nvml = FakeNvml([A100, H100], [3 * GIB], states=states)
    result = completed(monkeypatch, nvml, A100.uuid, H100.uuid)
    assert result.power_w == pytest.approx(500)
    assert result.memory.device_used_bytes == 3 * GIB, "of the fullest, never a sum"
    assert result.memory.host_bytes
    memory = replace(result.memory, device_used_bytes=None, host_bytes=None)
    rest = replace(result, power_w=None, memory=memory)
    assert rest == TAKEN, "what the rig saw itself stays"
    nvml.states[H100.uuid] = GpuState(energy_mj=None)
    assert completed(monkeypatch, nvml, A100.uuid, H100.uuid).power_w is None


def test_what_disturbed_a_gpu_is_said_once_beside_what_the_rig_saw_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = FakeNvml([A100], states={A100.uuid: THROTTLED})
    seen = completed(monkeypatch, nvml, A100.uuid).interference
    assert seen is not None
    assert seen.foreign_share == 0.5
    assert len(set(seen.gpu)) == len(seen.gpu) > 0
    assert any("hardware thermal slowdown" in reason for reason in seen.gpu)


def test_what_happens_on_a_gpu_that_the_program_does_not_use_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users = at_work(os.getpid(), 9, ago_s=-60.0), at_work(os.getppid(), 90, ago_s=-60.0)
    busy = replace(THROTTLED, samples=users)
    states = {A100.uuid: GpuState(), H100.uuid: busy}
    nvml = FakeNvml([A100, H100], [3 * GIB], states=states)
    both = A100.uuid, H100.uuid
    unknown = completed(monkeypatch, nvml, *both).interference
    assert unknown is not None
    assert SHARED in unknown.gpu, "as long as nobody tells"
    alone = completed(monkeypatch, nvml, *both, used=(A100.uuid,))
    assert alone.interference == TAKEN.interference
    assert alone.power_w == pytest.approx(250)
    assert alone.memory.device_used_bytes == 3 * GIB
    assert nvml.asked == {A100.uuid}


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


def test_memory_is_held_only_on_gpus_in_use_whose_use_before_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What is said here does not change with time: its grace need not last seconds.
    monkeypatch.setattr(resource_monitor, "SETTLE_S", 0.15)
    for readings in ([GIB], [GIB + HELD_BYTES], [3 * GIB, 2 * GIB, GIB]):
        nvml = FakeNvml([A100], readings)
        assert made_watch(monkeypatch, nvml, used_before=GIB).held_bytes() == 0, "it came back"
    watcher = made_watch(monkeypatch, FakeNvml([A100, H100], [5 * GIB]), used_before=GIB)
    watcher.watch((A100.uuid, H100.uuid))
    assert watcher.held_bytes() == 4 * GIB, "of the A100: how full the H100 was, nobody knows"
    before = {A100.uuid: 0, H100.uuid: 9 * GIB}
    watcher = ResourceMonitor(os.getpid(), (A100.uuid, H100.uuid), before)
    assert watcher.held_bytes() == 5 * GIB, "what another GPU got back does not make up for it"
    watcher.watch((H100.uuid,))
    assert watcher.held_bytes() == 0
