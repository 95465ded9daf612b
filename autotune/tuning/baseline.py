"""The baseline: start the untouched program, observe it and measure it.

Everything else in a search depends on this: the search space is resolved against what the first
steps reveal, and every speedup is a ratio to the baseline. If it cannot be measured, the search
ends with an error that says why.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.errors import AutotuneError, BudgetError, UsageError
from autotune.knobs.space.space import KEEPS, ResolvedSpace
from autotune.machine.probes.page_faults import page_fault_s
from autotune.measurement.goal import NO_COUNTER, Objective
from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Cause, Ending, Outcome
from autotune.measurement.turn import Played
from autotune.program.applied_config import AppliedConfig
from autotune.program.profile import Profile
from autotune.results.record import BaselineInfo, SearchInfo, TrialRecord
from autotune.rig.failures import program_error
from autotune.rig.open_rig import last_line_of
from autotune.tuning.choosing.diagnosis import Diagnosis, diagnose
from autotune.tuning.events import Phase
from autotune.tuning.live_rig import MAX_STARTS, Stay, over_limit
from autotune.tuning.session import Baseline, Session
from autotune.tuning.start.first_start import examined
from autotune.tuning.start.start_up_time import unmeasured

STAY_S = 2.0  # of the program as written, after its first steps
MIN_BUDGET_S = 5.0  # importing torch alone took 2-6 s on 2 cores
# Time for trials above which the step profile is worth its cost: it took 2-7 s on 2 cores.
PROFILE_WORTH_S = 60.0
PROFILE_WORTH_STEPS = 100  # the same in steps: a profile needs about 25, however long they are
# Share of a step that page faults take, from which on configs keep their memory. A claim may be
# wrong by as much without that; examples/digits_cnn has 2 %, pytorch/examples' mnist 20 %.
WORTH_KEEPING = 0.03


def measure_baseline(session: Session) -> Baseline:
    """Observe and measure the untouched program, unless an earlier session did.

    The result is stored in the study as trial 0, and the rest of the budget is divided between
    trials and confirmation. A resumed search starts no process here: it reads the stored baseline.

    Raises:
        ProgramError: when the program fails by itself or trains no step.
        BudgetError: when the budget ends before the baseline is measured.
        UsageError: when a knob that the user named cannot act here, or what configs are to be
            compared by cannot be measured.
    """
    baseline = _from_record(session)
    if baseline is not None:
        return baseline
    if session.budget.total_s < MIN_BUDGET_S:
        raise BudgetError(
            f"A budget of {session.budget.total_s:g} s is too short: a program takes about "
            f"{MIN_BUDGET_S:.0f} s to start, and searches take minutes. Try --budget 3m."
        )
    return _measure(session)


def diagnosed(session: Session, baseline: Baseline) -> Diagnosis:
    """Return what limits the program as written, and what usually helps there."""
    study = session.study
    return diagnose(
        baseline.profile,
        baseline.measurement,
        baseline.space,
        study.hardware,
        baseline.breakdown,
        study.goal,
    )


def _from_record(session: Session) -> Baseline | None:
    study = session.study
    facts, records = study.facts, study.records
    if facts is None:
        return None
    space = study.space
    applied = _applied(space, facts.profile, study.head)
    measurement = next(r.measurement for r in records if r.measurement is not None)
    session.live.set_up(space, applied, measurement.step_s)
    if facts.page_faults is not None:
        session.live.faults.alone[space.baseline] = facts.page_faults
    session.divide(needs_pairs=bool(space.asked))
    session.events.on_resume(records)
    return Baseline(facts.profile, measurement, facts.breakdown, space, applied)


def _applied(space: ResolvedSpace, profile: Profile, head: SearchInfo) -> AppliedConfig:
    return AppliedConfig.as_written(space.baseline, profile, head.options.lr_rule, space.flags)


def _measure(session: Session) -> Baseline:
    study, live = session.study, session.live
    study.failure = ""  # the program may have been mended since
    head = study.head
    session.begin(Phase.AS_WRITTEN)
    began = session.rigs.clock()
    session.events.on_start(lambda: last_line_of(session.rigs.log))
    ready = live.observe(session.until_over)
    if isinstance(ready, Ending):
        raise _failure(session, ready)
    hardware = session.rigs.hardware  # with the GPUs that the program sees
    space = head.resolve(hardware, ready.profile)
    applied = _applied(space, ready.profile, head)
    live.set_up(space, applied)
    record = _record(session, space)
    profile = _with_worth(session, ready.profile, record)
    if profile != ready.profile:
        space = head.resolve(hardware, profile)
        applied = _applied(space, profile, head)
        live.set_up(space, applied)
        record = replace(record, config=space.baseline)
    if record.ending is not None:
        took_s = session.rigs.clock() - began
        raise _failure(session, examined(session.rigs, record.ending, took_s, session.until_over))
    study.tell(record, space)
    assert record.measurement is not None, "a trial without ending has a measurement"
    goal = study.goal
    if goal.worth(Played(1.0, 1.0), record.measurement) is None:
        raise UsageError(
            f"--objective {goal.objective}: {NO_COUNTER[goal.objective]}. "
            "Use --objective throughput."
        )
    session.events.on_trial_end(0, study.records[0], space)
    if (too_much := over_limit(session.rigs, goal, record.measurement)) is not None:
        session.events.warn(f"The program as written is beyond the limit: {too_much.reason}.")
    facts = BaselineInfo(
        profile,
        ready.startup_s,
        record.measurement.step_s,
        first_step_s=ready.first_step_s,
        gpus=ready.devices,
        page_faults=live.faults.alone.get(space.baseline),
        files=session.files,
    )
    # Stored before the step is profiled: from here on the session knows how long a confirmation
    # takes, and a search that is killed need not measure the baseline again.
    study.facts = facts
    session.divide(needs_pairs=bool(space.asked))
    worth_s = max(PROFILE_WORTH_S, PROFILE_WORTH_STEPS * facts.step_s)
    if session.budget.left_s - session.plan.reserve_s > worth_s:
        study.facts = facts = replace(
            facts, breakdown=live.profile_step(session.until_confirmation)
        )
    return Baseline(profile, record.measurement, facts.breakdown, space, applied)


def _with_worth(session: Session, profile: Profile, record: TrialRecord) -> Profile:
    # Where page faults take next to no time, to keep memory is a change that gives nothing; where
    # memory is to be saved, it takes more of it. Machines that share a search all keep it: measured
    # by each, the share would let some have the setting in their configs and others not, and these
    # could neither be pooled nor claimed together
    own = session.live.faults.alone.get(record.config)
    if record.measurement is None or KEEPS in session.study.head.space.requested:
        return profile
    share = 1.0 if own is None else own * page_fault_s() / record.measurement.step_s
    is_for_memory = session.study.goal.objective is Objective.MEMORY
    is_worth = share >= WORTH_KEEPING or not session.sharing.is_alone
    if is_worth and not is_for_memory:
        return profile
    return replace(profile, allocators=replace(profile.allocators, mmap_threshold=None))


def _record(session: Session, space: ResolvedSpace) -> TrialRecord:
    # If the program ends before, or turns out to need another run mode, it is started again. The
    # record's ``ending`` says why it could not be measured.
    live, began_s = session.live, session.rigs.clock()
    least_s = max(STAY_S, session.study.goal.least_stay_s)
    for _ in range(MAX_STARTS):
        ending = live.ready_for(space.baseline, session.until_over)
        stay = ending or live.stay(space.baseline, session.until_over, least_s, with_loads=True)
        if isinstance(stay, Stay):
            live.expect_steps_of(stay.step_s)
            break
        if not session.rigs.learn(stay):
            break
    is_measured = isinstance(stay, Stay)
    return TrialRecord(
        space.baseline,
        "the program as written",
        Measurement.of(stay.turns, stay.taken) if isinstance(stay, Stay) else None,
        None if isinstance(stay, Stay) else stay,
        Interval(1.0, 1.0, 1.0) if is_measured else None,
        live.number,
        session.rigs.clock() - began_s,
    )


def _failure(session: Session, ending: Ending) -> AutotuneError:
    # A lack of time gets advice about the budget. A program that asked for input is not slow, so it
    # is reported as failed even if time ran out.
    program = session.study.head.program
    if ending.outcome is Outcome.OUT_OF_TIME and ending.cause is not Cause.INPUT:
        return unmeasured(program, session.budget.total_s, session.startup, session.rigs.log)
    error = program_error(program, ending)
    if ending.outcome is Outcome.INTERRUPTED:  # nobody's failure
        return error
    session.study.failure = error.headline
    return error
