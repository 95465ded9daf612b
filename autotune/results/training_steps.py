"""How long the steps of the whole training take, estimated from the speed of the training loop.

What a program does besides training steps is unknown, and so is how long it takes in all.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement
from autotune.program.profile import RunLength
from autotune.results.wording import estimated_duration


@dataclass(frozen=True)
class TrainingSteps:
    """The training steps of the whole training, without evaluation and checkpoints.

    Attributes:
        samples: Of the whole training.
        throughput: Samples per second as written and, if something is recommended, under that.
        compile_s: Seconds that the recommended config compiles at the start of a run.
    """

    length: RunLength
    samples: float
    startup_s: float
    throughput: tuple[Interval, ...]
    compile_s: float = 0.0

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of the sides, with starting and compiling."""
        sides, more_s = ("baseline", "best"), (0.0, self.compile_s)
        return {
            side: self.startup_s + more + self.samples / rate.estimate
            for side, more, rate in zip(sides, more_s, self.throughput, strict=False)
        }

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the user should know, as sentences."""
        run = " → ".join(map(estimated_duration, self.seconds.values()))
        return (
            f"The training steps of the whole training, estimated: {self.length}, about {run}.",
            "Evaluation and checkpoints, which were not timed, come on top.",
        )


def training_samples(length: RunLength, written: Measurement) -> float | None:
    """Return the samples of the whole training; None if their number is unknown."""
    if length.steps is not None:
        return length.steps * written.samples_per_step
    if length.epochs is None or not written.samples_per_epoch:
        return None
    return length.epochs * written.samples_per_epoch
