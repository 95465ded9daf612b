"""Limits of control groups, read from made trees: both versions, nested, mixed, namespaced."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.machine.cgroups import cpu_limit, cpu_quotas, levels, memory_limit

GIB = 1 << 30
V1_UNLIMITED = "9223372036854771712\n"


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files below a folder, with the folders that they lie in."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def tree(folder: Path, cgroup: str, mounts: str, files: Mapping[str, str]) -> Path:
    """Write groups and what /proc says of them; return that folder of /proc.

    *mounts* are lines ``ROOT POINT KIND OPTIONS``, with points and files below *folder*.
    """
    lines = [
        f"31 23 0:28 {root} {str(folder / point).replace(' ', chr(92) + '040')} rw,relatime "
        f"shared:9 - {kind} {kind} {options}\n"
        for root, point, kind, options in (line.split() for line in mounts.splitlines())
    ]
    write(folder, {**files, "proc/cgroup": cgroup, "proc/mountinfo": "".join(lines)})
    return folder / "proc"


def paths(folder: Path, proc: Path, controller: str = "cpu") -> list[str]:
    return [str(level.path.relative_to(folder)) for level in levels(controller, proc)]


def test_a_nested_group_of_v2_is_limited_by_the_tightest_level_above_it(tmp_path: Path) -> None:
    place = tmp_path / "with a space"
    proc = tree(
        place,
        "0::/system.slice/slurmstepd.scope/job_7/step_0\n",
        "/ cg cgroup2 rw",
        {
            "cg/system.slice/slurmstepd.scope/job_7/cpu.max": "200000 100000\n",
            "cg/system.slice/slurmstepd.scope/job_7/memory.max": f"{4 * GIB}\n",
            "cg/system.slice/slurmstepd.scope/job_7/step_0/cpu.max": "max 100000\n",
            "cg/system.slice/slurmstepd.scope/job_7/step_0/memory.max": f"{8 * GIB}\n",
            "cg/system.slice/cpu.max": "1600000 100000\n",
        },
    )
    assert cpu_limit(proc) == 2
    assert memory_limit(proc) == 4 * GIB
    assert [path.name for path in cpu_quotas(proc)] == ["job_7", "system.slice"]
    assert paths(place, proc)[0].endswith("step_0")
    assert paths(place, proc)[-1] == "cg"


def test_nested_groups_of_v1_are_read_for_each_controller(tmp_path: Path) -> None:
    proc = tree(
        tmp_path,
        "5:memory:/slurm/uid_1/job_7\n4:cpu,cpuacct:/slurm/uid_1/job_7\n1:name=systemd:/x\n",
        "/ cpu,cpuacct cgroup rw,cpu,cpuacct\n/ memory cgroup rw,memory",
        {
            "cpu,cpuacct/slurm/uid_1/cpu.cfs_quota_us": "300000\n",
            "cpu,cpuacct/slurm/uid_1/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/slurm/uid_1/job_7/cpu.cfs_quota_us": "-1\n",
            "cpu,cpuacct/slurm/uid_1/job_7/cpu.cfs_period_us": "100000\n",
            "memory/slurm/uid_1/job_7/memory.limit_in_bytes": f"{2 * GIB}\n",
            "memory/memory.limit_in_bytes": V1_UNLIMITED,
        },
    )
    assert cpu_limit(proc) == 3
    assert memory_limit(proc) == 2 * GIB
    assert cpu_quotas(proc) == {tmp_path / "cpu,cpuacct/slurm/uid_1": 3}


@pytest.mark.parametrize(
    ("cgroup", "root"),
    [
        ("0::/", "/"),  # a namespace of its own
        ("0::/docker/abc", "/docker/abc"),  # none, and the container's part is mounted
        ("0::/../other", "/"),  # in another group than the namespace begins at
        ("0::/kubepods/gone", "/"),  # a path of the host's, which is not mounted here
        ("0::/..", "/.."),
    ],
)
def test_a_container_is_limited_by_what_it_can_see(tmp_path: Path, cgroup: str, root: str) -> None:
    files = {"cg/cpu.max": "50000 100000\n", "cg/memory.max": f"{GIB}\n"}
    proc = tree(tmp_path, f"{cgroup}\n", f"{root} cg cgroup2 rw", files)
    assert cpu_limit(proc) == 0.5
    assert memory_limit(proc) == GIB
    assert paths(tmp_path, proc) == ["cg"]


def test_without_limits_or_groups_there_is_none(tmp_path: Path) -> None:
    free = tree(tmp_path, "0::/\n", "/ cg cgroup2 rw", {"cg/memory.max": "max\n"})
    for proc in (free, tmp_path / "no proc"):
        assert cpu_limit(proc) is None
        assert memory_limit(proc) is None
        assert cpu_quotas(proc) == {}
