"""MeasureReport: what one config of a program does on this machine, measured and not compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autotune.machine.hardware import Hardware
from autotune.machine.roofline import roofline_share
from autotune.measurement.measurement import Interval, Measurement, StepBreakdown, warnings_of
from autotune.measurement.stats import spread
from autotune.program.config import Config
from autotune.program.profile import Profile

WIDE_PCT = 5.0


@dataclass(frozen=True)
class MeasureReport:
    """One config of a program.

    Attributes:
        command: The program with its arguments.
        config: What it ran under; the program's own unless a best.yaml was given.
        profile: What its first steps revealed, under that config.
        measurements: One per fresh process, in order.
        breakdown: Of the first process.
        machine_doubts: What made the machine a poor place to measure.
    """

    command: str
    config: Config
    hardware: Hardware
    profile: Profile
    measurements: tuple[Measurement, ...]
    breakdown: StepBreakdown = field(default_factory=StepBreakdown)
    machine_doubts: tuple[str, ...] = ()

    @property
    def throughput(self) -> Interval:
        """Samples/s: the median of the processes with their range, or the one with its interval."""
        return spread([m.throughput for m in self.measurements])

    @property
    def tokens_per_s(self) -> Interval | None:
        """The same in tokens, None where the model's input is none."""
        rates = [r for m in self.measurements if (r := m.tokens_per_s) is not None]
        return spread(rates) if rates else None

    @property
    def step_s(self) -> float:
        """Mean seconds of a step in the first process, where it was taken apart."""
        return self.measurements[0].step_s

    @property
    def dtype(self) -> str:
        """What most of the arithmetic runs in; torch lets convolutions use tf32 by default."""
        own = {"bfloat16": "bf16", "float16": "fp16"}.get(self.profile.program_autocast or "")
        if own or self.config.get("precision", "fp32") != "fp32":
            return own or str(self.config["precision"])
        return "tf32" if self.profile.device == "cuda" and self.profile.conv2d_layers else "fp32"

    @property
    def roofline_share(self) -> float | None:
        """Achieved over peak FLOP/s, None where either is unknown."""
        names = [gpu.name for gpu in self.hardware.gpus] if self.profile.device == "cuda" else []
        return roofline_share(self.breakdown.flops_per_step, self.step_s, names[:1], self.dtype)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why these figures may not be the last word, as sentences for the user."""
        return (*self.machine_doubts, *dict.fromkeys(self._doubts()))

    def _doubts(self) -> Iterator[str]:
        yield from warnings_of(self.measurements)
        rate = self.throughput
        if rate.half_width_pct > WIDE_PCT and len(self.measurements) > 1:
            yield (
                f"Fresh processes differ by {2 * rate.half_width_pct:.0f} % in speed. Compare "
                "configs by ratios within one process, as a search does, not by these figures."
            )
        elif rate.half_width_pct > WIDE_PCT:
            yield f"The interval is wide (+-{rate.half_width_pct:.0f} %): the program is uneven."
