"""Outcome and Ending: how a trial or a rig ended; and RunMode: how rigs must run a program.

A failure is never encoded as a number such as 0 or infinity, so it cannot be mistaken for a slow
measurement.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePath


class Epochs(StrEnum):
    """What a rig does when the training loader has no more batches."""

    ENDLESS = "endless"
    """The loader starts over, so that the program's training loop never ends. The default."""
    TRUE = "true"
    """The epoch ends as the program expects, and what lies between epochs runs as it is."""


@dataclass(frozen=True)
class RunMode:
    """How rigs run a program, under any config. The first rigs find out what it needs."""

    terminal: bool = False
    epochs: Epochs = Epochs.ENDLESS


# Paths of code that is not the program's: installed packages, the standard library, generated
# code such as <string>, and autotune
LIBRARIES = re.compile(
    r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python3|^<"
    rf"|^{re.escape(str(Path(__file__).parents[1]))}[/\\]"
)


class Outcome(StrEnum):
    """How a trial ended. The values are stored in the record of a search."""

    OK = "ok"
    OUT_OF_MEMORY = "out of memory"
    HOST_OUT_OF_MEMORY = "host out of memory"
    SHARED_MEMORY = "shared memory too small"
    SCRATCH_FULL = "wrote too much"
    NOT_FINITE = "loss not finite"
    HUNG = "hung"
    CRASHED = "crashed"
    UNCLEAR = "unclear"
    """It crashed, and there is no evidence that the config is the cause."""
    RAN_OUT = "program ended"
    OUT_OF_TIME = "out of time"
    CONFLICT = "conflict"
    INTERRUPTED = "interrupted"


class Cause(StrEnum):
    """Why a program does not train when it is run unmodified, if that was tried."""

    PROGRAM = "the program"
    AUTOTUNE = "autotune"
    UNCLEAR = "unclear"
    INPUT = "it asks for input"


ENDED_BY_US = frozenset({Outcome.INTERRUPTED, Outcome.OUT_OF_TIME})
"""Outcomes that say nothing about the config, because the user or the budget ended the trial."""

NOBODYS = frozenset({*ENDED_BY_US, Outcome.RAN_OUT, Outcome.UNCLEAR})
"""Those, and others that say nothing about the config."""


@dataclass(frozen=True)
class Ending:
    """Why there is no measurement: the outcome, one line for the user, and the program's traceback.

    Attributes:
        reason: One line for the user; for an exception its type and message.
        cause: What is to blame; None if that was not investigated.
        evidence: Why that is the cause, as a sentence; empty without a cause.
        steps: Optimizer steps that the process had made.
        steps_under_config: How many of these steps were made under the current config.
        suspect: The epoch mode that would avoid the failure, if the present way of ending epochs
            may be its cause; otherwise None.
    """

    outcome: Outcome
    reason: str
    program_traceback: str = ""
    cause: Cause | None = None
    evidence: str = ""
    # Endings compare equal if they failed alike, after however many steps.
    steps: int = field(default=0, compare=False)
    steps_under_config: int = field(default=0, compare=False)
    suspect: Epochs | None = field(default=None, compare=False)

    @property
    def exception(self) -> str:
        """The exception's name; for ``sys.exit()`` the whole reason, with its argument."""
        return self.reason if self.reason.startswith("SystemExit") else self.reason.split(":")[0]

    @property
    def line(self) -> str:
        """The last traceback line in the program's own code, as ``path:line``; empty if unknown."""
        places = re.findall(r'File "([^"]+)", line (\d+)', self.program_traceback)
        # The innermost frame usually lies in torch; users look for a line of theirs.
        own = [f"{path}:{line}" for path, line in places if not LIBRARIES.search(path)]
        return own[-1] if own else ""

    @property
    def way(self) -> tuple[str, str]:
        """The exception and its line; equal for endings that failed in the same way."""
        return self.exception, self.line

    @property
    def where(self) -> str:
        """The exception and its line in a few words: ``ZeroDivisionError at train.py:12``."""
        return f"{self.exception} at {PurePath(self.line).name}" if self.line else self.exception
