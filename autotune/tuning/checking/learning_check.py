"""Learning check: what a larger global batch does to the loss, on the program itself.

A larger global batch makes fewer updates of the same samples. Whether a program still learns as
much from them shows in its loss, so a few updates under the config are compared with the program as
written over the same samples, from several random states. Each run is a fresh process.

The rate must follow the batch, and by which rule depends on the program. So from the first random
state the config trains under each rule, and from the others under the best one. A run whose loss is
hopeless ends early.

A config with another global batch is recommended only if the user accepts that, or if its loss was
found no worse. Where the check does not fit into the budget, the search keeps the program's own
global batch, and tells what a larger one would gain and what the check would take.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.interval import Interval
from autotune.measurement.learning.learning_gap import ceilings, fall, pooled, relative_loss
from autotune.measurement.learning.training_trace import TrainingTrace
from autotune.measurement.outcome import ENDED_BY_US, Ending
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.lr import PARTS, LrRule, batch_growth, rule_for
from autotune.program.may_change import MayChange
from autotune.program.rehearsal import RehearsalPlan, TracePlan
from autotune.results.record import TrialRecord
from autotune.results.rehearsals import RehearsalRecord
from autotune.results.wording import format_duration
from autotune.tuning.checking.short_runs import Runs, ShortRuns
from autotune.tuning.session import Baseline, Session
from autotune.tuning.storage.study import MOST_CHECKS

MOST_SHARE = 0.15  # of the budget, that a check takes without being asked for
LEAST_GROWTH = 2  # by which batches grow
SEEDS = 3
UPDATES = 30  # of the side that makes fewer of them
MOST_LOSS = 0.02  # relative, by which a change by design may make the loss larger
HOPELESS = 0.25  # relative; a config that is worse by this is given up
LEAST_FALL = 3 * MOST_LOSS  # of the program's own loss; below it, learning nothing passes for well


@dataclass(frozen=True)
class Learned:
    """What a learning check found; no gap if nothing could be compared."""

    gap: Interval | None
    seeds: int = 0
    rule: LrRule = LrRule.AUTO
    untold: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether the loss is at most ``MOST_LOSS`` larger, at the upper end of the interval."""
        return self.gap is not None and self.gap.high <= MOST_LOSS


