"""Outcome and Ending: how a trial or a rig ended, never a falsy number."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePath

from autotune.measurement.run_mode import Epochs

# Paths of code that is not the program's own, ours included
LIBRARIES = re.compile(
    r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python3|^<"
    rf"|^{re.escape(str(Path(__file__).parents[1]))}[/\\]"
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
    UNCLEAR = "unclear"
    """It crashed, and nothing shows that the config is the cause."""
    FAILS_AS_WRITTEN = "fails as written"
    """It crashed in a way in which the program as written does, too."""
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
        steps: Optimizer steps that the process had made.
        steps_under_config: How many of them under the present config.
        suspect: How epochs would have to end if these here are the cause; None if they are not.
    """

    outcome: Outcome
    reason: str
    program_traceback: str = ""
    cause: Cause | None = None
    evidence: str = ""
    steps: int = field(default=0, compare=False)
    steps_under_config: int = field(default=0, compare=False)
    suspect: Epochs | None = field(default=None, compare=False)

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

    @property
    def where(self) -> str:
        """Exception and line in a few words: ``ZeroDivisionError at train.py:12``."""
        return f"{self.exception} at {PurePath(self.line).name}" if self.line else self.exception
