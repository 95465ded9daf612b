"""Whole run: time the epochs of the program as written and of the config that was confirmed.

That comes last, so that it takes nothing from the measurement of the training loop.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

from autotune.measurement.epochs.breakdown import around_batch_s, is_surely_more
from autotune.measurement.goal import Objective
from autotune.measurement.interval import Interval
from autotune.results.epochs.timed_run import PythonExit
from autotune.tuning.baseline import Baseline
from autotune.tuning.budget import ENDING_S
from autotune.tuning.conclude import usual_rate
from autotune.tuning.confirming.confirm import ConfirmationResult
from autotune.tuning.session import EPOCHS_SHARE, Session, least_timed_s
from autotune.tuning.timed_runs import Observed, first_share, timed_run

WORTH_CONFIRMING = 1.1  # speedup of an evaluation pass, seen in the first process
SHORT_RUN_S = 100.0  # of which the end of Python, about a second, is a hundredth
EXIT_WORTH_S = 5.0  # in which a process loads torch and ends


def _loop_s(session: Session, baseline: Baseline) -> float | None:
    """Return the seconds of a whole training pass of the program; None if its end is unknown."""
    measured, length = baseline.measurement, baseline.profile.length
    batch = measured.samples_per_step / max(1.0, baseline.profile.batches_per_step)
    limits = [
        measured.samples_per_epoch,
        None if length.batches is None else length.batches * batch,
        None if length.steps is None else length.steps * measured.samples_per_step,
    ]
    samples = min((one for one in limits if one), default=None)
    return None if samples is None else samples / usual_rate(session, baseline).estimate


def needed_budget_s(startup_s: float, step_s: float) -> float:
    """Return the least budget that leaves time to time the epochs of the program as written.

    Args:
        startup_s: Seconds until the program's first steps were observed.
        step_s: Seconds per step.
    """
    return (startup_s + least_timed_s(step_s) + ENDING_S) / EPOCHS_SHARE


def time_epochs(session: Session, baseline: Baseline, confirmed: ConfirmationResult) -> None:
    """Time the epochs of both sides, and record them.

    Options of an evaluation loader that were faster in the first process are compared again in the
    second, because a claim needs two processes.

    Does nothing if there is no time for it, or if the program reads no DataLoader: then it shows no
    epochs.
    """
    facts, study = session.study.facts, session.study
    if facts is None or not facts.profile.loaders or session.stop.requests:
        return
    measured, own = baseline.measurement, baseline.space.baseline
    loop_s = _loop_s(session, baseline)
    program = Observed(facts.profile, baseline.applied, facts.startup_s, measured.step_s, loop_s)
    session.trial_runner.close()
    share = first_share(session, program)
    first = study.timed(own) or timed_run(session, program, own, share=share)
    if first is None:
        needed_s = math.ceil(needed_budget_s(facts.startup_s, facts.step_s))
        why = f"a tenth of the budget is too short for that; --budget {needed_s}s leaves the time"
        if needed_s <= session.budget.total_s:
            why = "the time that was kept for that is used up; a longer --budget leaves some"
        session.events.note(f"Whole epochs were not timed: {why}.")
        return
    if not first.telling:
        reason = first.reason or "there was no time for more than the epoch that compiles"
        session.events.note(f"Whole epochs were not timed: {reason}.")
        return
    tried = first.tried
    is_worth_it = tried is not None and fmean(tried.ratios or [1.0]) > WORTH_CONFIRMING
    options = tried.chosen if tried is not None and is_worth_it else {}
    confirmation, candidate = confirmed.confirmation, confirmed.candidate
    is_faster = confirmation is not None and confirmation.is_faster
    best = candidate.config if is_faster and candidate is not None else None
    compiles = best is not None and best.get("compile", "off") != "off"
    # A process that compiles has no time left to compare
    if options and (best is None or compiles) and study.timed(own, number=1) is None:
        timed_run(session, program, own, share=1.0, options=options)
    if best is not None and study.timed(best) is None:
        timed_run(session, program, best, share=1.0, options={} if compiles else options)
    _time_exit(session, baseline, loop_s)


def _time_exit(session: Session, baseline: Baseline, loop_s: float | None) -> None:
    """Time how long Python takes to end, where that matters to how long the training takes.

    Args:
        session: The search.
        baseline: The program as written.
        loop_s: Seconds of a whole training pass; None if unknown.
    """
    length, study = baseline.profile.length, session.study
    run_s = math.inf
    if length.steps is not None:
        run_s = length.steps * baseline.measurement.step_s
    elif length.epochs is not None and loop_s is not None:
        run_s = length.epochs * loop_s
    slot_s, began_s = session.epoch_slot_s, session.budget.spent_s
    is_over = session.stop.requests > 0 or slot_s < EXIT_WORTH_S
    if study.python_exit is not None or run_s > SHORT_RUN_S or is_over:
        return
    seconds = session.rigs.python_exit_s(slot_s)
    study.python_exit = PythonExit(seconds or 0.0, session.budget.spent_s - began_s)


def rejudged(
    session: Session, baseline: Baseline, confirmed: ConfirmationResult
) -> ConfirmationResult:
    """Return a confirmation by whole epochs with what lies around the loop under its winner.

    The search takes that from the program as written, for all configs. A winner that slows it, by
    fewer threads in evaluation for example, would look better than it is.
    """
    confirmation, candidate = confirmed.confirmation, confirmed.candidate
    if session.study.goal.objective is not Objective.RUN_TIME:
        return confirmed
    if confirmation is None or candidate is None:
        return confirmed
    runs = [session.study.timed(c) for c in (baseline.space.baseline, candidate.config)]
    profile = baseline.profile
    around = [
        around_batch_s([epoch.within(profile.length) for epoch in run.telling])
        for run in runs
        if run is not None and run.telling
    ]
    if len(around) < len(runs) or not is_surely_more(around[1], around[0]):
        return confirmed
    rate = confirmation.rates[1].estimate
    loop_s = baseline.measurement.samples_per_step / profile.batches_per_step / rate
    before_s = loop_s + around[0].estimate
    # More time around the loop means less speedup, so the bounds change places
    factor, low, high = (
        before_s / (loop_s + s) for s in (around[1].estimate, around[1].high, around[1].low)
    )
    speedup = confirmation.speedup
    fairer = Interval(speedup.estimate * factor, speedup.low * low, speedup.high * high)
    return replace(confirmed, confirmation=replace(confirmation, speedup=fairer))