class LearningCheck:
    """Compares the loss under configs with another global batch with that of the program."""

    def __init__(
        self,
        runs: Runs,
        applied: AppliedConfig,
        step_s: float,
        startup_s: float,
        known: dict[RehearsalPlan, TrainingTrace],
    ) -> None:
        self._runs, self._applied, self._known = runs, applied, known
        self._step_s, self._startup_s = step_s, startup_s
        self.was_cut_short = False

    def needs_s(self, config: Config, speedup: float = 1.0) -> float:
        """Return the most seconds that the check of a config takes."""
        ours, theirs = self._updates(config)
        written_s = self._startup_s + ours * self._step_s
        own_s = self._startup_s + theirs * self._step_s * self._growth(config) / speedup
        rules = len(self._rules(config))
        seeds = SEEDS + (rules > 1)  # another rule than the usual one needs a fresh one
        return seeds * written_s + (seeds - 1 + rules) * own_s

    def check(self, config: Config, speedup: float) -> Learned:
        """Compare a config's loss with that of the program as written, after equal samples."""
        written = self._written(config, 0)
        if isinstance(written, Ending):
            return Learned(None)
        if why := untold(written):
            return Learned(None, untold=why)
        gaps, rule = self._first(config, speedup)
        if rule is self._applied.lr_rule:
            seeds = range(1, SEEDS if gaps else 1)
        else:  # chosen because its gap was the least, which therefore says too little
            gaps, seeds = [], range(1, SEEDS + 1)
        for seed in seeds:
            gap = self._gap(config, speedup, seed, rule)
            if gap is None:
                break
            gaps.append(gap)
            if len(gaps) > 1 and min(gaps) > HOPELESS:
                break
        return Learned(pooled(gaps), len(gaps), rule)

    def _first(self, config: Config, speedup: float) -> tuple[list[float], LrRule]:
        # The user's rule, or the usual one, stays the best unless another one is clearly better.
        found: dict[LrRule, float] = {}
        for rule in self._rules(config):
            gap = self._gap(config, speedup, 0, rule)
            if gap is not None:
                found[rule] = gap
        own = self._applied.lr_rule
        if not found:
            return [], own
        best = min(found, key=lambda rule: found[rule])
        if own in found and found[own] <= found[best] + MOST_LOSS:
            best = own
        return [found[best]], best

    def _rules(self, config: Config) -> tuple[LrRule, ...]:
        own, traits = self._applied.lr_rule, self._applied.traits
        sets_rate = "batch_size" in traits.program_knobs
        if own is not LrRule.AUTO or sets_rate or self._growth(config) == 1.0:
            return (own,)
        usual = {rule_for(optimizer.families) for optimizer in traits.optimizers}
        every = (LrRule.LINEAR, LrRule.SQRT, LrRule.NONE)
        return (own, *(rule for rule in every if {rule} != usual))

    def _gap(self, config: Config, speedup: float, seed: int, rule: LrRule) -> float | None:
        written = self._written(config, seed)
        if isinstance(written, Ending):
            return None
        per_update = self._growth(config)
        most = ceilings(written, per_update, HOPELESS)
        _, steps = self._updates(config)
        cost_s = steps * self._step_s * per_update / speedup
        own = self._trace(config, _plan(config, steps, seed, most), cost_s, rule)
        return None if isinstance(own, Ending) else relative_loss(written, own, per_update)

    def _written(self, config: Config, seed: int) -> TrainingTrace | Ending:
        written = self._applied.baseline
        steps, _ = self._updates(config)
        plan = _plan(written, steps, seed)
        if plan not in self._known:
            ran = self._trace(written, plan, steps * self._step_s, LrRule.AUTO)
            if isinstance(ran, Ending):
                return ran
            self._known[plan] = ran
        return self._known[plan]

    def _trace(
        self, config: Config, plan: RehearsalPlan, cost_s: float, rule: LrRule
    ) -> TrainingTrace | Ending:
        ran = self._runs.trace(config, plan, cost_s, rule)
        self.was_cut_short |= isinstance(ran, Ending) and ran.outcome in ENDED_BY_US
        return ran

    def _updates(self, config: Config) -> tuple[int, int]:
        growth = self._growth(config)
        return math.ceil(UPDATES * max(1.0, growth)), math.ceil(UPDATES / min(1.0, growth))

    def _growth(self, config: Config) -> float:
        return batch_growth(self._applied.baseline, config)


def _plan(config: Config, steps: int, seed: int, most: tuple[float, ...] = ()) -> RehearsalPlan:
    return RehearsalPlan(
        batches=steps * int(config.get("accumulation_steps", 1)),
        epochs=1,
        enough_s=0.0,
        least_steps=steps,
        traces=TracePlan(steps=steps, seed=seed, drops_out=True, ends=True, ceilings=most),
    )


def untold(written: TrainingTrace) -> str:
    """Return why the losses of a program do not tell what a config learns; empty if they do."""
    falls = fall(written)
    if falls >= LEAST_FALL:
        return ""
    how = f"falls by {100 * falls:.2g} %" if falls > 0 else "does not fall"
    return f"its loss {how} in {len(written.steps)} steps, too little to tell"


def with_growth(session: Session, baseline: Baseline) -> Baseline:
    """Return the baseline with a space that says whether larger global batches may win.

    They may if that needs no check, or if the check of a small growth fits into the budget. For a
    check that the user asked for, the budget is extended.
    """
    space, study = baseline.space, session.study
    size = space.baseline.get("batch_size")
    if study.checks_learning:
        session.make_room()
    if study.checks_learning or space.defers_growth or size is None:
        return baseline
    least = space.baseline.replace(batch_size=LEAST_GROWTH * int(size))
    if _needs_no_check(space, least):
        return baseline
    needed_s = check_s(session, baseline, least)
    is_deferred = needed_s > MOST_SHARE * session.budget.total_s
    if is_deferred:
        session.events.note(
            f"Checking what a larger batch learns takes about {needed_s:.0f} s. It is done if the "
            f"claim leaves that; --budget {math.ceil(needed_s / MOST_SHARE / 60)}m surely does."
        )
    return replace(baseline, space=replace(space, defers_growth=is_deferred))


