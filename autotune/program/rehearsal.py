"""Rehearsal: what a program did when it was run with short epochs, and what that says.

Turns never see what follows an epoch: evaluation, checkpoints, the second epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.measurement.learning.training_trace import TrainingTrace
from autotune.measurement.outcome import ENDED_BY_US, Ending

Ended = Literal["as planned", "by itself", "out of time"]
SILENCE_TOLD_S = 5.0  # a program that does nothing for so long may stand still
OTHER_BATCHES = 2  # for a loader that trains nothing, such as validation: one batch and a second


@dataclass(frozen=True)
class TracePlan:
    """What is recorded of a training, and under which conditions.

    Attributes:
        shakes: Move each weight by some units in its last place before the first step, in
            directions that are drawn with this seed; 0 leaves them.
        seed: Number of the random state that the program begins with. All but 0 also move the
            seeds that the program sets itself.
        drops_out: Leave the program's dropout as it is; else nothing is dropped.
        evens_items: Whether items of datasets draw the same random numbers in whichever process
            they are read; else as in a training, where each worker draws others.
        ceilings: For each step, the mean of the last losses above which the run is hopeless, and
            ends; empty where it never is.
        shares: Ranks among which BatchNorm sees a batch shared out, in one process as in several.
    """

    steps: int = 64
    shakes: int = 0
    seed: int = 0
    drops_out: bool = False
    evens_items: bool = True
    ends: bool = False
    ceilings: tuple[float, ...] = ()
    shares: int = 1


@dataclass(frozen=True)
class RehearsalPlan:
    """Where a rehearsed program's epochs and its run are cut short.

    Attributes:
        batches: Batches per training epoch; the epoch ends after the step that used the last one.
        epochs: The least number of epochs to run, each with what follows it.
        most_epochs: The most epochs of a program that may still end on its own.
        enough_s: Seconds after the first step from which a program is no longer given time to end.
        most_s: Seconds after the start of the process at which the rehearsal ends in any case.
        least_steps: Optimizer steps from which the same holds.
        traces: What to record of the training, under conditions that are the same for all
            rehearsals; None records nothing.
    """

    batches: int = 3
    other_batches: int = OTHER_BATCHES
    epochs: int = 2
    most_epochs: int = 30
    enough_s: float = 4.0
    most_s: float = 60.0
    least_steps: int = 0
    traces: TracePlan | None = None


@dataclass(frozen=True)
class Seen:
    """What a program did in its rehearsal.

    Attributes:
        evaluations: How often it computed without gradients outside its training loop.
        silent_s: Seconds since the program last requested a batch, called its model or made a step.
        is_at_work: Whether the program was silent, but used the processor, or was saving.
    """

    steps: int
    epochs: int
    evaluations: int
    ended: Ended
    silent_s: float = 0.0
    trace: TrainingTrace | None = None
    is_at_work: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the rehearsal reached the planned end or the program's own end in time."""
        return self.ended != "out of time"

    def __str__(self) -> str:
        if not self.epochs:
            return f"{_count(self.steps, 'step')}{self._how}"
        evaluations = (
            _count(self.evaluations, "evaluation") if self.evaluations else "no evaluation"
        )
        return f"{_count(self.epochs, 'short epoch')}, {evaluations}{self._how}"

    @property
    def reached(self) -> tuple[int, int]:
        """How far the program came, as values that compare: steps first, then evaluations."""
        return self.steps, self.evaluations

    @property
    def _how(self) -> str:
        match self.ended:
            case "as planned":
                return ""
            case "by itself":
                return ", to the program's own end"
            case "out of time":
                silent = f", silent for the last {self.silent_s:.0f} s"
                return ", until time was up" + silent * (self.silent_s >= SILENCE_TOLD_S)


@dataclass(frozen=True)
class Rehearsal:
    """The result of one rehearsal.

    Attributes:
        ending: How the program failed, or who ended it; None if nothing went wrong.
    """

    seen: Seen | None
    ending: Ending | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the program failed, as opposed to being ended by the user or the budget."""
        return self.ending is not None and self.ending.outcome not in ENDED_BY_US

    @property
    def has_passed(self) -> bool:
        """Whether the program ran without an error to the end of the rehearsal."""
        return self.ending is None and self.seen is not None and self.seen.is_whole

    def fails_like(self, other: Rehearsal) -> bool:
        """Return whether both rehearsals failed with the same error, raised by the same line."""
        if self.ending is None or other.ending is None:
            return False
        is_both = self.has_failed and other.has_failed
        is_alike = self.ending.outcome is other.ending.outcome
        return is_both and is_alike and self.ending.way == other.ending.way


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
