"""How long the steps of the whole training take, where its epochs were not timed.

A program that reads no loader, or one without an end, shows no epochs. What it does besides
training steps is then unknown, and so is how long it takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.results.whole_run import Loop, RunFacts
from autotune.results.wording import estimated_duration


@dataclass(frozen=True)
class TrainingSteps:
    """The training steps of the whole training, without evaluation and checkpoints.

    Attributes:
        program: How long it trains.
        loops: The training loop as written and, if something is recommended, under that.
        samples: Of the whole training.
    """

    program: RunFacts
    loops: tuple[Loop, ...]
    samples: float

    @property
    def run_seconds(self) -> dict[str, float]:
        """Seconds of the sides, with starting and compiling."""
        sides, more_s = ("baseline", "best"), (0.0, self.program.compile_s)
        return {
            side: self.program.startup_s + more + self.samples / loop.throughput.estimate
            for side, more, loop in zip(sides, more_s, self.loops, strict=False)
        }

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the user should know, as sentences."""
        run = " → ".join(map(estimated_duration, self.run_seconds.values()))
        length = self.program.length
        return (
            f"The training steps of the whole training, estimated: {length}, about {run}.",
            "Evaluation and checkpoints, which were not timed, come on top.",
        )


def training_steps(
    program: RunFacts, loops: tuple[Loop, ...], samples_per_step: float
) -> TrainingSteps | None:
    """Return how long the steps of the whole training take; None if their number is unknown.

    Args:
        program: How long it trains.
        loops: The training loop as written and, if something is recommended, under that.
        samples_per_step: Of the program as written.
    """
    length, per_epoch = program.length, loops[0].samples_per_epoch
    if length.steps is not None:
        return TrainingSteps(program, loops, length.steps * samples_per_step)
    if length.epochs is not None and per_epoch:
        return TrainingSteps(program, loops, length.epochs * per_epoch)
    return None
