"""DoctorReport: what ``autotune doctor train.py`` measured of a program as it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from autotune.machine.hardware import Hardware, peak_flops
from autotune.measurement import limit
from autotune.measurement.examination import Examination, StepBreakdown
from autotune.measurement.measurement import Measurement, disturbance_of, warnings_of
from autotune.program.profile import Profile

WIDE_PCT = 5.0  # half-width of the throughput's interval above which the user is warned
WARM_UP = 1  # first readings of memory that are left out: allocators still grow
STEADY = 2.5  # stretches add the same up to this factor
MANY = 5  # stretches
MIN_BYTES = 1 << 20  # in a stretch; what interpreter and allocator gain and lose comes to less


@dataclass(frozen=True)
class DoctorReport:
    """What was measured of a program as it is written; ``advise()`` says what follows from it.

    Attributes:
        measurement: Its speed, while nothing else was watched.
        again: Its speed and the loads of its ranks, measured further times; of several ranks only.
        notes: What could not be measured, as sentences.
    """

    command: str
    hardware: Hardware
    profile: Profile
    measurement: Measurement
    breakdown: StepBreakdown = field(default_factory=StepBreakdown)
    examination: Examination = field(default_factory=Examination)
    again: tuple[Measurement, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def parts_s(self) -> Mapping[str, float]:
        """Seconds of each part of a step, which add up to the measured one; empty if not profiled.

        Their shares are those of profiled steps, which the profile itself makes longer.
        """
        split, step_s = self.breakdown.split, self.measurement.step_s
        if split is None:
            return {}
        return {name: step_s * part / split.step_s for name, part in split.parts.items()}

    @property
    def data_gain(self) -> float:
        """Speedup with data always ready; at least 1.0; 1.0 if that was not measured."""
        return data_gain(self.profile, self.measurement, self.breakdown)

    @property
    def roofline_share(self) -> float | None:
        """Achieved FLOP/s as a share of the GPU's peak; None where a part is unknown."""
        step_s = self.measurement.step_s
        return roofline_share(self.profile, self.hardware, self.breakdown, step_s)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to distrust these figures, one sentence each, for the user."""
        half = self.measurement.throughput.half_width_pct
        wide = [f"The interval is wide (± {half:.0f} %): the program is uneven."]
        busy = disturbance_of([self.measurement])
        disturbed = [f"{busy[0].upper()}{busy[1:]}: that makes the interval wider."] if busy else []
        own = warnings_of([self.measurement])
        found = (*disturbed, *own, *(wide if half > WIDE_PCT else ()))
        return tuple(dict.fromkeys(found))


def data_gain(profile: Profile, measurement: Measurement, breakdown: StepBreakdown) -> float:
    """Return the speedup with data always ready; at least 1.0; 1.0 if that was not measured."""
    has_workers = any(loader.num_workers for loader in profile.loaders)
    now, wait_share = measurement.throughput.estimate, measurement.wait_share
    return limit.data_gain(breakdown, now, wait_share, has_workers=has_workers)


def roofline_share(
    profile: Profile, hardware: Hardware, breakdown: StepBreakdown, step_s: float
) -> float | None:
    """Return the achieved FLOP/s as a share of the GPU's peak; None where a part is unknown.

    It is not clipped: more than 1 shows that the FLOPs or the dtype are wrong.
    """
    flops, gpus = breakdown.flops_per_step, hardware.used_gpus
    if flops is None or not gpus or profile.device != "cuda":
        return None
    peak = peak_flops(gpus[0].name, profile.arithmetic)
    return None if peak is None else flops / step_s / peak


def growth_per_step(readings: Sequence[int], steps: int) -> float:
    """Return the bytes by which memory grows with each step; 0.0 if not steadily.

    Args:
        readings: After each stretch.
        steps: Of a stretch.
    """
    added = [after - before for before, after in pairwise(readings[WARM_UP:])]
    if not added or not steps:
        return 0.0
    usual = median(added)
    alike = sum(usual / STEADY <= one <= usual * STEADY for one in added)
    # One of many may differ: allocators give memory back at any time
    is_steady = usual > 0 and alike >= len(added) - (len(added) >= MANY)
    return usual / steps if is_steady and usual >= MIN_BYTES else 0.0
