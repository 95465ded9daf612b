"""DoctorReport: what ``autotune doctor train.py`` measured of a program as it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from autotune.machine.hardware import Hardware, peak_flops
from autotune.measurement.examination import Examination, StepBreakdown
from autotune.measurement.measurement import Measurement, warnings_of
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
    def data_gain(self) -> float:
        """Speedup with data always ready; at least 1.0; 1.0 if that was not measured.

        The two were not measured at the same time. Without workers, loading takes nothing but
        the time that the program waits, so more than that cannot be gained.
        """
        ready = self.breakdown.synthetic_data_throughput
        now = self.measurement.throughput.estimate
        gain = max(1.0, ready.estimate / now) if ready is not None and now else 1.0
        has_workers = any(loader.num_workers for loader in self.profile.loaders)
        return gain if has_workers else min(gain, share_gain(self.measurement.wait_share))

    @property
    def dtype(self) -> str:
        """The data type of most of the arithmetic: "bf16", "fp16", "tf32" or "fp32".

        On CUDA, torch lets convolutions use TF32 by default, so a model with some counts as "tf32".
        """
        profile = self.profile
        autocast = {"bfloat16": "bf16", "float16": "fp16"}.get(profile.precision.autocast or "")
        has_tf32 = profile.device == "cuda" and profile.model.conv2d_layers
        return autocast or ("tf32" if has_tf32 else "fp32")

    @property
    def roofline_share(self) -> float | None:
        """Achieved FLOP/s as a share of the GPU's peak for ``dtype``; None where a part is unknown.

        It is not clipped: more than 1 shows that the FLOPs or the dtype are wrong.
        """
        flops, gpus = self.breakdown.flops_per_step, self.hardware.used_gpus
        if flops is None or not gpus or self.profile.device != "cuda":
            return None
        peak = peak_flops(gpus[0].name, self.dtype)
        return None if peak is None else flops / self.measurement.step_s / peak

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to distrust these figures, one sentence each, for the user."""
        half = self.measurement.throughput.half_width_pct
        wide = [f"The interval is wide (+-{half:.0f} %): the program is uneven."]
        found = (*warnings_of([self.measurement]), *(wide if half > WIDE_PCT else ()))
        return tuple(dict.fromkeys(found))


def share_gain(share: float) -> float:
    """Return the speedup if a share of the time is taken away altogether."""
    return 1 / (1 - min(share, 0.95))


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
