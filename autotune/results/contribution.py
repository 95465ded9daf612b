"""Contribution: what one knob of the recommended config gives on top of the others."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.measurement.interval import Interval
from autotune.program.config import KnobValue


@dataclass(frozen=True)
class Contribution:
    """The recommended config compared with itself without one of its changes.

    Contributions do not multiply to the whole speedup where knobs help or hinder each other.

    Attributes:
        knob: Its name.
        before: The program's own value.
        after: The recommended value.
        gain: Speedup over the config with the program's own value, by the rounds of the search, in
            which other configs with the change tell of it, too.
    """

    knob: str
    before: KnobValue
    after: KnobValue
    gain: Interval
