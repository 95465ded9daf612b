"""Put the whole run together from timed runs and from the speed of the training loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from autotune.measurement import claim
from autotune.measurement.epochs.breakdown import (
    EpochBreakdown,
    breakdown,
    ending_s,
    mean_breakdown,
    mean_of,
    tells_within,
    usual_epochs,
    with_timed_loop,
)
from autotune.measurement.epochs.epoch import EpochSeen, RunLength
from autotune.measurement.interval import Interval
from autotune.program.config import Config
from autotune.program.evaluation import EvaluationLoader, loader_key
from autotune.results.epochs.timed_run import Loop, PythonExit, RunFacts, TimedRun
from autotune.results.epochs.whole_run import EvaluationGain, WholeRun

LEAST_PAIRS = 2
ALIKE = 0.05  # share of its batches by which an epoch may differ from others
UNCHANGED = Interval(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class _Written:
    """What timed runs showed of the program as written.

    Attributes:
        runs: Those that can be taken together; at least one.
        epochs: The epochs of each, as they are in a training of the program's length.
        windows_s: Seconds of a whole training pass, as windows of the search give them.
        loop_s: The same with what the epochs showed.
        within_s: Seconds in the middle of a pass by the search; None if the epochs tell them.
    """

    runs: Sequence[TimedRun]
    epochs: Sequence[Sequence[EpochSeen]]
    windows_s: Interval
    loop_s: Interval
    within_s: Interval | None

    @property
    def usual(self) -> EpochSeen:
        """An epoch that stands for the others."""
        return usual_epochs(self.epochs[0])[-1]

    def breakdown(self, epochs: Sequence[Sequence[EpochSeen]], loop_s: Interval) -> EpochBreakdown:
        """Return what an epoch consists of.

        Args:
            epochs: The epochs of one or more runs of some config.
            loop_s: Seconds of a whole training pass under that.
        """
        return mean_breakdown([breakdown(run, loop_s, self.within_s) for run in epochs])


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
    own = _as_written(written, others, loops[0], program)
    after_s = None if own is None else loops[1].seconds(own.usual)
    if own is None or after_s is None:
        return None
    # A first epoch is slower, so it bounds later ones from above
    is_bound = written.tells_first_alone and program.length.epochs != 1
    before = own.breakdown(own.epochs, own.loop_s)
    gain, refusal = _evaluation_gain(others)
    end = program.python_exit or PythonExit(0.0, 0.0)
    whole = WholeRun(
        before.as_first if is_bound else before,
        None,
        None,
        _known_length(program.length, own.epochs[0]),
        program.startup_s,
        gain,
        refusal,
        ending_s=ending_s(own.epochs[0]) + end.seconds,
        timing_s=sum(run.cost_s for run in others) + end.cost_s,
    )
    faster = gain if gain is not None and gain.is_claimed else None
    if best is None and faster is None:
        return whole
    run = next((run for run in reversed(others) if run.config == best), None)
    found, doubt = ((), "") if best is None else _seen_under(run, written)
    after_s = after_s.times(own.loop_s.estimate / own.windows_s.estimate)
    after = _recommended(own, run if found else None, found, faster, after_s, program.length)
    after = after.as_first if is_bound else after
    return replace(
        whole,
        after=after,
        speedup=_gain(whole.before, after, UNCHANGED if best is None else speedup),
        doubt=doubt,
        compile_s=program.compile_s,
        outputs=None if run is None else run.outputs,
    )


def _as_written(
    written: TimedRun, others: Sequence[TimedRun], loop: Loop, program: RunFacts
) -> _Written | None:
    """Return what is known of the program as written; None without the seconds of a whole epoch."""
    alike = [run for run in others if run.config == written.config and _tells_alike(run, written)]
    runs = alike or [written]
    epochs = [[epoch.within(program.length) for epoch in run.telling] for run in runs]
    if not epochs[0]:
        return None
    windows_s = loop.seconds(usual_epochs(epochs[0])[-1])
    if windows_s is None:
        return None
    loop_s = mean_of([with_timed_loop(run, windows_s) for run in epochs])
    within_s = _within_s(epochs[0], loop, program.interruptions_s)
    return _Written(runs, epochs, windows_s, loop_s, within_s)


def _recommended(
    own: _Written,
    run: TimedRun | None,
    found: Sequence[EpochSeen],
    faster: EvaluationGain | None,
    loop_s: Interval,
    length: RunLength,
) -> EpochBreakdown:
    """Return the epoch under what is recommended.

    Args:
        own: The program as written, whose epochs count without those of the recommended config.
        run: The timed run of the recommended config; None if none is recommended or it showed no
            epoch to compare.
        found: The epochs that it showed.
        faster: Options of an evaluation loader that are recommended; None if none are.
        loop_s: Seconds of a whole training pass under the recommended config.
        length: How long the program trains.
    """
    runs, epochs = own.runs, own.epochs
    if run is not None:
        runs, epochs = [run], [[epoch.within(length) for epoch in found]]
    after = own.breakdown(epochs, loop_s)
    if faster is None:
        return after
    key, speedup = loader_key(faster.loader.facts), faster.speedup
    gains = [_gain_in(run, faster) for run in runs]

    def evaluation_s(error: float) -> Interval:
        shorter = [
            [epoch.with_passes_over(key, 1 / (error * by)) for epoch in its]
            for its, by in zip(epochs, gains, strict=True)
        ]
        return own.breakdown(shorter, loop_s).evaluation_s

    estimate = evaluation_s(1.0).estimate
    low = evaluation_s(speedup.high / speedup.estimate).low
    high = evaluation_s(speedup.low / speedup.estimate).high
    return replace(after, evaluation_s=Interval(estimate, low, high))


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


def _seen_under(run: TimedRun | None, written: TimedRun) -> tuple[tuple[EpochSeen, ...], str]:
    """Return the epochs under a config that compare with those as written.

    Args:
        run: Its timed run; None without one.
        written: That of the program as written, of which only the first epoch may have been seen.

    Returns:
        The epochs, and why there is none of them, as a sentence: all but the training steps is then
        taken to be as before.
    """
    if run is None:
        return (), (
            "There was no time to run epochs under this config: all but the steps is as before"
        )
    is_first = written.tells_first_alone
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
    key = loader_key(first.loader)
    alike = [t for t in tried if t.loader is not None and loader_key(t.loader) == key]
    compared = [t.ratios for t in alike if t.chosen == first.chosen and t.ratios]
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
