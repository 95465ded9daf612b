"""DoctorReport: what ``autotune doctor train.py`` found out about a program."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from autotune.measurement.examination import Examination
from autotune.results.advice import Advice, Readings, advise


@dataclass(frozen=True)
class DoctorReport:
    """What was measured of a program as it is written, and what follows from it.

    Attributes:
        command: The program with its arguments.
        readings: What was measured.
        notes: What could not be measured, as sentences.
    """

    command: str
    readings: Readings
    notes: tuple[str, ...] = ()

    @property
    def advice(self) -> tuple[Advice, ...]:
        """What is worth a change, the largest possible gain first."""
        return advise(self.readings)

    def as_data(self) -> dict[str, Any]:
        """Return the report as data that JSON can hold.

        Returns:
            ``command``, ``samples_per_s``, ``step_s``, ``wait_share``, ``parts`` (seconds of a step
            by part), ``advice`` (``name``, ``problem``, ``evidence``, ``mend``, ``where``,
            ``gain``), ``examination`` (the readings as they were taken) and ``notes``.
        """
        readings, split = self.readings, self.readings.breakdown.split
        examined = TypeAdapter(Examination).dump_python(readings.examination, mode="json")
        return {
            "command": self.command,
            "samples_per_s": vars(readings.measurement.throughput),
            "step_s": readings.step_s,
            "wait_share": readings.measurement.wait_share,
            "parts": None if split is None else split.parts,
            "advice": [
                {k: v for k, v in dataclasses.asdict(one).items() if k != "explains"}
                for one in self.advice
            ],
            "examination": examined,
            "notes": list(self.notes),
        }
