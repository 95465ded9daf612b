"""The CPU and memory limits that control groups put on this process.

Containers set limits at the root group that they show; Slurm and systemd set them in nested groups
below it. A limit applies to everything beneath it. The effective limit is therefore the tightest
one between this process's own group and the mount point.

Covered: cgroup v1, v2 and both at once; mounts of a part of the tree; cgroup namespaces, including
a process outside of the namespace it sees. Not covered: limits above what is mounted here, which no
process in the container can read; cpusets, which the process's CPU affinity already shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from autotune.machine.kernel_files import text_of, unescaped

PROC = Path("/proc/self")
V2 = "cgroup2"  # the kernel's file system types for the two versions
V1 = "cgroup"


class Level(NamedTuple):
    """A control group that contains this process: its folder, and the version 1 or 2."""

    path: Path
    version: int


@dataclass(frozen=True)
class _Mount:
    """One cgroup mount from /proc/self/mountinfo: which part of a hierarchy is mounted where."""

    root: PurePosixPath
    point: Path
    kind: str
    options: frozenset[str]


def levels(controller: str, proc: Path = PROC) -> list[Level]:
    """Return the groups of a controller that contain this process, the innermost first."""
    mounts = [
        m for line in text_of(proc / "mountinfo").splitlines() if (m := _mount(line)) is not None
    ]
    found: list[Level] = []
    for line in text_of(proc / "cgroup").splitlines():
        number, names, place = line.split(":", 2)
        if number == "0" and not names:  # the entry of v2, see cgroups(7)
            found += _walk(PurePosixPath(place), [m for m in mounts if m.kind == V2], 2)
        elif controller in names.split(","):
            of_controller = [m for m in mounts if m.kind == V1 and controller in m.options]
            found += _walk(PurePosixPath(place), of_controller, 1)
    return found


def cpu_limit(proc: Path = PROC) -> float | None:
    """Return the cores that the tightest CPU quota allows, as a fraction; None without a quota."""
    return min(cpu_quotas(proc).values(), default=None)


def cpu_quotas(proc: Path = PROC) -> dict[Path, float]:
    """Return the quotas that hold for this process: cores as a fraction, by the group's folder."""
    return {
        level.path: quota
        for level in levels("cpu", proc)
        if (quota := _cpu_quota(level)) is not None
    }


def memory_limit(proc: Path = PROC) -> int | None:
    """Return the tightest memory limit in bytes, or None without a limit."""
    names = {1: "memory.limit_in_bytes", 2: "memory.max"}
    files = [level.path / names[level.version] for level in levels("memory", proc)]
    limits = [text_of(path).strip() for path in files]
    # Without a limit, v2 says "max"; v1 says a number larger than any memory.
    return min((int(limit) for limit in limits if limit.isdigit()), default=None)


def _cpu_quota(level: Level) -> float | None:
    files = ("cpu.max",) if level.version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    words = [word for name in files for word in text_of(level.path / name).split()]
    match words:
        # Without a quota, v2 says "max" and v1 says -1; neither consists of digits alone.
        case [quota, period] if quota.isdigit() and int(quota) > 0:
            return int(quota) / int(period)
    return None


def _walk(place: PurePosixPath, mounts: list[_Mount], version: int) -> Iterator[Level]:
    """Yield the folders from a group up to the mount point whose root is nearest to the group."""
    if not mounts:
        return
    shown = [m for m in mounts if place.is_relative_to(m.root)]
    mount = max(shown or mounts, key=lambda m: len(m.root.parts))
    inner = place.relative_to(mount.root) if shown else PurePosixPath()
    # A group that is not visible from here is replaced by the nearest visible folder above it.
    while ".." in inner.parts or not (mount.point / inner).is_dir():
        if inner == PurePosixPath():  # outside this namespace, or not mounted here
            return
        inner = PurePosixPath() if ".." in inner.parts else inner.parent
    for folder in (inner, *inner.parents):
        yield Level(mount.point / folder, version)


def _mount(line: str) -> _Mount | None:
    """Parse a line ``ID PARENT DEVICE ROOT POINT OPTIONS... - KIND SOURCE OPTIONS`` (proc(5)).

    None if the mount is not a cgroup hierarchy.
    """
    here, _, there = line.partition(" - ")
    match here.split(), there.split():
        case [_, _, _, root, point, *_], [kind, _, options] if kind in {V1, V2}:
            return _Mount(
                PurePosixPath(unescaped(root)),
                Path(unescaped(point)),
                kind,
                frozenset(options.split(",")),
            )
    return None
