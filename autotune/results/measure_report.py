"""MeasureReport: how one config of a program performs on this machine, without a comparison.

``autotune measure`` shows it and can print it as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autotune.machine.hardware import Hardware
from autotune.machine.roofline import roofline_share
from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement, warnings_of
from autotune.measurement.stats import spread
from autotune.measurement.step_breakdown import StepBreakdown
from autotune.program.config import Config
from autotune.program.profile import Profile

WIDE_PCT = 5.0  # half-width of the throughput's interval above which the user is warned


@dataclass(frozen=True)
class MeasureReport:
    """What was measured of one config, in one or more fresh processes.

    Attributes:
        command: The program with its arguments.
        config: What it ran under: a best.yaml's config, or the program's values of the knobs.
        hardware: The machine that it ran on.
        profile: What its first steps revealed, under that config.
        measurements: One per fresh process, in order; never empty.
        breakdown: Where the time of a step goes, in the first process; empty if not profiled.
        machine_doubts: Why this machine was a poor place to measure, one sentence each.
    """

    command: str
    config: Config
    hardware: Hardware
    profile: Profile
    measurements: tuple[Measurement, ...]
    breakdown: StepBreakdown = field(default_factory=StepBreakdown)
    machine_warnings: tuple[str, ...] = ()

    @property
    def throughput(self) -> Interval:
        """Samples per second, end to end.

        With several processes the median and range of theirs; with one, its estimate and 95 %
        interval.
        """
        return spread([m.throughput for m in self.measurements])

    @property
    def tokens_per_s(self) -> Interval | None:
        """Tokens per second, as ``throughput``; None if the model's input is not token ids."""
        rates = [r for m in self.measurements if (r := m.tokens_per_s) is not None]
        return spread(rates) if rates else None

    @property
    def step_s(self) -> float:
        """Mean seconds of a step in the first process.

        The other processes are left out, because the breakdown is of the first one too.
        """
        return self.measurements[0].step_s

    @property
    def dtype(self) -> str:
        """The data type of most of the arithmetic: "bf16", "fp16", "tf32" or "fp32".

        The program's autocast comes first, then the precision knob. On CUDA, torch lets
        convolutions use TF32 by default, so a model with some counts as "tf32".
        """
        own = {"bfloat16": "bf16", "float16": "fp16"}.get(self.profile.precision.autocast or "")
        if own or self.config.get("precision", "fp32") != "fp32":
            return own or str(self.config["precision"])
        return (
            "tf32" if self.profile.device == "cuda" and self.profile.model.conv2d_layers else "fp32"
        )

    @property
    def roofline_share(self) -> float | None:
        """Achieved FLOP/s as a share of the GPU's peak for ``dtype``, 0 to 1.

        None if the FLOPs of a step or the peak are unknown, as on a CPU.
        """
        names = (
            [gpu.name for gpu in self.hardware.used_gpus] if self.profile.device == "cuda" else []
        )
        return roofline_share(self.breakdown.flops_per_step, self.step_s, names[:1], self.dtype)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to distrust these figures, one sentence each, for the user.

        They come from the machine, from the measurements and from the spread between processes.
        """
        return (*self.machine_warnings, *dict.fromkeys(self._warnings()))

    def _warnings(self) -> Iterator[str]:
        yield from warnings_of(self.measurements)
        rate = self.throughput
        if rate.half_width_pct > WIDE_PCT and len(self.measurements) > 1:
            yield (
                f"Fresh processes differ by {2 * rate.half_width_pct:.0f} % in speed. Compare "
                "configs by ratios within one process, as a search does, not by these figures."
            )
        elif rate.half_width_pct > WIDE_PCT:
            yield f"The interval is wide (+-{rate.half_width_pct:.0f} %): the program is uneven."
