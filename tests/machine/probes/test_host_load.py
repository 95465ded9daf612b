"""The kernel's counters, over made files and real processes that burn CPU time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.machine.probes.host_load import Counters, HostLoad
from tests.rigging import talking

BURN_S = 0.5  # of CPU time
MAX_OF_IT_S = 0.4  # counters tick 100 times a second, and time is sampled on some kernels
HARDLY_ANY_S = 0.1
ROUNDING_S = 1e-6
NOBODY = (1 << 22) + 7  # beyond Linux's largest process id

BURNER = f"""
import sys, time
while time.process_time() < {BURN_S}:
    pass
print(flush=True)
sys.stdin.read()
"""

# At, cores, busy, ours, steal, pressure, throttled
BEFORE = Counters(100.0, 4, 1000.0, 600.0, 10.0, 5.0, 2.0)
AFTER = Counters(102.0, 4, 1006.0, 604.0, 10.8, 5.5, 2.1)


def test_two_readings_give_shares_of_all_cores_and_of_the_time_or_what_is_unknown() -> None:
    interference = AFTER.since(BEFORE)
    assert interference is not None
    assert interference.foreign_share == pytest.approx(0.25)  # 6 s busy, 4 s ours, of 4 * 2 s
    assert interference.steal_share == pytest.approx(0.1)
    assert interference.pressure_share == pytest.approx(0.25)
    assert interference.throttled_share == pytest.approx(0.05)
    assert AFTER.since(AFTER) is None, "no time has passed"
    late = replace(AFTER, busy_s=1003.0, steal_s=9.0).since(BEFORE)  # ticks
    assert late is not None
    assert late.foreign_share == late.steal_share == 0
    silent = replace(AFTER, steal_s=None, pressure_s=None, throttled_s=None)
    for after, before in ((silent, BEFORE), (AFTER, replace(silent, at_s=100.0))):
        found = after.since(before)
        assert found is not None
        assert found.steal_share is found.pressure_share is found.throttled_share is None


PSI = "some avg10=0.01 avg60=0.20 avg300=0.41 total=1500000\nfull avg10=0.00 total=900000\n"
V2 = "usage_usec 9\nuser_usec 5\nnr_throttled 3\nthrottled_usec 2500000\nnr_bursts 0\n"
V1 = "nr_periods 20\nnr_throttled 3\nthrottled_time 7500000000\n"
NO_QUOTA = "usage_usec 9\nuser_usec 5\n"  # of a cgroup without a quota


def load_over(folder: Path, **files: str) -> HostLoad:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return HostLoad(NOBODY, [folder / "none", folder / "psi"], [folder / "v2", folder / "v1"])


@pytest.mark.parametrize(
    ("files", "throttled_s"),
    [
        ({"v2": V2}, 2.5),
        ({"v1": V1}, 7.5),
        ({"v2": V2, "v1": V1}, 10.0),
        ({"v2": NO_QUOTA, "v1": V1}, 7.5),
        ({"v2": NO_QUOTA}, None),
        ({}, None),
    ],
    ids=["v2", "v1", "both", "v2 without a quota", "no quota", "no cgroups"],
)
def test_throttled_time_is_read_from_either_version_of_cgroups_and_adds_up(
    tmp_path: Path, files: dict[str, str], throttled_s: float | None
) -> None:
    assert load_over(tmp_path, **files).read().throttled_s == pytest.approx(throttled_s)


def test_pressure_is_the_time_in_which_some_task_waited_if_the_kernel_tells(tmp_path: Path) -> None:
    assert load_over(tmp_path).read().pressure_s is None
    assert load_over(tmp_path, psi=PSI).read().pressure_s == pytest.approx(1.5)
    (tmp_path / "psi").unlink()
    (tmp_path / "psi").mkdir()  # reading fails, as where PSI was switched off at boot
    assert load_over(tmp_path).read().pressure_s is None


def test_a_process_that_is_not_ours_is_foreign() -> None:
    load = HostLoad(NOBODY)
    before = load.read()
    with talking(BURNER):
        after = load.read()
    interference = after.since(before)
    assert after.ours_s - before.ours_s < HARDLY_ANY_S
    assert interference is not None
    assert interference.foreign_share is not None
    foreign_s = interference.foreign_share * after.cores * (after.at_s - before.at_s)
    assert foreign_s >= MAX_OF_IT_S


# A daemon of a program that has mounts of its own; the daemon is no descendant of the program
DAEMON = f"""
import os, sys, time
from autotune.machine.probes.host_load import HostLoad
from autotune.rig.fence import kernel
kernel.unshare(kernel.CLONE_NEWNS | (kernel.CLONE_NEWUSER if os.geteuid() else 0))
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write, str(os.getpid()).encode())
        while time.process_time() < {BURN_S}:
            pass
        time.sleep(60)
    os._exit(0)
os.wait()
daemon = int(os.read(read, 9))
load = HostLoad(os.getppid())
before = load.read()
while load.read().helpers_s.get(daemon, 0) < {MAX_OF_IT_S}:
    time.sleep(0.05)
after = load.read()
print(after.helpers_s[daemon] - before.helpers_s[daemon], after.ours_s - before.ours_s, flush=True)
os.kill(daemon, 9)
"""


def test_a_daemon_that_the_program_has_started_is_the_programs() -> None:
    with talking(DAEMON) as (process, line):
        if not line:
            pytest.skip("this user may have no mounts of its own")
        helped_s, ours_s = map(float, line.split())
        assert process.wait() == 0
    assert helped_s > 0
    assert ours_s < MAX_OF_IT_S, "it is counted once"
    after = replace(AFTER, helpers_s={7: 1.5, 8: 9.0})
    helped = after.since(replace(BEFORE, helpers_s={7: 0.5}))
    assert helped is not None
    assert helped.foreign_share == pytest.approx(0.125), "of what began meanwhile, nothing is known"
