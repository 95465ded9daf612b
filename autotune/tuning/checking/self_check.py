"""Self-check: compare what a config trains with what the program trains as it is written.

Tests on our own programs cannot foresee every script, so the comparison runs on the user's program:
fresh processes, all from the same random state and over the same short epochs. One runs it as
written, one under the config. If their numbers are not equal, a third one tells how far rounding
alone leads in this program (``measurement/learning/training_trace.py``).

Changes that train something else by design, such as another precision or a larger global batch, are
taken back for the comparison. What another precision does to the loss is compared at equal samples;
what a larger global batch does would take longer than these short runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Self

from autotune.knobs import registry
from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.interval import Interval
from autotune.measurement.learning.learning_gap import loss_gap
from autotune.measurement.learning.training_trace import (
    NO_TIME,
    ROUNDED,
    SAMPLES,
    Agreement,
    Sameness,
    TrainingTrace,
    compare,
    same,
)
from autotune.measurement.outcome import ENDED_BY_US, Ending
from autotune.program.config import Config, KnobValue
from autotune.program.domain import ranks_in, strategy_in
from autotune.program.lr import PARTS, batch_growth
from autotune.program.may_change import MayChange
from autotune.program.rehearsal import Rehearsal, RehearsalPlan, TracePlan
from autotune.results.rehearsals import Canary, RehearsalRecord
from autotune.tuning.checking.learning_check import MOST_LOSS, untold
from autotune.tuning.checking.short_runs import Runs
from autotune.tuning.choosing.diagnosis import REPLICAS
from autotune.tuning.choosing.worth import one_fewer
from autotune.tuning.plan import CHECK_EPOCHS, check_batches
from autotune.tuning.session import Baseline, Session

NOT_COMPARED = Agreement(Sameness.UNKNOWN, why=NO_TIME)
BATCH = ("batch_size", "accumulation_steps")  # what one process makes of a step
TRAINS_THE_SAME = {Sameness.BITS, Sameness.ROUNDING}
SHAKES = 3  # shaken runs before a config is said to train something else


class SelfCheck:
    """Compares configs with the program as written, which is run once for all of them.

    Args:
        traces: Those of the program as written, to which it adds; later checks use them.
        normalises: Whether the model has BatchNorm.
        canary: What the exact settings were found to train before, if they were compared.
    """

    def __init__(
        self,
        runs: Runs,
        space: ResolvedSpace,
        step_s: float,
        traces: dict[RehearsalPlan, TrainingTrace],
        *,
        normalises: bool = False,
        canary: Canary | None = None,
    ) -> None:
        self._runs, self._space, self._traces = runs, space, traces
        self._normalises, self._canary = normalises, canary
        self._batches = check_batches(step_s)
        self.cost_s = CHECK_EPOCHS * self._batches * step_s  # of the steps of one run

    @classmethod
    def of(cls, session: Session, baseline: Baseline, runs: Runs) -> Self:
        """Return the check of a search, with what it knows of its program."""
        return cls(
            runs,
            baseline.space,
            baseline.measurement.step_s,
            session.traces,
            normalises=baseline.profile.model.batch_norm_layers > 0,
            canary=session.study.canary,
        )

    def plan(self, config: Config, *, shakes: int = 0, shares: int = 1) -> RehearsalPlan:
        """Return how a config is run for the comparison; its steps are those of the baseline."""
        own, theirs = (int(c.get("accumulation_steps", 1)) for c in (self._space.baseline, config))
        steps = math.ceil(self._batches / own)
        draws = self._space.may_change is MayChange.NOTHING  # other numbers are other losses
        return RehearsalPlan(
            batches=steps * theirs,
            epochs=CHECK_EPOCHS,
            enough_s=0.0,
            least_steps=CHECK_EPOCHS * steps,
            traces=TracePlan(shakes=shakes, drops_out=draws, evens_items=not draws, shares=shares),
        )

    def plan_to_rehearse(self, config: Config, most_s: float) -> RehearsalPlan:
        """Return how a config is rehearsed: as it is compared, if all of it is and time allows."""
        usual = RehearsalPlan()
        if batch_growth(self._space.baseline, config) != 1.0 or most_s <= 2 * self.cost_s:
            return usual
        return replace(self.plan(config), enough_s=usual.enough_s)

    def _shares(self, config: Config) -> int:
        """Return among how many ranks of a config BatchNorm sees a batch shared out."""
        is_whole = not self._normalises or config.get("sync_batchnorm")
        return 1 if is_whole else ranks_in(config) // ranks_in(self._space.baseline)

    def exact_part(self, config: Config) -> Config:
        """Return a config without the changes that train something else by design.

        More batches to a step, or more ranks, make a larger one by design. How they are put
        together is compared at the program's own step, of smaller batches.
        """
        space, normalises = self._space, self._normalises
        own = space.baseline
        back = {knob: own[knob] for knob in by_design(config, own, normalises=normalises)}
        if "devices" in back:
            shared = space.with_own_batch(config)
            back |= {knob: shared[knob] for knob in PARTS if knob in back}
        elif "accumulation_steps" in back and "batch_size" in space.domains and not normalises:
            # Into how many smaller batches the program's own can be cut as the config does it
            size, steps = int(own["batch_size"]), int(config["accumulation_steps"])
            parts, rest = divmod(steps, int(own["accumulation_steps"]))
            if parts > 1 and not rest and size % parts == 0:
                back |= {"accumulation_steps": steps, "batch_size": size // parts}
        return space.canonical(config.replace(**back))

    def check(
        self, config: Config, own: Rehearsal, traced: TrainingTrace | None = None
    ) -> RehearsalRecord:
        """Compare the training of a config that was rehearsed with that of the program as written.

        What makes it differ is to blame: one change if one was found. *traced* is what the
        rehearsal learned, if that can be compared.
        """
        written, canary = self._space.baseline, self._canary
        designed = by_design(config, written, normalises=self._normalises)
        exact, found = self.exact_part(config), None
        if exact != written:
            is_cleared = canary is not None and canary.clears(exact, written)
            found = canary.training if canary is not None and is_cleared else None
            found = found or self.exactly(exact, traced if exact == config else None)
        record = RehearsalRecord(config, own, training=found, by_design=designed)
        if found is not None and found.sameness is Sameness.DIFFERS:
            guilty = without_one(
                self._space, exact, lambda one: self._compared(one).sameness in TRAINS_THE_SAME
            )
            return replace(record, guilty=guilty)
        learning, why = self._learned(config, traced) if designed else (None, "")
        is_worse = learning is not None and learning.low > MOST_LOSS
        guilty = designed if is_worse else {}
        return replace(record, learning=learning, guilty=guilty, untold=why)

    def exactly(self, config: Config, traced: TrainingTrace | None = None) -> Agreement:
        """Return how a config without changes by design compares.

        A difference counts if a second run shows it at the same step: what threads of a program do
        in another order each time differs elsewhere. It stands without a second run: a lack of time
        recommends nothing. And samples do not round; workers that share a file read something else
        each time.
        """
        found = self._compared(config, traced)
        if found.sameness is not Sameness.DIFFERS or found.part == SAMPLES:
            return found
        again = self._compared(config)
        if again.sameness is Sameness.UNKNOWN:
            return replace(found, is_unrepeated=True)
        if found.is_like(again):
            return again
        why = "a second run under this config differs elsewhere, or not at all"
        return Agreement(Sameness.UNKNOWN, why=why)

    def _learned(self, config: Config, traced: TrainingTrace | None) -> tuple[Interval | None, str]:
        # Neither a gap nor a reason where nothing was compared
        if traced is None or batch_growth(self._space.baseline, config) != 1.0:
            return None, ""
        written = self.written()
        if isinstance(written, Ending):
            return None, ""
        gap, why = loss_gap(written, traced), untold(written)
        is_worse = gap is not None and gap.low > MOST_LOSS  # however little the program learns
        return (gap, "") if is_worse or not why else (None, why)

    def _compared(self, config: Config, traced: TrainingTrace | None = None) -> Agreement:
        base, shares = self._space.baseline, self._shares(config)
        written = self.written(shares=shares)
        if isinstance(written, Ending):
            return _not_compared(written)
        own = traced or self._runs.trace(config, self.plan(config), self.cost_s)
        if isinstance(own, Ending):
            return _not_compared(own)
        if (equal := same(written, own)) is not None:
            return equal
        takes_same = all(config.get(part) == base.get(part) for part in PARTS)
        found = NOT_COMPARED
        for count in (1, SHAKES):  # what a single run shows of rounding may be little by chance
            shaken = [self.written(shakes=number, shares=shares) for number in range(1, count + 1)]
            known = [trace for trace in shaken if isinstance(trace, TrainingTrace)]
            if not known:
                return _not_compared(shaken[0])
            found = compare(written, known, own, same_batches=takes_same)
            if found.sameness is not Sameness.DIFFERS:
                break
        if found.sameness is Sameness.ROUNDING and self._space.may_change is MayChange.NOTHING:
            return Agreement(Sameness.DIFFERS, found.steps, found.epochs, ROUNDED)
        return found

    def written(self, *, shakes: int = 0, shares: int = 1) -> TrainingTrace | Ending:
        """Return the trace of the program as written, which is run once; else why there is none.

        Where shares of ranks are normalised, one device makes them, as replicas would not.
        """
        config = self._space.baseline
        if shares > 1 and strategy_in(config) == REPLICAS:
            config = config.replace(devices="single")
        plan = self.plan(config, shakes=shakes, shares=shares)
        if plan not in self._traces:
            ran = self._runs.trace(config, plan, self.cost_s)
            if isinstance(ran, Ending):
                return ran
            self._traces[plan] = ran
        return self._traces[plan]


def without_one(
    space: ResolvedSpace, config: Config, is_sound: Callable[[Config], bool]
) -> Mapping[str, KnobValue]:
    """Return the change without which a config is sound; all its changes if there is none.

    Changes that take others with them come last, as the number of workers does, without which
    nothing is prefetched: they would be blamed for what those others do.
    """
    changes = config.changes_from(space.baseline)
    fewer = one_fewer(space, config, with_baseline=len(changes) > 1, of_all=True)
    for knob, without in sorted(fewer, key=lambda one: len(config.changes_from(one[1]))):
        if is_sound(without):
            return {knob: changes[knob]}
    return changes


def _not_compared(ending: TrainingTrace | Ending) -> Agreement:
    if isinstance(ending, TrainingTrace) or ending.outcome in ENDED_BY_US:
        return NOT_COMPARED
    return Agreement(Sameness.UNKNOWN, why=f"a short run failed: {ending.reason}")


def is_exact(knob: str) -> bool:
    """Return whether what a knob trains must be the same, step by step, but for rounding."""
    known = registry()[knob]
    return MayChange.ROUNDING.allows(known.changes) and not known.rounds_coarsely


def by_design(config: Config, own: Config, *, normalises: bool = False) -> dict[str, KnobValue]:
    """Return the changes of a config whose purpose is to train otherwise than the program does."""
    changes = config.changes_from(own)
    designed = {k: v for k, v in changes.items() if k not in BATCH and not is_exact(k)}
    has_more_ranks = ranks_in(config) != ranks_in(own)
    has_replicas = "devices" in changes and REPLICAS in {strategy_in(config), strategy_in(own)}
    is_divided = has_more_ranks or has_replicas  # BatchNorm sees each part of a batch alone
    shares = is_divided and normalises and not config.get("sync_batchnorm")
    if batch_growth(own, config) != 1.0 or shares:
        parts = PARTS if has_more_ranks or shares else BATCH
        designed |= {knob: changes[knob] for knob in parts if knob in changes}
    return designed
