"""Growth: whether a config with another global batch may be recommended.

A larger global batch is often the fastest change, and the only one of which nobody knows before
what it learns. So it is recommended only if the user accepts that, or if the learning check found
its loss no worse. Where that check does not fit into the budget, the search keeps the program's own
global batch, and tells what a larger one would gain and what the check would take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autotune.knobs.space.space import ResolvedSpace
from autotune.program.config import Config, KnobValue
from autotune.program.lr import PARTS
from autotune.results.record import TrialRecord
from autotune.results.rehearsals import RehearsalRecord
from autotune.tuning.baseline import Baseline
from autotune.tuning.checking.learning_check import MOST_LOSS, LearningCheck
from autotune.tuning.checking.short_runs import ShortRuns
from autotune.tuning.session import Session
from autotune.tuning.storage.study import MOST_CHECKS

MOST_SHARE = 0.15  # of the budget, that a check takes without being asked for
LEAST_GROWTH = 2  # by which batches grow


def with_growth(session: Session, baseline: Baseline) -> Baseline:
    """Return the baseline with a space that says whether larger global batches may win.

    They may if that needs no check, or if the check of a small growth fits into the budget.
    """
    space, study = baseline.space, session.study
    size = space.baseline.get("batch_size")
    if _needs_no_check(session, space) or study.checks_learning or size is None:
        return baseline
    least = space.baseline.replace(batch_size=LEAST_GROWTH * int(size))
    is_deferred = check_s(session, baseline, least) > MOST_SHARE * session.budget.total_s
    return replace(baseline, space=replace(space, defers_growth=is_deferred))


def check_s(session: Session, baseline: Baseline, config: Config, speedup: float = 1.0) -> float:
    """Return the seconds that the learning check of a config takes, by the speedup of its rate."""
    return _check(session, baseline, 0.0).needs_s(config, speedup)


def with_learning(
    session: Session, baseline: Baseline, record: RehearsalRecord, speedup: float, kept_s: float
) -> RehearsalRecord:
    """Return the record of a rehearsed config with what it learns by design.

    That is compared if its global batch is another, or if the rehearsal alone leaves room for a
    loss that is too large.

    Args:
        session: Gives the budget and the rigs.
        baseline: The program as written.
        record: Of a config that passed its rehearsal.
        speedup: Of its samples/s, as the search measured it.
        kept_s: Seconds that the check must leave.
    """
    space, study = baseline.space, session.study
    may_stay, grows = _needs_no_check(session, space), space.grows(record.config)
    if may_stay and not study.checks_learning:
        return record
    needed_s = check_s(session, baseline, record.config, speedup)
    is_untold = bool(record.by_design) and record.learning is None
    if not grows:
        is_doubtful = record.learning is not None and record.learning.high > MOST_LOSS
        if not is_doubtful and not (is_untold and study.checks_learning):
            # The losses of several ranks are only those of their shares
            is_untested = is_untold and not record.untold and "devices" not in record.by_design
            return replace(record, unchecked_s=needed_s) if is_untested else record
    suspected = dict(record.by_design)
    if grows:
        changes = record.config.changes_from(space.baseline)
        suspected = {knob: value for knob, value in changes.items() if knob in PARTS}
    if not _may_check(session, needed_s, kept_s, suspected):
        return replace(record, guilty=suspected if grows else {}, unchecked_s=needed_s)
    study.learning_checks += 1
    learned = _check(session, baseline, kept_s).check(record.config, speedup)
    # Only a larger batch needs a proof; another precision may stay where nothing speaks against it
    is_open = learned.gap is None and not grows
    return replace(
        record,
        guilty={} if learned.is_sound or may_stay or is_open else suspected,
        learning=record.learning if is_open else learned.gap,
        seeds=0 if is_open else learned.seeds,
        lr_rule=learned.rule,
        untold=learned.untold,
    )


def may_win(session: Session, space: ResolvedSpace, config: Config) -> bool:
    """Return whether a config may be recommended, as far as its global batch is concerned.

    It keeps that of the program, or the user wants no check, or a check found it sound.
    """
    if not space.grows(config) or _needs_no_check(session, space):
        return True
    checked = (r for r in session.study.rehearsals if r.config == config and r.seeds)
    return any(r.learning is not None and r.learning.high <= MOST_LOSS for r in checked)


def may_be_checked(session: Session, space: ResolvedSpace, config: Config) -> bool:
    """Return whether a config may win, or may still be checked so that it can."""
    is_used_up = session.study.learning_checks >= MOST_CHECKS
    return not is_used_up or may_win(session, space, config)


def samples_ratio(record: TrialRecord, baseline: Baseline) -> float:
    """Return how many times the baseline's samples/s a measured config makes.

    Its ``speedup`` is about what the search compares, which may be energy.
    """
    assert record.measurement is not None, "a candidate was measured"
    own, written = (m.throughput.estimate for m in (record.measurement, baseline.measurement))
    return own / written


def _may_check(
    session: Session, needed_s: float, kept_s: float, suspected: Mapping[str, KnobValue]
) -> bool:
    """Return whether there is time for a learning check, which asking for it extends."""
    study, budget = session.study, session.budget
    if not study.checks_learning:
        is_first = not any(earlier.seeds for earlier in study.rehearsals)
        is_short = needed_s <= MOST_SHARE * budget.total_s
        return is_first and is_short and budget.left_s - kept_s >= needed_s
    if study.learning_checks >= MOST_CHECKS:
        return False
    listed = " ".join(f"{knob}={value}" for knob, value in suspected.items())
    session.events.note(
        f"The self-check compares what is learned with {listed}: about {needed_s:.0f} s beyond "
        "the budget."
    )
    budget.total_s += needed_s
    return budget.left_s - kept_s >= needed_s


def _needs_no_check(session: Session, space: ResolvedSpace) -> bool:
    """Return whether the user wants larger global batches: accepts changes, or named a factor."""
    named = (space.requested | space.fixed.keys()) & set(PARTS)
    return session.study.head.options.accepts_learning_change or bool(named)


def _check(session: Session, baseline: Baseline, kept_s: float) -> LearningCheck:
    runs, plan, applied = ShortRuns(session, baseline, kept_s), session.plan, baseline.applied
    return LearningCheck(runs, applied, plan.step_s or 0.0, plan.startup_s, session.traces)
