"""Wording: how figures read, alike in the console, the report and the files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autotune.machine.hardware import Hardware
from autotune.measurement.interval import Interval

UNKNOWN = 100.0  # ratio of the bounds of an interval from which its figures mean nothing
MINUTE, HOUR = 60, 3600


def format_duration(seconds: float) -> str:
    """Return a duration that has passed, or is left: ``45s``, ``3m 05s``, ``1h 02m``.

    It is rounded to whole seconds; a negative duration, such as an overdrawn budget, is ``0s``.
    """
    whole = max(0, round(seconds))
    if whole < MINUTE:
        return f"{whole}s"
    if whole < HOUR:
        return f"{whole // MINUTE}m {whole % MINUTE:02d}s"
    return f"{whole // HOUR}h {whole % HOUR // MINUTE:02d}m"


def estimated_duration(seconds: float) -> str:
    """Return a duration that was estimated: two digits of a short one, minutes of a long one."""
    if seconds < MINUTE:
        return f"{seconds:.2g} s"
    if seconds < HOUR:
        minutes = seconds / MINUTE
        return f"{minutes:.2g} min" if minutes < 10 else f"{minutes:.0f} min"
    return f"{seconds // HOUR:.0f} h {seconds % HOUR // MINUTE:02.0f} min"


def by_reason(refused: Mapping[str, str]) -> dict[str, list[str]]:
    """Return refused knobs grouped by reason, so that each reason is said once."""
    found: dict[str, list[str]] = {}
    for knob, reason in refused.items():
        found.setdefault(reason, []).append(knob)
    return found


def bounds(interval: Interval) -> str:
    """Return an interval's bounds with decimals that fit its size: ``[1.45, 1.59]``.

    Bounds that are far apart say no more than that nothing is known.
    """
    if interval.high > UNKNOWN * interval.low:
        return "[too uncertain to say]"
    digits = 2 if interval.estimate < 100 else 0
    return f"[{interval.low:,.{digits}f}, {interval.high:,.{digits}f}]"


def times(speedup: Interval) -> str:
    """Return a speedup with its bounds: ``1.52x [1.45, 1.59]``."""
    return f"{speedup.estimate:.2f}x {bounds(speedup)}"


def rate(interval: Interval) -> str:
    """Return samples per second with their bounds."""
    digits = 1 if interval.estimate < 100 else 0
    return f"{interval.estimate:,.{digits}f} {bounds(interval)}"


def gib(size_bytes: int | None) -> str:
    """Return a size in GiB; ``unknown`` without one."""
    return "unknown" if size_bytes is None else f"{size_bytes / 2**30:,.2f} GiB"


def machine(hardware: Hardware) -> str:
    """Return a machine and the versions that figures belong to, on one line."""
    gpus = ", ".join(gpu.name for gpu in hardware.gpus) or "no GPU"
    versions = ", ".join(f"{name} {number}" for name, number in hardware.versions.items())
    return f"{hardware.cpu_name}, {hardware.cpu_quota} cores, {gpus}; {versions}"


def as_typed(path: Path) -> Path:
    """Return a path as people would type it in the current directory."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
