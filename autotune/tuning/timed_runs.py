"""Timed runs: short runs of the program that time what lies around its training steps.

Where evaluation takes a large part of an epoch, the same run tries options of its slowest loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.measurement.epochs.breakdown import around_batch_s
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.evaluation import EvaluationPlan
from autotune.program.profile import Profile
from autotune.program.rehearsal import RehearsalPlan
from autotune.results.epochs.timed_run import TimedRun
from autotune.tuning.budget import ENDING_S, Until
from autotune.tuning.session import Session, least_timed_s

FIRST_SHARE = 0.6  # of the time, if a run fits into that: it ends early where nothing is tried
PASSES = 8  # of training and evaluation that fit into a timed run, if they are cut
# The most share of a timed run that a training pass takes which is not cut, and how much longer
# than foretold it may be. Two epochs fit even if their evaluation is cut only after the same time.
WHOLE_SHARE, WHOLE_SLACK = 0.2, 1.3
EPOCHS_ENOUGH = 0.7  # of a timed run, after which two epochs are enough
CHOOSING_ENOUGH = 0.4  # the same where options of an evaluation loader may be tried after that
COMPARING_ENOUGH = 0.25  # the same where the options to compare are known
ENOUGH = 0.85  # of a timed run, after which no pass is tried, and no evaluation sought, any more
MOST_EPOCHS = 10**6
ALL = 10**9  # batches
ANSWER_S = 3.0  # a rig that exceeds its time by this is considered not to answer any more
NO_EPOCH = "no epoch of it ended in time"
NO_TIME = "a tenth of the budget is too short for that"


@dataclass(frozen=True)
class Observed:
    """What must be known of a program to time it.

    Attributes:
        profile: What its first steps revealed.
        applied: The program as written.
        startup_s: Seconds until its first steps were observed.
        step_s: Seconds per step; None if that was not measured yet.
        loop_s: Seconds of a whole training pass; None if unknown.
    """

    profile: Profile
    applied: AppliedConfig
    startup_s: float
    step_s: float | None = None
    loop_s: float | None = None


def around_s(session: Session, program: Observed) -> tuple[float | None, str]:
    """Return the seconds that a sample costs besides the training loop, or why they are unknown.

    Args:
        session: Gives the rig and the time.
        program: The program.
    """
    if not program.profile.loaders:
        return None, "the program trains without a DataLoader, so its epochs cannot be seen"
    # The winner's run decides as well, so its time has to be left
    run = timed_run(session, program, program.applied.baseline, share=FIRST_SHARE)
    if run is None:
        return None, NO_TIME
    if not run.telling:
        return None, run.reason or NO_EPOCH
    profile = program.profile
    # The profile counts those of one rank
    samples_per_batch = profile.world_size * profile.samples_per_step / profile.batches_per_step
    batch_s = around_batch_s([epoch.within(profile.length) for epoch in run.telling])
    return batch_s.estimate / samples_per_batch, ""


def _is_in_ranks(session: Session, program: Observed, config: Config) -> bool:
    """Return whether the program trains in several ranks under a config."""
    has_own = session.study.head.program.ranks is not None or program.profile.world_size > 1
    return has_own or config.get("world_size", 1) != 1


def first_share(session: Session, program: Observed) -> float:
    """Return the share of the time that the program as written gets: all, if it needs more.

    Without a run under the best config, what lies around its steps is taken to be as before.
    """
    left_s = FIRST_SHARE * session.epoch_slot_s - program.startup_s - ENDING_S
    return FIRST_SHARE if left_s >= least_timed_s(program.step_s or 0.0) else 1.0


def timed_run(
    session: Session,
    program: Observed,
    config: Config,
    *,
    share: float,
    options: Mapping[str, KnobValue] | None = None,
) -> TimedRun | None:
    """Run a config, record what was timed and return it; None if there is no time for it.

    Args:
        session: Gives the rig and the time, and keeps the record.
        program: The program.
        config: What it runs under.
        share: Of the seconds that are left for timing epochs.
        options: The only options of an evaluation loader to try; none of them tries nothing, None
            tries those worth it.
    """
    slot_s = share * session.epoch_slot_s
    run_s = slot_s - program.startup_s - ENDING_S
    if run_s < least_timed_s(program.step_s or 0.0):
        return None
    if not session.study.timed_runs:
        session.events.on_phase("timing whole epochs")
    began_s = session.budget.spent_s
    until_s = session.budget.left_s - slot_s - ANSWER_S
    should_stop = Until(
        session.until_overdrawn.stopped, lambda: session.budget.left_s - until_s, NO_EPOCH
    )
    with session.rigs.new() as rig:
        plan = _plan(session, program, slot_s, run_s, options)
        if _is_in_ranks(session, program, config):
            plan = _for_ranks(plan, most=_batches(program, run_s), run_s=run_s)
        ran = rig.rehearse(replace(program.applied, config=config), plan, should_stop)
    seen, failure = ran.seen, ran.ending.reason if ran.ending is not None else ""
    tried = seen.tried if seen is not None else None
    if ran.has_failed and tried is not None:  # what was timed before options were tried is sound
        tried = replace(
            tried, passes=(), refusal=f"under other options the program fails: {failure}"
        )
    epochs = seen.timed if seen is not None and (tried or not ran.has_failed) else ()
    cost_s = session.budget.spent_s - began_s
    outputs = seen.outputs if seen is not None else None
    untimed = failure or (seen.why_untimed if seen is not None else "") or NO_EPOCH
    reason = "" if epochs else untimed
    run = TimedRun(config, epochs, cost_s, reason, tried, outputs)
    session.study.add_timed(run)
    session.study.spent_s = session.budget.spent_s
    return run


def pass_seconds(run_s: float, loop_s: float | None) -> float:
    """Return the seconds after which passes of a timed run are cut.

    Args:
        run_s: Seconds of the run, without its start.
        loop_s: Seconds of a whole training pass; None if unknown. Such passes are not cut if at
            least two epochs fit.
    """
    cut_s = run_s / PASSES
    if loop_s is None or loop_s > WHOLE_SHARE * run_s:
        return cut_s
    return max(cut_s, WHOLE_SLACK * loop_s)


def _plan(
    session: Session,
    program: Observed,
    slot_s: float,
    run_s: float,
    options: Mapping[str, KnobValue] | None,
) -> RehearsalPlan:
    """Return how a config is run in some seconds."""
    profile = program.profile
    pass_s = pass_seconds(run_s, program.loop_s)
    evaluation = EvaluationPlan(
        cores=session.study.head.hardware.cpu_quota,
        pins=profile.device != "cpu",
        enough_s=slot_s - ENDING_S - (1 - ENOUGH) * run_s,
        loop_s=program.loop_s,
        options=options,
    )
    return RehearsalPlan(
        # A trainer counts its batches itself
        batches=_batches(program, run_s) if profile.trainer else 3,
        other_batches=ALL if profile.trainer else 2,
        most_epochs=MOST_EPOCHS,
        enough_s=_enough(options) * run_s,
        seek_s=ENOUGH * run_s,
        most_s=slot_s - ENDING_S,
        pass_s=pass_s,
        evaluation=evaluation if options is None or options else None,
    )


def _enough(options: Mapping[str, KnobValue] | None) -> float:
    """Return the share of a timed run after which two epochs are enough."""
    if options is None:
        return CHOOSING_ENOUGH
    return COMPARING_ENOUGH if options else EPOCHS_ENOUGH


def _for_ranks(plan: RehearsalPlan, most: int, run_s: float) -> RehearsalPlan:
    """Return a plan for several ranks, which must all cut a pass after the same batch.

    So passes end by their batches, not by the time that each rank sees. Options of evaluation
    loaders are not tried.

    Args:
        plan: The plan for one process.
        most: Batches of a pass.
        run_s: Seconds of the run, without its start.
    """
    return replace(
        plan,
        batches=most,
        other_batches=max(most, plan.other_batches),
        enough_s=EPOCHS_ENOUGH * run_s,
        pass_s=0.0,
        evaluation=None,
    )


def _batches(program: Observed, run_s: float) -> int:
    """Return the batches after which a pass of a timed run has had its time."""
    pass_s = pass_seconds(run_s, program.loop_s)
    batch_s = (program.step_s or pass_s) / max(1.0, program.profile.batches_per_step)
    return max(3, int(pass_s / batch_s))
