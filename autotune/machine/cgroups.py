"""The limits that control groups put on this process, at every level that can be seen.

Containers limit at the root that they show; Slurm and systemd limit in nested groups below it. A
limit holds for everything beneath it, so the tightest on the way from this process's own group up
to the mount point counts.

Covered: cgroup v1, v2 and both side by side; mounts of a part of the tree; cgroup namespaces, also
those that the process lies outside of. Not covered: limits above what is mounted here, which no
process in here can read; cpusets, which the affinity of the process shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROC = Path("/proc/self")
V2 = "cgroup2"  # the types of file system that the kernel gives the two versions
V1 = "cgroup"


@dataclass(frozen=True)
class Level:
    """A control group that holds this process.

    Attributes:
        path: Its folder.
        version: 1 or 2.
    """

    path: Path
    version: int


@dataclass(frozen=True)
class Throttling:
    """A file that says how long a CPU quota was used up.

    Attributes:
        path: The file.
        key: The line that says it.
        unit_s: Seconds in one unit of that line.
    """

    path: Path
    key: str
    unit_s: float


@dataclass(frozen=True)
class _Mount:
    """A line of /proc/self/mountinfo: which part of which tree lies where."""

    root: PurePosixPath
    point: Path
    kind: str
    options: frozenset[str]


def levels(controller: str, proc: Path = PROC) -> list[Level]:
    """Return the groups of a controller that hold this process, the nearest first.

    Args:
        controller: ``cpu`` or ``memory``.
        proc: The folder with ``cgroup`` and ``mountinfo`` of the process.
    """
    mounts = [m for line in _lines(proc / "mountinfo") if (m := _mount(line)) is not None]
    found: list[Level] = []
    for line in _lines(proc / "cgroup"):
        number, names, place = line.split(":", 2)
        if number == "0" and not names:
            found += _walk(PurePosixPath(place), [m for m in mounts if m.kind == V2], 2)
        elif controller in names.split(","):
            of_controller = [m for m in mounts if m.kind == V1 and controller in m.options]
            found += _walk(PurePosixPath(place), of_controller, 1)
    return found


def cpu_limit(proc: Path = PROC) -> float | None:
    """Return the cores that the tightest quota gives, None where there is none."""
    quotas = [quota for level in levels("cpu", proc) if (quota := _cpu_quota(level)) is not None]
    return min(quotas, default=None)


def memory_limit(proc: Path = PROC) -> int | None:
    """Return the bytes that the tightest limit gives, None where there is none."""
    names = {1: "memory.limit_in_bytes", 2: "memory.max"}
    limits = [_words(level.path / names[level.version]) for level in levels("memory", proc)]
    return min((int(words[0]) for words in limits if words and words[0].isdigit()), default=None)


def throttling(proc: Path = PROC) -> tuple[Throttling, ...]:
    """Return where to read how long quotas were used up: one file per level that has a quota.

    Their sum is what counts: each level stops the process by itself.
    """
    return tuple(
        Throttling(level.path / "cpu.stat", "throttled_usec", 1e-6)
        if level.version == 2
        else Throttling(level.path / "cpu.stat", "throttled_time", 1e-9)
        for level in levels("cpu", proc)
        if _cpu_quota(level) is not None
    )


def _cpu_quota(level: Level) -> float | None:
    if level.version == 2:
        words = _words(level.path / "cpu.max")
    else:
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [word for name in files for word in _words(level.path / name)]
    match words:
        case [quota, period] if quota.isdigit() and int(quota) > 0:
            return int(quota) / int(period)
    return None


def _walk(place: PurePosixPath, mounts: list[_Mount], version: int) -> Iterator[Level]:
    """Yield the folders from a group up to the mount point that shows it best."""
    if not mounts:
        return
    shown = [m for m in mounts if place.is_relative_to(m.root)]
    mount = max(shown or mounts, key=lambda m: len(m.root.parts))
    inner = place.relative_to(mount.root) if shown else PurePosixPath()
    while ".." in inner.parts or not (mount.point / inner).is_dir():
        if inner == PurePosixPath():  # outside this namespace, or not mounted here
            return
        inner = PurePosixPath() if ".." in inner.parts else inner.parent
    for folder in (inner, *inner.parents):
        yield Level(mount.point / folder, version)


def _mount(line: str) -> _Mount | None:
    """Read ``ID PARENT DEVICE ROOT POINT OPTIONS... - KIND SOURCE OPTIONS`` (proc(5))."""
    here, _, there = line.partition(" - ")
    match here.split(), there.split():
        case [_, _, _, root, point, *_], [kind, _, options] if kind in {V1, V2}:
            return _Mount(
                PurePosixPath(_unescaped(root)),
                Path(_unescaped(point)),
                kind,
                frozenset(options.split(",")),
            )
    return None


def _unescaped(text: str) -> str:
    r"""Return a path of mountinfo, in which a space is written ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    return [word for line in _lines(path) for word in line.split()]
