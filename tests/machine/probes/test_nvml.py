"""What the driver reports, of real process trees."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import psutil
import pynvml
import pytest

from autotune.machine.probes.nvml import GpuWatch, NvmlMemory
from autotune.measurement.readings import GpuReading, Memory
from tests.gpu_fakes import (
    ELSEWHERE,
    GB10,
    THROTTLED,
    FakeNvml,
    GpuState,
    ProcessInfo,
    at_work,
)
from tests.made import A100, GIB, H100
from tests.rigging import talking

# What a mismatched driver was seen to give (https://github.com/XuehaiPan/nvitop/issues/181)
OUT_OF_RANGE = 0xFFFFFFFF

# A program with one worker; it prints the worker's id and both wait.
PROGRAM = """
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
print(worker.pid, flush=True)
sys.stdin.readline()
worker.communicate("\\n")
"""


@dataclass(frozen=True)
class Tree:
    """Ids of a program and its worker; the tests' own process is a stranger to them."""

    root: int
    worker: int
    stranger: int


@pytest.fixture(scope="module")
def tree() -> Iterator[Tree]:
    with talking(PROGRAM) as (process, worker):
        yield Tree(process.pid, int(worker), os.getpid())


def gone() -> int:
    with talking("") as (process, _):
        return process.pid


def computing(*processes: ProcessInfo) -> GpuState:
    return GpuState(compute=processes)


def used(probe: NvmlMemory) -> int | None:
    return probe.read(Memory()).device_used_bytes


def test_the_peak_is_kept_until_a_reset_and_through_a_driver_that_does_not_answer() -> None:
    readings = FakeNvml((A100,), [3 * GIB, 9 * GIB, 5 * GIB])
    probe = NvmlMemory((A100.uuid,), nvml=readings)
    assert used(probe) is None
    for _ in range(3):
        probe.sample()
    readings.fails_at = "nvmlDeviceGetMemoryInfo"
    probe.sample()
    assert used(probe) == 9 * GIB
    probe.reset()
    probe.sample()
    assert used(probe) is None


def test_without_a_driver_or_gpus_memory_is_unknown_and_not_zero() -> None:
    for uuids, readings in (
        ((), FakeNvml((A100,), [GIB])),
        ((A100.uuid,), FakeNvml(library=False)),
        ((H100.uuid,), FakeNvml((A100,), [GIB])),
    ):
        probe = NvmlMemory(uuids, nvml=readings)
        probe.sample()
        assert used(probe) is None
        assert probe.used_bytes() == {}


def test_a_gpu_that_does_not_tell_its_memory_still_tells_that_of_the_rig(tree: Tree) -> None:
    states = {GB10.uuid: computing(ProcessInfo(tree.root, 3 * GIB))}
    readings = FakeNvml((GB10, A100), [GIB], states=states)
    probe = NvmlMemory((GB10.uuid, A100.uuid), tree.root, readings)
    for _ in range(2):
        probe.sample()
    assert of_the_rig(probe) == 3 * GIB
    assert used(probe) is None, "the other may be fuller"
    assert probe.used_bytes() == {A100.uuid: GIB}


def of_the_rig(probe: NvmlMemory) -> int | None:
    return probe.read(Memory()).device_process_bytes


def watched(
    state: GpuState, pid: int | None = None, *, lacks: frozenset[str] = frozenset()
) -> GpuReading:
    readings = FakeNvml((A100,), states={A100.uuid: state})
    readings.lacks = lacks
    watch = GpuWatch((A100.uuid,), pid, readings)
    watch.sample(12.5)
    (reading,) = watch.readings
    return reading


def test_a_process_is_foreign_if_it_works_now_and_belongs_to_nobody_of_the_rig(tree: Tree) -> None:
    ours, stranger = (at_work(tree.root, 30), at_work(tree.worker, 30)), at_work(tree.stranger, 30)
    for pid, samples, foreign in (
        (tree.root, (*ours, stranger), (tree.stranger,)),
        (tree.root, ours, ()),
        (tree.root, (at_work(tree.stranger, 90, ago_s=5.0),), ()),  # its work is over
        (tree.root, (at_work(ELSEWHERE, 90), at_work(OUT_OF_RANGE, 90)), ()),  # of a namespace
        (tree.root, (at_work(tree.root, 0), stranger), (tree.stranger,)),
        (tree.root, (stranger,), ()),  # ours are not listed, so the id may be another's
        (gone(), (*ours, stranger), ()),  # nothing can be told apart
        (None, (at_work(tree.worker, 40), at_work(os.getpid(), 40)), ()),
    ):
        assert watched(GpuState(samples=samples), pid).foreign_processes == foreign
    idle = computing(ProcessInfo(tree.stranger, 8 * GIB))
    assert watched(idle, tree.root).reasons == ()


