"""Wording: how figures read, alike in the console, the report and the files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.machine.hardware import Hardware
from autotune.measurement.interval import Interval

UNKNOWN = 100.0  # ratio of the bounds of an interval from which its figures mean nothing
MINUTE, HOUR = 60, 3600
SHORT = 100  # seconds, up to which people say seconds
WIDE_PCT = 10.0  # half of an interval, from which a third digit of its estimate means nothing


def format_duration(seconds: float) -> str:
    """Return a duration as people say it: ``45 s``, ``2m 28s``, ``24m``, ``3 h 10 min``.

    A negative duration, such as an overdrawn budget, is ``0 s``.
    """
    whole = round(printed_duration(seconds))
    if whole < SHORT:
        return f"{whole} s"
    if whole < HOUR:
        minutes, rest = divmod(whole, MINUTE)
        return f"{minutes}m {rest:02d}s" if rest else f"{minutes}m"
    hours, minutes = divmod(whole // MINUTE, MINUTE)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def printed_duration(seconds: float) -> float:
    """Return the seconds that ``format_duration`` prints: whole ones, from 10 minutes minutes."""
    whole = max(0, round(seconds))
    return whole if whole < 10 * MINUTE else MINUTE * round(whole / MINUTE)


def typed_duration(seconds: float) -> str:
    """Return a duration to type as a budget, rounded up to 10 s: ``4m20s``, ``9m``."""
    whole = 10 * math.ceil(seconds / 10)
    minutes, rest = divmod(whole, MINUTE)
    if not minutes:
        return f"{rest}s"
    return f"{minutes}m{rest}s" if rest else f"{minutes}m"


def measured_duration(seconds: float) -> str:
    """Return a short duration that was measured, in three digits: ``21.1 ms``, ``3.51 s``."""
    return f"{number(seconds)} s" if seconds >= 1 else f"{number(1000 * seconds)} ms"


def percent(share: float) -> str:
    """Return a share of 1: ``55 %``."""
    return f"{100 * share:.0f} %"


def by_reason(refused: Mapping[str, str]) -> dict[str, list[str]]:
    """Return refused knobs grouped by reason, so that each reason is said once."""
    found: dict[str, list[str]] = {}
    for knob, reason in refused.items():
        found.setdefault(reason, []).append(knob)
    return found


def listing(items: Sequence[str], room: int) -> str:
    """Return items on one line, as many as a room in columns holds: ``workers, threads + 3 more``.

    The first one is always there.
    """
    said = ", ".join(items)
    for left_out in range(1, len(items)):
        if len(said) <= room:
            break
        said = f"{', '.join(items[:-left_out])} + {left_out} more"
    return said


def printed(speedup: Interval) -> Interval:
    """Return a speedup as it is printed: two digits where it is not known within 10 %, else three.

    The bounds have as many decimals as the estimate, or two where one would read as no gain.
    """
    rounded, decimals = round(speedup.estimate, _decimals(speedup)), _decimals_of_bounds(speedup)
    low, high = round(speedup.low, decimals), round(speedup.high, decimals)
    return Interval(rounded, min(low, rounded), max(high, rounded))


def factor(speedup: Interval) -> str:
    """Return a speedup without its interval: ``1.6x``, ``1.48x``."""
    return f"{speedup.estimate:,.{_decimals(speedup)}f}x"


def bounds(interval: Interval) -> tuple[str, str]:
    """Return the bounds of a speedup: ``1.1x``, ``2.3x``."""
    decimals = _decimals_of_bounds(interval)
    return f"{interval.low:,.{decimals}f}x", f"{interval.high:,.{decimals}f}x"


def times(speedup: Interval) -> str:
    """Return a speedup with its interval: ``1.48x (95 %: 1.42x to 1.54x)``.

    Bounds that are far apart say no more than that nothing is known.
    """
    if speedup.high > UNKNOWN * speedup.low:
        return f"{factor(speedup)} (too uncertain to say)"
    return "{} (95 %: {} to {})".format(factor(speedup), *bounds(speedup))


def _decimals(speedup: Interval) -> int:
    digits = 2 if speedup.half_width_pct > WIDE_PCT else 3
    return max(0, digits - 1 - math.floor(math.log10(max(1.0, speedup.estimate))))


def _decimals_of_bounds(speedup: Interval) -> int:
    decimals = max(_decimals(speedup), 1 if speedup.low < 1.0 else 0)  # 0.6x does not read 1x
    return max(decimals, 2) if round(speedup.low, decimals) <= 1.0 < speedup.low else decimals


def number(value: float) -> str:
    """Return a measured quantity: ``17,579``, ``924``, ``3.21``."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def about(value: float) -> float:
    """Return a computed quantity as it is printed, with three digits."""
    return float(f"{value:.2e}")


def rate(interval: Interval) -> str:
    """Return samples per second with their range, where there is one: ``908 (870 to 950)``."""
    said = number(interval.estimate)
    low, high = number(interval.low), number(interval.high)
    return said if low == high else f"{said} ({low} to {high})"


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
