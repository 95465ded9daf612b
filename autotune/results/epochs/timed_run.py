"""Timed run: what a short run showed of the program's epochs, and what else an estimate needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import dropwhile

from autotune.measurement.epochs.breakdown import PROCESS_SPREAD
from autotune.measurement.epochs.epoch import EpochSeen, RunLength
from autotune.measurement.interval import Interval
from autotune.measurement.stats import NORMAL
from autotune.program.config import Config
from autotune.program.evaluation import EvaluationOutputs, EvaluationTrials

ENDLESS = 1e8  # batches; a loader of more has no end that a training reaches


@dataclass(frozen=True)
class TimedRun:
    """A short run of one config whose epochs were timed.

    Attributes:
        config: The config.
        seen: The epochs that ended, in order; empty if none did.
        cost_s: Seconds that the run took.
        reason: Why no epoch was seen; empty if one was.
        tried: What was tried of an evaluation loader; None if nothing was.
        outputs: How outputs of the evaluation differ from those as written; None if not compared.
    """

    config: Config
    seen: tuple[EpochSeen, ...]
    cost_s: float
    reason: str = ""
    tried: EvaluationTrials | None = None
    outputs: EvaluationOutputs | None = None

    @property
    def telling(self) -> tuple[EpochSeen, ...]:
        """The epochs that tell what later ones take: from the first that compiles nothing.

        Evaluation is compiled apart from training, so that takes long once as well. Where each
        epoch compiles, all but the first count.
        """
        return tuple(dropwhile(lambda epoch: epoch.compiles, self.seen)) or self.seen[1:]

    @property
    def tells_first_alone(self) -> bool:
        """Whether only the first epoch tells something: it is slower than later ones."""
        return len(self.telling) == 1 and len(self.seen) == 1


@dataclass(frozen=True)
class PythonExit:
    """How long Python takes to end after a training, as a process that loads torch shows.

    Attributes:
        seconds: Its seconds; 0.0 if they could not be seen.
        cost_s: Seconds that it took to see that.
    """

    seconds: float
    cost_s: float


@dataclass(frozen=True)
class RunFacts:
    """What is known about how long the program trains.

    Attributes:
        length: How many epochs, by its trainer or its code.
        startup_s: Seconds until its first step.
        compile_s: Seconds that the recommended config compiles at the start of a run.
        interruptions_s: Seconds per batch of evaluation in the middle of the training pass, as the
            search saw it; None if it saw none.
        python_exit: How long Python takes to end; None where that does not matter, or is unknown.
    """

    length: RunLength
    startup_s: float
    compile_s: float = 0.0
    interruptions_s: Interval | None = None
    python_exit: PythonExit | None = None


@dataclass(frozen=True)
class Loop:
    """The speed of the training loop, as windows of the search or the confirmation measured it.

    Attributes:
        throughput: Samples per second, starts of the loader included.
        samples_per_batch: Samples in a batch of the program as written.
        samples_per_epoch: Samples between two starts of the loader; None if unknown.
        processes: In how many processes it was measured.
    """

    throughput: Interval
    samples_per_batch: float
    samples_per_epoch: int | None
    processes: int = 1

    def batches(self, epoch: EpochSeen) -> float | None:
        """Return the batches of a whole training pass of the program; None if its end is unknown.

        Args:
            epoch: One of the program as written.
        """
        known = [] if epoch.length is None else [float(epoch.length)]
        if self.samples_per_epoch is not None:
            known.append(self.samples_per_epoch / self.samples_per_batch)
        if not epoch.is_cut and not any(0 <= epoch.batches - one < 1 for one in known):
            known = [float(epoch.batches)]  # else the last batch is a smaller one
        found = min(known, default=0.0)
        return found if 0 < found < ENDLESS else None

    def seconds(self, epoch: EpochSeen) -> Interval | None:
        """Return the seconds of a whole training pass of the program; None if its end is unknown.

        Args:
            epoch: One of the program as written.
        """
        batches = self.batches(epoch)
        return None if batches is None else self._in_any_process(batches * self.samples_per_batch)

    def _in_any_process(self, samples: float) -> Interval:
        """Return the seconds of some samples, with what processes differ in added to the bounds."""
        rate, apart = self.throughput, NORMAL * PROCESS_SPREAD / math.sqrt(self.processes)
        low = math.hypot(math.log(rate.high / rate.estimate), apart)
        high = math.hypot(math.log(rate.estimate / rate.low), apart) if rate.low else math.inf
        seconds = samples / rate.estimate
        return Interval(seconds, seconds * math.exp(-low), seconds * math.exp(high))
