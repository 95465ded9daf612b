"""The whole run: how long an epoch and a training take, before and after.

The claim of a search is about the training loop. A user waits for whole epochs: with evaluation,
checkpoints and the starts of loaders, which a faster loop leaves as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from autotune.measurement.epochs.breakdown import PROCESS_SPREAD, EpochBreakdown, is_surely_more
from autotune.measurement.epochs.epoch import RunLength
from autotune.measurement.interval import Interval
from autotune.measurement.stats import NORMAL
from autotune.program.evaluation import EvaluationLoader, EvaluationOutputs
from autotune.results.wording import estimated_duration

WORTH_NAMING = 0.05  # share of an epoch that a part must take to be named
WORTH_TELLING = 0.1  # the same of all that is not the training loop, to say what that means
SLOWS = 0.05  # share of the epoch that this must cost


@dataclass(frozen=True)
class EvaluationGain:
    """What other options of an evaluation loader give.

    Attributes:
        loader: The loader with the options.
        speedup: Of its passes, with the interval.
        processes: How many processes it was compared in.
    """

    loader: EvaluationLoader
    speedup: Interval
    processes: int

    @property
    def is_claimed(self) -> bool:
        """Whether the options are recommended: they were faster in at least two processes."""
        return self.processes > 1 and self.speedup.low > 1.0

    def __str__(self) -> str:
        changes = " ".join(f"{knob}={value}" for knob, value in self.loader.options.items())
        speedup, loader = self.speedup, f"its loader of {self.loader.facts.dataset} with {changes}"
        gave = f"{speedup.estimate:.2f}x"
        if not self.is_claimed:
            return f"{loader} gave {gave}, which is not confirmed"
        sure = f"[{speedup.low:.2f}, {speedup.high:.2f}]"
        return f"{loader}: {gave} {sure}. It loads the same batches and is part of the config"


@dataclass(frozen=True)
class WholeRun:
    """What an epoch consists of and how long the training takes.

    Attributes:
        before: The epoch of the program as written.
        after: The epoch under the recommended config; None if nothing is recommended.
        speedup: Of the whole epoch, with its interval; None if nothing is recommended.
        length: How many epochs the program trains.
        startup_s: Seconds until the program's first step.
        evaluation: What other options of the slowest evaluation loader give; None if none was
            tried, or none was faster.
        refusal: Why no options of such a loader were compared, as a clause; empty if some were.
        doubt: What was not seen under the recommended config, as a sentence without its full stop;
            empty if nothing.
        compile_s: Seconds that the recommended config compiles at the start of a run.
        ending_s: Seconds of what comes only after the last epoch, as far as seen: of the program,
            and until Python has ended.
        timing_s: Wall time in which epochs were timed, of all runs.
        outputs: How outputs of the evaluation under the recommended config differ from those as
            written; None if not compared.
    """

    before: EpochBreakdown
    after: EpochBreakdown | None
    speedup: Interval | None
    length: RunLength
    startup_s: float
    evaluation: EvaluationGain | None = None
    refusal: str = ""
    doubt: str = ""
    compile_s: float = 0.0
    ending_s: float = 0.0
    timing_s: float = 0.0
    outputs: EvaluationOutputs | None = None

    @property
    def is_estimated(self) -> bool:
        """Whether some part was put together instead of being seen as a whole."""
        sides = [self.before] if self.after is None else [self.before, self.after]
        return bool(self.doubt) or any(side.is_estimated for side in sides)

    @property
    def misses_evaluation(self) -> bool:
        """Whether the epochs were cut and no evaluation was seen: one may come in what was cut."""
        return self.before.cut_after is not None and not self.before.evaluation_s.estimate

    @property
    def epochs(self) -> float | None:
        """Number of epochs of the whole training; None if unknown."""
        if self.length.steps is not None:
            return self.length.steps / self.before.steps
        return self.length.epochs

    def run_s(self, epoch: EpochBreakdown) -> Interval | None:
        """Return the seconds of the whole training; None if its length is unknown."""
        if (epochs := self.epochs) is None:
            return None
        once_s, all_s = self.startup_s + self.ending_s, epoch.seconds.times(epochs)
        apart_s = NORMAL * PROCESS_SPREAD * once_s  # of some other process
        below = math.hypot(apart_s, all_s.estimate - all_s.low)
        above = math.hypot(apart_s, all_s.high - all_s.estimate)
        run_s = once_s + all_s.estimate
        return Interval(run_s, run_s - below, run_s + above)

    @property
    def run_intervals(self) -> dict[str, Interval]:
        """Seconds of the whole training of the sides; empty if its length is unknown."""
        found = {"baseline": self.run_s(self.before)}
        if self.after is not None and (after_s := self.run_s(self.after)) is not None:
            more_s = self.compile_s
            found["best"] = Interval(
                after_s.estimate + more_s, after_s.low + more_s, after_s.high + more_s
            )
        return {side: seconds for side, seconds in found.items() if seconds is not None}

    @property
    def run_seconds(self) -> dict[str, float]:
        """The estimates of these."""
        return {side: seconds.estimate for side, seconds in self.run_intervals.items()}

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the user should know about the whole run, as sentences."""
        return tuple(self._sentences())

    def _sentences(self) -> Iterator[str]:
        before, after = self.before, self.after
        epoch = _range(before.seconds)
        if after is not None and self.speedup is not None:
            speedup = self.speedup
            epoch += (
                f" → {_range(after.seconds)}, {speedup.estimate:.2f}x [{speedup.low:.2f}, "
                f"{speedup.high:.2f}]"
            )
        how = ", estimated from short passes" if self.is_estimated else ""
        yield f"A whole epoch{how}: {epoch}."
        if self.doubt:
            yield f"{self.doubt}."
        if before.is_first:
            yield (
                "Only the first epoch was seen, and later ones may be faster, as the lower bounds "
                "allow."
            )
        yield from self._run_sentences()
        yield f"Of the epoch: {', '.join(self._parts())}."
        if before.share(before.saving_s) >= WORTH_NAMING:
            yield "Saving was timed on the disk of the search's scratch; others may be slower."
        if before.ceiling <= 1 / WORTH_TELLING and not before.is_first:
            yield (
                "Faster training steps, with the start of their loader, give at most "
                f"{before.ceiling:.1f}x."
            )
        yield from self._evaluation_sentences()

    def _run_sentences(self) -> Iterator[str]:
        if run_s := self.run_intervals:
            run = " → ".join(map(_range, run_s.values()))
            yield f"The whole training, estimated: {self.length}, about {run}."
        elif self.length.unknown:
            yield f"How long the whole training takes is not known: {self.length.unknown}."

    def _evaluation_sentences(self) -> Iterator[str]:
        before, after = self.before, self.after
        if not before.evaluation_s.estimate:
            cut = "" if before.cut_after is None else f" of {before.cut_after} steps"
            yield (
                f"No evaluation was seen in epochs{cut}; one that comes later, or at the end of "
                "the training, is not in these figures."
            )
        if (often := before.evaluations) is not None:
            yield (
                "How often it evaluates in the middle of an epoch was not seen: "
                f"{often.low:.0f} to {often.high:.0f} times."
            )
        if (gain := self.evaluation) is not None:
            yield f"Faster evaluation: {gain}."
        elif self.refusal and before.share(before.evaluation_s) >= WORTH_TELLING:
            yield f"The loader of the evaluation keeps its options: {self.refusal}."
        if self.outputs is not None:
            yield f"{self.outputs}."
        if after is not None and self._slows_evaluation:
            yield (
                f"Evaluation takes {after.evaluation_s.estimate:.2g} s under this config, "
                f"{before.evaluation_s.estimate:.2g} s as written."
            )

    def _parts(self) -> Iterator[str]:
        """Yield the parts that are worth naming with their shares, before and after."""
        for name, part in self.before.parts.items():
            shares = [self.before.share(part)]
            if self.after is not None:
                shares.append(self.after.share(self.after.parts[name]))
            if max(shares) >= WORTH_NAMING:
                yield f"{name} {' → '.join(f'{share:.0%}' for share in shares)}"

    @property
    def _slows_evaluation(self) -> bool:
        assert self.after is not None, "two sides are compared"
        before, after = self.before.evaluation_s, self.after.evaluation_s
        is_worth_it = after.estimate - before.estimate > SLOWS * self.after.seconds.estimate
        return is_worth_it and is_surely_more(after, before)


def _range(seconds: Interval) -> str:
    """Return seconds with their bounds: ``3.1 s (2.9 to 3.4)``."""
    low, high = estimated_duration(seconds.low), estimated_duration(seconds.high)
    return f"{estimated_duration(seconds.estimate)} ({low} to {high})"
