"""A comparison as data: what ``autotune compare --json`` prints, as models with a number."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from autotune.measurement.gate import Verdict
from autotune.measurement.learning.training_trace import Sameness
from autotune.program.config import KnobValue
from autotune.results.bestfile import Rounded
from autotune.results.data.part import Part


class Difference(StrEnum):
    """How a comparison came out, of the second side as users read it.

    - ``FASTER``, ``SLOWER``: the interval of the speedup lies above or below 1.
    - ``NONE``: the interval holds 1.
    - ``UNCONFIRMED``: it does not hold 1, but there were too few processes to rely on it.
    """

    FASTER = "faster"
    SLOWER = "slower"
    NONE = "no difference to be seen"
    UNCONFIRMED = "not confirmed"


class SidePart(Part):
    """One of the two sides.

    Attributes:
        name: What was typed for it.
        commit: Full name of the commit; null for the files of today.
        samples_per_step: Mean number of samples in an optimizer step.
    """

    name: str
    commit: str | None
    samples_per_s: float
    samples_per_step: float


class TrainingPart(Part):
    """Whether a config trains what the program as written trains.

    Attributes:
        sameness: Of what must stay the same; null if the config changes nothing of this kind.
        is_other: Whether it trains something else where it must not, or the program fails under it.
        note: The same as a sentence, with what changes by design.
    """

    sameness: Sameness | None
    is_other: bool
    note: str


class GatePart(Part):
    """What a gate says.

    Attributes:
        fail_if_slower_pct: How much slower the second side may not be, in percent of samples/s.
        status: The exit status: 0 passed, 1 failed, 4 cannot tell.
        reason: Why, as a sentence without its full stop.
    """

    fail_if_slower_pct: float
    verdict: Verdict
    status: Literal[0, 1, 4]
    reason: str


class ComparisonData(Part):
    """What a comparison of two sides showed.

    Attributes:
        number: Of this format.
        speedup: Of the second side over the first, with its 95 % interval.
        most_pct: The difference that may still be there, in percent of the first side's speed.
        processes: How many fresh processes were compared.
        ratios: The speedup in each process, or of each pair of them, that counts.
        changes: The settings in which the sides differ, with the values of the second.
        training: Null where it was not asked: of two commits, or of two files.
        gate: Null without ``--fail-if-slower``.
        notes: What else there is to know, as sentences without their full stop.
    """

    number: Literal[1] = Field(default=1, alias="schema")
    finding: Difference
    speedup: Rounded
    most_pct: float
    processes: int
    ratios: list[float]
    changes: dict[str, KnobValue]
    sides: tuple[SidePart, SidePart]
    training: TrainingPart | None
    gate: GatePart | None
    notes: tuple[str, ...]
