"""How long the whole training takes, estimated from the speed of its steps.

Evaluation and saving are not timed, so they are left out, and that is said.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement
from autotune.program.profile import RunLength
from autotune.results.wording import format_duration, printed_duration


@dataclass(frozen=True)
class TrainingTime:
    """Seconds of the whole training as they are printed, without evaluation and saving.

    Attributes:
        length: What is trained: ``25 epochs``.
        before_s: As written, *start_s* included.
        after_s: Under the recommended config, *start_s* and *compile_s* included.
        start_s: Until the first step; 0 where the steps alone give the same figures.
    """

    length: str
    before_s: float
    after_s: float
    start_s: float = 0.0
    compile_s: float = 0.0

    @property
    def saved_s(self) -> float:
        """Seconds by which the training is shorter; negative where it is longer."""
        return self.before_s - self.after_s

    def __str__(self) -> str:
        parts = self.length
        for seconds, what in ((self.start_s, "start"), (self.compile_s, "compiling")):
            parts += f" + {format_duration(seconds)} {what}" if seconds else ""
        before, after = format_duration(self.before_s), format_duration(self.after_s)
        return f"{before} → about {after} ({parts}; no evaluation)"


@dataclass(frozen=True)
class TrainingSteps:
    """The training steps of the whole training, and what comes before them.

    Attributes:
        samples: Of the whole training.
        compile_s: Seconds that the recommended config compiles at the start of a run.
    """

    length: RunLength
    samples: float
    startup_s: float
    compile_s: float = 0.0

    def time(self, samples_per_s: float, claim: Interval) -> TrainingTime:
        """Return how long the training takes, by the speed as written and a claim as printed.

        What is printed can be computed from what is printed: ``after_s`` is the start, compiling,
        and the rest of ``before_s`` divided by the claim.
        """
        start_s, compile_s = printed_duration(self.startup_s), printed_duration(self.compile_s)
        before_s = printed_duration(self.startup_s + self.samples / samples_per_s)
        steps_s = max(0.0, before_s - start_s)
        after_s = printed_duration(start_s + compile_s + steps_s / claim.estimate)
        if after_s == printed_duration(before_s / claim.estimate):
            start_s = compile_s = 0.0
        return TrainingTime(self.length.count, before_s, after_s, start_s, compile_s)


def training_samples(length: RunLength, written: Measurement) -> float | None:
    """Return the samples of the whole training; None if their number is unknown."""
    if length.steps is not None:
        return length.steps * written.samples_per_step
    if length.epochs is None or not written.samples_per_epoch:
        return None
    return length.epochs * written.samples_per_epoch
