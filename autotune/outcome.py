"""Outcome and Ending: how a trial or a rig ended, never a falsy number."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a trial ended."""

    OK = "ok"
    OUT_OF_MEMORY = "out of memory"
    HOST_OUT_OF_MEMORY = "host out of memory"
    SHARED_MEMORY = "shared memory too small"
    SCRATCH_FULL = "wrote too much"
    NOT_FINITE = "loss not finite"
    HUNG = "hung"
    CRASHED = "crashed"
    RAN_OUT = "program ended"
    OUT_OF_TIME = "out of time"
    CONFLICT = "conflict"
    INTERRUPTED = "interrupted"


ENDED_BY_US = frozenset({Outcome.INTERRUPTED, Outcome.OUT_OF_TIME})
"""Outcomes that say nothing about the config: the user or the budget ended the trial."""


@dataclass(frozen=True)
class Ending:
    """Why there is no measurement: the outcome, one line for the user, the program's traceback."""

    outcome: Outcome
    reason: str
    program_traceback: str = ""
