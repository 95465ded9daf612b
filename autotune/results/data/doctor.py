"""An examination as data: what ``autotune doctor --json`` prints, as models with a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from autotune.machine.conditions import Conditions
from autotune.machine.hardware import Hardware
from autotune.measurement.examination import Examination, StepBreakdown
from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement
from autotune.program.profile import Profile
from autotune.results.advice import Advice, advise
from autotune.results.data.part import Part
from autotune.results.doctor_report import DoctorReport


class MachinePart(Part):
    """The machine.

    Attributes:
        conditions: What surrounds its processes: quotas, clocks, driver.
        warnings: What slows it down, and who else uses it, as sentences.
        fence: What keeps a program from changing files of the user, as a sentence.
    """

    hardware: Hardware
    conditions: Conditions
    warnings: tuple[str, ...]
    fence: str


class ExaminedPart(Part):
    """What was measured of a program as it is written, and what follows from it.

    Attributes:
        tokens_per_s: Padding included; null if the input is not token ids.
        step_s: Duration of an optimizer step.
        wait_share: Share of the time that the program waits for its next batch, 0 to 1.
        parts: Seconds of each part of a step, by name; null if no step could be profiled.
        roofline_share: Achieved FLOP/s as a share of the GPU's peak; null if that is unknown.
        joules_per_sample: Null without a counter of energy.
        advice: What is worth a change, the largest possible gain first.
        measurement: All figures of its speed and memory.
        warnings: Reasons to doubt the figures, as sentences.
        notes: What could not be measured, as sentences.
    """

    command: str
    samples_per_s: Interval
    tokens_per_s: Interval | None
    step_s: float
    wait_share: float
    parts: dict[str, float] | None
    roofline_share: float | None
    joules_per_sample: float | None
    advice: tuple[Advice, ...]
    measurement: Measurement
    breakdown: StepBreakdown
    examination: Examination
    profile: Profile
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


class DoctorData(Part):
    """What was found out about a machine, and about a program on it.

    Attributes:
        number: Of this format.
        program: Null where the machine alone was looked at.
    """

    number: Literal[1] = Field(default=1, alias="schema")
    machine: MachinePart
    program: ExaminedPart | None


def machine_part(
    hardware: Hardware, conditions: Conditions, busy: Sequence[str], fence: str
) -> MachinePart:
    """Return a machine as data.

    Args:
        busy: Who else uses it, as sentences.
        fence: What keeps a program from changing files, as a sentence.
    """
    return MachinePart(
        hardware=hardware,
        conditions=conditions,
        warnings=(*hardware.warnings, *conditions.warnings, *busy),
        fence=fence,
    )


def examined_part(report: DoctorReport) -> ExaminedPart:
    """Return a program's figures and the advice on it as data."""
    measured = report.measurement
    return ExaminedPart(
        command=report.command,
        samples_per_s=measured.throughput,
        tokens_per_s=measured.tokens_per_s,
        step_s=measured.step_s,
        wait_share=measured.wait_share,
        parts=dict(report.parts_s) or None,
        roofline_share=report.roofline_share,
        joules_per_sample=measured.joules_per_sample,
        advice=advise(report),
        measurement=measured,
        breakdown=report.breakdown,
        examination=report.examination,
        profile=report.profile,
        warnings=report.warnings,
        notes=report.notes,
    )
