"""The whole run: how long an epoch and a training take, before and after.

The claim of a search is about the training loop. A user waits for whole epochs: with evaluation,
checkpoints and the starts of loaders, which a faster loop leaves as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from statistics import fmean

from autotune.measurement import claim
from autotune.measurement.epochs.breakdown import (
    PROCESS_SPREAD,
    EpochBreakdown,
    breakdown,
    ending_s,
    is_surely_more,
    mean_breakdown,
    mean_of,
    tells_within,
    usual_epochs,
    with_timed_loop,
)
from autotune.measurement.epochs.epoch import EpochSeen, RunLength
from autotune.measurement.interval import Interval
from autotune.measurement.stats import NORMAL
from autotune.program.config import Config
from autotune.program.evaluation import (
    EvaluationLoader,
    EvaluationOutputs,
    EvaluationTrials,
    loader_key,
)
from autotune.results.wording import estimated_duration

WORTH_NAMING = 0.05  # share of an epoch that a part must take to be named
WORTH_TELLING = 0.1  # the same of all that is not the training loop, to say what that means
SLOWS = 0.05  # share of the epoch that this must cost
LEAST_PAIRS = 2
ALIKE = 0.05  # share of its batches by which an epoch may differ from others
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
        batches = epoch.length if epoch.is_cut else epoch.batches
        known = [] if batches is None else [float(batches)]
        if self.samples_per_epoch is not None:
            known.append(self.samples_per_epoch / self.samples_per_batch)
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
            yield f"Faster training steps alone give at most {before.ceiling:.1f}x."
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


def whole_run(
    written: TimedRun,
    others: Sequence[TimedRun],
    best: Config | None,
    loops: tuple[Loop, Loop],
    speedup: Interval,
    program: RunFacts,
) -> WholeRun | None:
    """Return what the whole run consists of; None if no whole epoch can be put together.

    Args:
        written: The first timed run of the program as written.
        others: All timed runs.
        best: The recommended config; None if nothing is recommended.
        loops: The training loop as written and under the recommended config.
        speedup: Of the training loop, as confirmed.
        program: What is known about the program's length.
    """
    length = program.length
    alike = [run for run in others if run.config == written.config and _tells_alike(run, written)]
    runs = [[epoch.within(length) for epoch in run.telling] for run in alike or [written]]
    if not runs[0]:
        return None
    as_written = runs[0]
    usual = usual_epochs(as_written)[-1]
    windows_s, after_s = (loop.seconds(usual) for loop in loops)
    if windows_s is None or after_s is None:
        return None
    loop_s = mean_of([with_timed_loop(run, windows_s) for run in runs])
    after_s = after_s.times(loop_s.estimate / windows_s.estimate)
    within_s = _within_s(as_written, loops[0], program.interruptions_s)
    is_first = written.tells_first_alone
    bounds_later = is_first and length.epochs != 1
    before = mean_breakdown([breakdown(run, loop_s, within_s) for run in runs])
    gain, refusal = _evaluation_gain(others)
    end = program.python_exit or PythonExit(0.0, 0.0)
    whole = WholeRun(
        before.as_first if bounds_later else before,
        None,
        None,
        _known_length(length, as_written),
        program.startup_s,
        gain,
        refusal,
        ending_s=ending_s(as_written) + end.seconds,
        timing_s=sum(run.cost_s for run in others) + end.cost_s,
    )
    faster = gain if gain is not None and gain.is_claimed else None
    if best is None and faster is None:
        return whole
    run = next((run for run in reversed(others) if run.config == best), None)
    found, doubt = ((), "") if best is None else _seen_under(run, is_first=is_first)
    under = [[epoch.within(length) for epoch in found]] if found else runs
    after = mean_breakdown([breakdown(run, after_s, within_s) for run in under])
    if faster is not None:
        timed = [run] if found and run is not None else alike or [written]
        gains = [_gain_in(run, faster) for run in timed]
        after = _with_faster(after, under, faster, gains, after_s, within_s)
    own = Interval(1.0, 1.0, 1.0)
    after = after.as_first if bounds_later else after
    return replace(
        whole,
        after=after,
        speedup=_gain(whole.before, after, own if best is None else speedup),
        doubt=doubt,
        compile_s=program.compile_s,
        outputs=None if run is None else run.outputs,
    )


def _tells_alike(run: TimedRun, other: TimedRun) -> bool:
    """Return whether the epochs of two runs can be taken together."""
    return bool(run.telling) and run.tells_first_alone == other.tells_first_alone


def _known_length(length: RunLength, as_written: Sequence[EpochSeen]) -> RunLength:
    """Return how long the program trains, as far as its epochs are alike.

    One that trains on more and more samples, as with pseudo-labels, or with fewer as it goes on,
    has epochs that say nothing about its later ones.
    """
    seen = [e.batches for e in as_written if not (e.is_last or e.is_cut)]
    if length.steps is not None or not seen:
        return length
    fewest, most = min(seen), max(seen)
    if most - fewest <= max(1, ALIKE * most):
        return length
    return RunLength(unknown=f"its epochs have {fewest} to {most} batches")


def _within_s(
    as_written: Sequence[EpochSeen], loop: Loop, interruptions_s: Interval | None
) -> Interval | None:
    """Return the seconds in the middle of a pass by the search; None if the epochs tell them."""
    batches = loop.batches(usual_epochs(as_written)[-1])
    if interruptions_s is None or batches is None:
        return None
    found = interruptions_s.times(batches)
    return None if tells_within(as_written, found) else found


def _gain_in(run: TimedRun, gain: EvaluationGain) -> float:
    """Return by how much other options of a loader shorten its passes in one timed run.

    What starting its workers costs depends on what else the process has started. So passes that
    the run made with these options count, where it made some.
    """
    tried, key = run.tried, loader_key(gain.loader.facts)
    is_alike = tried is not None and tried.loader is not None and loader_key(tried.loader) == key
    if tried is None or not is_alike or tried.chosen != gain.loader.options:
        return gain.speedup.estimate
    chosen = [p.seconds for p in tried.passes if p.is_chosen and p.options]
    epochs = usual_epochs(run.telling or run.seen)
    own = [p.whole_s for epoch in epochs for p in epoch.passes if p.loader == key]
    return fmean(own) / fmean(chosen) if own else gain.speedup.estimate


def _with_faster(
    after: EpochBreakdown,
    runs: Sequence[Sequence[EpochSeen]],
    gain: EvaluationGain,
    gains: Sequence[float],
    loop_s: Interval,
    within_s: Interval | None,
) -> EpochBreakdown:
    """Return an epoch with its evaluation as fast as other options of its loader make it.

    Args:
        after: The epoch without them.
        runs: The epochs of each timed run that it was put together from.
        gain: The options, and what they were proven to give.
        gains: By how much they shorten the passes of each run.
        loop_s: As for ``breakdown``.
        within_s: The same.
    """
    key, speedup = loader_key(gain.loader.facts), gain.speedup

    def evaluation_s(error: float) -> Interval:
        faster = [
            [epoch.with_passes_over(key, 1 / (error * by)) for epoch in run]
            for run, by in zip(runs, gains, strict=True)
        ]
        return mean_breakdown([breakdown(run, loop_s, within_s) for run in faster]).evaluation_s

    low, high = speedup.low / speedup.estimate, speedup.high / speedup.estimate
    return replace(
        after,
        evaluation_s=Interval(
            evaluation_s(1.0).estimate, evaluation_s(high).low, evaluation_s(low).high
        ),
    )


def _seen_under(run: TimedRun | None, *, is_first: bool) -> tuple[tuple[EpochSeen, ...], str]:
    """Return the epochs under a config that compare with those as written.

    Args:
        run: Its timed run; None without one.
        is_first: Whether only the first epoch was seen as written.

    Returns:
        The epochs, and why there is none of them, as a sentence: all but the training steps is then
        taken to be as before.
    """
    if run is None:
        return (), (
            "There was no time to run epochs under this config: all but the steps is as before"
        )
    if is_first and run.seen and not run.seen[0].compiles:
        return run.seen[:1], ""
    if run.telling and not is_first and not run.tells_first_alone:
        return run.telling, ""
    if run.seen:
        return (), (
            "Under this config, too few epochs were seen after the first: all but the steps is as "
            "before"
        )
    return (), (
        f"Under this config, its whole epochs could not be timed ({run.reason.rstrip('.')}); as "
        "written, they could. Train a short while before you rely on it"
    )


def _evaluation_gain(runs: Sequence[TimedRun]) -> tuple[EvaluationGain | None, str]:
    """Return what the options that runs chose give, and why nothing was compared."""
    tried = [run.tried for run in runs if run.tried is not None]
    first = next((trials for trials in tried if trials.chosen), None)
    if first is None or first.loader is None:
        return None, next((trials.refusal for trials in tried), "")
    compared = [t.ratios for t in tried if t.chosen == first.chosen and t.ratios]
    if sum(map(len, compared)) < LEAST_PAIRS:
        return None, "there was no time to compare others with them"
    claimed = claim.together(compared)
    loader = EvaluationLoader(first.loader, first.chosen)
    return EvaluationGain(loader, claimed.speedup, len(compared)), ""


def _gain(before: EpochBreakdown, after: EpochBreakdown, speedup: Interval) -> Interval:
    """Return the speedup of a whole epoch, with the uncertainty of the loop and of all parts."""
    loop_s = before.steps_s.estimate + before.edges_s.estimate
    own_s = before.seconds.estimate - loop_s
    rest_s = after.seconds.estimate - after.steps_s.estimate - after.edges_s.estimate

    def of(gain: float) -> float:
        return (loop_s + own_s) / (loop_s / gain + rest_s)

    estimate = of(speedup.estimate)
    parts = math.hypot(_doubt(before), _doubt(after))
    low = math.hypot(math.log(estimate / of(speedup.low)), parts)
    high = math.hypot(math.log(of(speedup.high) / estimate), parts)
    return Interval(estimate, estimate * math.exp(-low), estimate * math.exp(high))


def _doubt(epoch: EpochBreakdown) -> float:
    """Return the relative half-width of an epoch that is due to all but its training loop."""
    others = epoch.evaluation_s, epoch.saving_s, epoch.rest_s
    return math.hypot(*((p.high - p.low) / 2 for p in others)) / epoch.seconds.estimate


def _range(seconds: Interval) -> str:
    """Return seconds with their bounds: ``3.1 s (2.9 to 3.4)``."""
    low, high = estimated_duration(seconds.low), estimated_duration(seconds.high)
    return f"{estimated_duration(seconds.estimate)} ({low} to {high})"
