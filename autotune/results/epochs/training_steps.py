"""How long the steps of the whole training take, where its epochs were not timed.

A program that reads no loader, or one without an end, shows no epochs. What it does besides
training steps is then unknown, and so is how long it takes. The same holds where only parts of its
epochs fitted into the time, and no evaluation came in these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.results.epochs.timed_run import Loop, RunFacts
from autotune.results.wording import estimated_duration


@dataclass(frozen=True)
class TrainingSteps:
    """The training steps of the whole training, without evaluation and checkpoints.

    Attributes:
        program: How long it trains.
        loops: The training loop as written and, if something is recommended, under that.
        samples: Of the whole training, or of one epoch.
        is_run: Whether it is the whole training, as opposed to one epoch.
        cut_after: Steps of the epochs that were seen, without an evaluation; None if none was seen.
    """

    program: RunFacts
    loops: tuple[Loop, ...]
    samples: float
    is_run: bool = True
    cut_after: int | None = None

    @property
    def run_seconds(self) -> dict[str, float]:
        """Seconds of the whole training of the sides; empty if its length is unknown."""
        return self._seconds if self.is_run else {}

    @property
    def _seconds(self) -> dict[str, float]:
        """Seconds of the sides, those of the whole training with starting and compiling."""
        sides, more_s = ("baseline", "best"), (0.0, self.program.compile_s)
        end = self.program.python_exit
        end_s = 0.0 if end is None else end.seconds
        return {
            side: self.is_run * (self.program.startup_s + end_s + more)
            + self.samples / loop.throughput.estimate
            for side, more, loop in zip(sides, more_s, self.loops, strict=False)
        }

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the user should know, as sentences."""
        run = " → ".join(map(estimated_duration, self._seconds.values()))
        told = "a whole epoch, estimated: about"
        if self.is_run:
            told = f"the whole training, estimated: {self.program.length}, about"
        rest = "Evaluation and checkpoints, which were not timed, come on top."
        if self.cut_after is not None:
            rest = (
                f"No evaluation was seen in epochs of {self.cut_after} steps; one that comes later "
                "comes on top, so nothing is said about the speedup of a whole epoch."
            )
        return f"The training steps of {told} {run}.", rest


def training_steps(
    program: RunFacts,
    loops: tuple[Loop, ...],
    samples_per_step: float,
    cut_after: int | None = None,
) -> TrainingSteps | None:
    """Return how long the steps of the whole training take; None if their number is unknown.

    Args:
        program: How long it trains.
        loops: The training loop as written and, if something is recommended, under that.
        samples_per_step: Of the program as written.
        cut_after: Steps of the epochs that were seen, without an evaluation; None if none was seen.
    """
    length, per_epoch = program.length, loops[0].samples_per_epoch
    if length.steps is not None:
        return TrainingSteps(program, loops, length.steps * samples_per_step, cut_after=cut_after)
    if length.batches is not None and per_epoch:
        per_epoch = min(per_epoch, math.ceil(length.batches * loops[0].samples_per_batch))
    if length.epochs is not None and per_epoch:
        return TrainingSteps(program, loops, length.epochs * per_epoch, cut_after=cut_after)
    if cut_after is not None and per_epoch:
        return TrainingSteps(program, loops, per_epoch, is_run=False, cut_after=cut_after)
    return None
