"""Outcome and Ending: how a trial or a rig ended, never a falsy number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

# Paths of code that is not the program's own, ours included
LIBRARIES = re.compile(
    r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python3|^<"
    rf"|^{re.escape(str(Path(__file__).parent))}[/\\]"
)


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


class Cause(StrEnum):
    """Why a program does not train as it is written, where that was tried out."""

    PROGRAM = "the program"
    AUTOTUNE = "autotune"
    UNCLEAR = "unclear"
    INPUT = "it asks for input"


ENDED_BY_US = frozenset({Outcome.INTERRUPTED, Outcome.OUT_OF_TIME})
"""Outcomes that say nothing about the config: the user or the budget ended the trial."""


@dataclass(frozen=True)
class Ending:
    """Why there is no measurement: the outcome, one line for the user, the program's traceback.

    Attributes:
        cause: Whose fault it is, None where that was not tried out.
        evidence: What says so, as a sentence; empty without a cause.
    """

    outcome: Outcome
    reason: str
    program_traceback: str = ""
    cause: Cause | None = None
    evidence: str = ""

    @property
    def exception(self) -> str:
        """The name of the exception, where one ended it; of sys.exit() with what it was given."""
        return self.reason if self.reason.startswith("SystemExit") else self.reason.split(":")[0]

    @property
    def line(self) -> str:
        """Where in the program's own code it was raised, as path and line; empty if unknown."""
        places = re.findall(r'File "([^"]+)", line (\d+)', self.program_traceback)
        own = [f"{path}:{line}" for path, line in places if not LIBRARIES.search(path)]
        return own[-1] if own else ""

    @property
    def way(self) -> tuple[str, str]:
        """What two endings have in common that have failed in the same way."""
        return self.exception, self.line