def check_s(session: Session, baseline: Baseline, config: Config, speedup: float = 1.0) -> float:
    """Return the seconds that the learning check of a config takes, by its speedup in samples/s."""
    return _check(session, baseline, 0.0).needs_s(config, speedup)


def to_check_s(session: Session, baseline: Baseline, record: TrialRecord) -> float:
    """Return the seconds that rehearsing a measured config and its learning check take."""
    if learns_enough(session, baseline.space, record.config):
        return 0.0
    checking_s = check_s(session, baseline, record.config, samples_ratio(record, baseline))
    return session.plan.least_rehearsal_s + checking_s


def with_learning(
    session: Session, baseline: Baseline, record: RehearsalRecord, speedup: float, kept_s: float
) -> RehearsalRecord:
    """Return the record of a rehearsed config with what it learns by design.

    That is compared if its global batch is another, or if the rehearsal alone leaves room for a
    loss that is too large.
    """
    space, study = baseline.space, session.study
    grows = space.grows(record.config)
    may_stay = _needs_no_check(space, record.config)
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
    is_deferred = space.defers(record.config)
    spare_s = session.budget.left_s - kept_s
    has_time = is_deferred and spare_s >= needed_s  # nobody else needs what the claim has left
    if not has_time and not _may_check(session, needed_s, kept_s, suspected):
        is_blamed = grows and not is_deferred
        return replace(record, guilty=suspected if is_blamed else {}, unchecked_s=needed_s)
    study.learning_checks += 1
    check = _check(session, baseline, kept_s)
    learned = check.check(record.config, speedup)
    if grows and learned.gap is None and check.was_cut_short:  # nothing speaks against it
        is_free = may_stay or is_deferred
        return replace(record, guilty={} if is_free else suspected, unchecked_s=needed_s)
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


def learns_enough(session: Session, space: ResolvedSpace, config: Config) -> bool:
    """Return whether a config may be recommended, as far as its global batch is concerned.

    It keeps that of the program, or the user wants no check, or a check found it sound.
    """
    if not space.grows(config) or _needs_no_check(space, config):
        return True
    checked = (r for r in session.study.rehearsals if r.config == config and r.seeds)
    return any(r.learning is not None and r.learning.high <= MOST_LOSS for r in checked)


def samples_ratio(record: TrialRecord, baseline: Baseline) -> float:
    """Return how many times the baseline's samples/s a measured config makes.

    Its ``speedup`` is about what the search compares, which may be energy; it counts for a config
    that other machines alone have measured.
    """
    if record.measurement is None:
        return 1.0 if record.speedup is None else record.speedup.estimate
    own, written = (m.throughput.estimate for m in (record.measurement, baseline.measurement))
    return own / written


def _may_check(
    session: Session, needed_s: float, kept_s: float, suspected: Mapping[str, KnobValue]
) -> bool:
    study, budget = session.study, session.budget
    if not study.checks_learning:
        is_first = not any(earlier.seeds for earlier in study.rehearsals)
        is_short = needed_s <= MOST_SHARE * budget.total_s
        return is_first and is_short and budget.left_s - kept_s >= needed_s
    if study.learning_checks >= MOST_CHECKS:
        return False
    listed = " ".join(f"{knob}={value}" for knob, value in suspected.items())
    session.events.warn(
        f"Checking what is learned with {listed} takes up to {format_duration(needed_s)} beyond "
        "the budget; Ctrl-C skips it."
    )
    budget.total_s += needed_s
    return budget.left_s - kept_s >= needed_s


def _needs_no_check(space: ResolvedSpace, config: Config) -> bool:
    """Return whether the user wants no check of what a config learns, or has named its batch."""
    return space.may_change is MayChange.ANY or space.names_growth(config)


def _check(session: Session, baseline: Baseline, kept_s: float) -> LearningCheck:
    runs, plan, applied = ShortRuns.of(session, baseline, kept_s), session.plan, baseline.applied
    return LearningCheck(runs, applied, plan.step_s or 0.0, plan.startup_s, session.traces)