def test_once_the_driver_has_named_one_of_ours_a_stranger_counts_while_ours_rest(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are all processes of the machine read for it, which takes 10 ms for 500 of them."""
    monkeypatch.setattr(psutil, "pids", lambda: pytest.fail("all processes were read"))
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: pytest.fail("so they were"))
    readings = FakeNvml((A100,))
    watch = GpuWatch((A100.uuid,), tree.root, readings)
    memory = NvmlMemory((A100.uuid,), tree.root, readings)
    for samples in ((at_work(tree.worker, 30),), (at_work(tree.stranger, 60),)):
        readings.states = {A100.uuid: GpuState(samples=samples)}
        watch.sample(12.5)
        memory.sample()
    assert [reading.foreign_processes for reading in watch.readings] == [(), (tree.stranger,)]


def test_the_fake_is_asked_as_pynvml_is() -> None:
    for name in (name for name in vars(FakeNvml) if name.startswith("nvml")):
        faked = [*inspect.signature(getattr(FakeNvml(), name)).parameters]
        asked = [*inspect.signature(getattr(pynvml, name)).parameters]
        assert asked[: len(faked)] == faked, name


def test_memory_of_the_rig_is_that_of_its_processes_on_the_fullest_gpu_or_not_known_at_all(
    tree: Tree,
) -> None:
    states = {
        A100.uuid: computing(ProcessInfo(tree.root, 3 * GIB), ProcessInfo(tree.stranger, GIB)),
        H100.uuid: computing(ProcessInfo(tree.worker, 2 * GIB)),
    }
    readings = FakeNvml((A100, H100), [9 * GIB], states=states)
    for uuids, ours, all_in_use in (
        ((A100.uuid, H100.uuid), 3 * GIB, 9 * GIB),
        ((H100.uuid,), 2 * GIB, 9 * GIB),
    ):
        probe = NvmlMemory(uuids, tree.root, readings)
        probe.sample()
        assert (of_the_rig(probe), used(probe)) == (ours, all_in_use)
    ended = gone()
    for pid, state in (
        (tree.root, computing(ProcessInfo(tree.root, None), ProcessInfo(tree.worker, GIB))),
        (tree.root, computing(ProcessInfo(ELSEWHERE, GIB), ProcessInfo(OUT_OF_RANGE, GIB))),
        (tree.root, GpuState(compute=None)),
        (None, computing(ProcessInfo(os.getpid(), GIB))),
        (ended, computing(ProcessInfo(ended, GIB))),
    ):
        unknown = FakeNvml((A100,), [9 * GIB], states={A100.uuid: state})
        probe = NvmlMemory((A100.uuid,), pid, unknown)
        probe.sample()
        assert (of_the_rig(probe), used(probe)) == (None, 9 * GIB)


def test_a_gpu_that_was_slowed_down_says_so_also_by_an_old_driver() -> None:
    reading = watched(THROTTLED)
    assert reading.slowdowns == ("hardware slowdown", "hardware thermal slowdown")
    assert reading.temperature_c == 93
    assert reading.reasons[0] == "the GPU was slowed down (hardware slowdown)"
    old = frozenset({"nvmlDeviceGetCurrentClocksEventReasons"})
    assert watched(THROTTLED, lacks=old).slowdowns == reading.slowdowns
    usual = pynvml.nvmlClocksEventReasonGpuIdle | pynvml.nvmlClocksEventReasonSwPowerCap
    assert watched(GpuState(reasons=usual)).slowdowns == ()


def test_another_process_disturbs_by_its_share_of_the_sms_at_last_and_not_by_being_there(
    tree: Tree,
) -> None:
    """gnome-shell and Xorg are listed with a graphics context, some with a compute one as well."""
    server = (ProcessInfo(tree.stranger, GIB),)
    for graphics, shares_pct, is_foreign in (
        ((), [5], False),
        ((), [6], True),
        ((), [40, 2], False),
        ((), [2, 40], True),
        (server, [], False),
        (server, [30], True),
    ):
        samples = (
            at_work(tree.root, 50),
            *(at_work(tree.stranger, p, ago_s=0.8 - 0.1 * n) for n, p in enumerate(shares_pct)),
        )
        state = GpuState(compute=server, samples=samples, graphics=graphics)
        found = watched(state, tree.root).foreign_processes
        assert found == ((tree.stranger,) if is_foreign else ()), (graphics, shares_pct)


@pytest.mark.parametrize("is_old_driver", [True, False])
def test_what_a_driver_does_not_say_leaves_the_rest_of_a_reading_as_it_is(
    tree: Tree, *, is_old_driver: bool
) -> None:
    unknown: dict[str, dict[str, Any]] = {
        "nvmlDeviceGetTemperature": {"temperature_c": None},
        "nvmlDeviceGetTotalEnergyConsumption": {"energy_j": None},
        "nvmlDeviceGetComputeRunningProcesses": {"foreign_processes": ()},
        "nvmlDeviceGetGraphicsRunningProcesses": {},
        "nvmlDeviceGetProcessUtilization": {},
    }
    users = (ProcessInfo(tree.root, GIB), ProcessInfo(tree.stranger, GIB))
    state = replace(THROTTLED, compute=users, samples=None)
    for function, changes in unknown.items():
        readings = FakeNvml((A100,), states={A100.uuid: state})
        watch = GpuWatch((A100.uuid,), tree.root, readings)
        watch.sample(12.5)
        if is_old_driver:
            readings.lacks = frozenset({function})
        else:
            readings.fails_at = function
        watch.sample(12.5)
        before, after = watch.readings
        assert after == replace(before, **changes), function
    readings.fails_at = "nvmlDeviceGetHandleByUUID"
    watch.sample(13.0)
    assert len(watch.readings) == 2, "they are kept until they are forgotten"
    watch.reset()
    assert not watch.readings
    for readings in (FakeNvml(library=False), FakeNvml((H100,))):
        silent = GpuWatch((A100.uuid,), None, readings)
        silent.sample(1.0)
        assert silent.readings == ()
