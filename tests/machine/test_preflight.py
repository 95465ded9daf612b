"""Pre-flight: who is busy on this machine is said by name, before anything is measured."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
import pytest

from autotune.machine import fewer_cores, preflight
from autotune.machine.fewer_cores import CoreLimits
from tests.gpu_fakes import THROTTLED, FakeNvml, GpuState, ProcessInfo
from tests.made import A100, H100, make_hardware
from tests.rigging import is_running, talking, wait_for

LOOK_S = 0.5
MANY_CORES = 100_000  # on so many nobody is busy

# Burns a core under a name of its own until nobody listens to it any more, at most for a minute.
BURNER = """
import select, sys, time
from pathlib import Path
Path("/proc/self/comm").write_text("at-" + sys.argv[1])
print("ready", flush=True)
until = time.monotonic() + 60
while time.monotonic() < until and not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(100_000):
        pass
"""

# Starts the burner in a session of its own and ends: the burner is no child of the tests any more.
ORPHANING = f"""
import subprocess, sys
burner = subprocess.Popen(
    [sys.executable, "-c", {BURNER!r}, sys.argv[1]], start_new_session=True
)
print(burner.pid, flush=True)
"""


@pytest.fixture
def stranger() -> Iterator[psutil.Process]:
    """A process that burns a core, and that is not a child of the tests."""
    with talking(ORPHANING, "stranger") as (starter, pid):
        process = psutil.Process(int(pid))
        assert starter.stdout is not None
        assert starter.stdout.readline() == "ready\n"
        starter.wait()
        yield process
    assert wait_for(lambda: not is_running(process.pid)), "the burner should have ended"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return FakeNvml([A100, H100]).install(monkeypatch)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, stranger: psutil.Process) -> None:
    """Nobody but the stranger is on the machine: only the busiest are named."""
    everybody = psutil.process_iter

    def only_the_stranger(attributes: list[str]) -> Iterator[psutil.Process]:
        return (process for process in everybody(attributes) if process.pid == stranger.pid)

    monkeypatch.setattr(psutil, "process_iter", only_the_stranger)


@pytest.mark.usefixtures("alone")
def test_a_process_that_keeps_the_machine_busy_is_named(stranger: psutil.Process) -> None:
    assert preflight.warnings(make_hardware(cpu_quota=MANY_CORES), LOOK_S) == []
    (warning,) = preflight.warnings(make_hardware(cpu_quota=1), LOOK_S)
    assert warning.startswith("The machine is busy: other processes use ")
    assert "of its core (" in warning
    assert f"at-stranger (process {stranger.pid}) " in warning
    assert warning.endswith("end them if you can.")


def test_fewer_cores_than_there_are_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The doctor and a search both print these warnings."""
    bound = CoreLimits(1, 16, 1, "0-15")
    monkeypatch.setattr(fewer_cores, "read", lambda: bound)
    first, *_ = preflight.warnings(make_hardware(cpu_quota=MANY_CORES), 0.05)
    assert first == bound.warning(0)
    assert "taskset -c 0-15 autotune" in first


def test_a_gpu_that_is_slowed_down_is_named_with_its_temperature(gpus: FakeNvml) -> None:
    hardware = make_hardware(cpu_quota=MANY_CORES, gpus=(A100, H100))
    assert preflight.warnings(hardware, 0.05) == []
    gpus.states[H100.uuid] = THROTTLED
    assert preflight.warnings(hardware, 0.05) == [
        f"{H100.name} is slowed down now (hardware slowdown, 93 degrees Celsius).",
        f"{H100.name} is slowed down now (hardware thermal slowdown, 93 degrees Celsius).",
    ]


def test_who_is_on_a_gpu_is_named_but_for_ourselves(
    gpus: FakeNvml, stranger: psutil.Process
) -> None:
    gpus.states[A100.uuid] = GpuState(
        compute=(ProcessInfo(stranger.pid, 1 << 30), ProcessInfo(os.getpid(), 1 << 30))
    )
    hardware = make_hardware(cpu_quota=MANY_CORES, gpus=(A100,))
    assert preflight.warnings(hardware, 0.05) == [
        (
            f"Other processes use {A100.name}: at-stranger (process {stranger.pid}) with 1.0 GiB. "
            "Results will be less certain; end them if you can."
        )
    ]
    gpus.states[A100.uuid] = GpuState(compute=(ProcessInfo(stranger.pid, None),), samples=None)
    (warning,) = preflight.warnings(hardware, 0.05)
    assert f"at-stranger (process {stranger.pid})." in warning, "the driver may not know the size"
    gpus.states[A100.uuid] = GpuState(graphics=(ProcessInfo(stranger.pid, 1 << 29),))
    assert preflight.warnings(hardware, 0.05) == [], "a display server that draws little"
