"""Self-check: compare what a config trains with what the program trains as it is written.

Tests on our own programs cannot foresee every script, so the comparison runs on the user's program:
fresh processes, all from the same random state and over the same short epochs. One runs it as
written, one under the config. If their numbers are not equal, a third one tells how far rounding
alone leads in this program (``measurement/learning/training_trace.py``).

Changes that train something else by design, such as another precision or a larger global batch, are
taken back for the comparison. What another precision does to the loss is compared at equal samples;
what a larger global batch does would take longer than these short runs.

It runs in the short epochs of a rehearsal instead of the first steps of measured processes, because
those never begin a second epoch, where workers that persist differ from new ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from autotune.knobs import registry
from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.interval import Interval
from autotune.measurement.learning.learning_gap import loss_gap
from autotune.measurement.learning.training_trace import (
    NO_TIME,
    SAMPLES,
    Agreement,
    Sameness,
    TrainingTrace,
    compare,
    is_equal,
    same,
)
from autotune.measurement.outcome import ENDED_BY_US, Ending
from autotune.program.config import Config, KnobValue
from autotune.program.devices import ranks_in
from autotune.program.lr import PARTS, batch_growth
from autotune.program.rehearsal import Canary, RehearsalPlan, TracePlan
from autotune.tuning.baseline import Baseline
from autotune.tuning.checking.learning_check import MOST_LOSS, untold
from autotune.tuning.session import CHECK_EPOCHS, Session, check_batches

NOT_COMPARED = Agreement(Sameness.UNKNOWN, why=NO_TIME)
BATCH = ("batch_size", "accumulation_steps")  # what one process makes of a step
SHAKES = 3  # shaken runs before a config is said to train something else


@dataclass(frozen=True)
class Checked:
    """What the self-check of a config found.

    Attributes:
        training: How its training compares; None if there is nothing to compare.
        by_design: Changes that were taken back for that.
        learning: By how much these make the loss larger at equal samples, relative; None if that
            was not compared.
        guilty: What makes the training differ: one change if one was found. Empty if it does not.
        untold: Why the losses do not tell what the changes by design learn; empty if they do.
    """

    training: Agreement | None
    by_design: Mapping[str, KnobValue] = field(default_factory=dict)
    learning: Interval | None = None
    guilty: Mapping[str, KnobValue] = field(default_factory=dict)
    untold: str = ""


class Runs(Protocol):
    """Runs the program with short epochs, as ``ShortRuns`` does."""

    def trace(self, config: Config, plan: RehearsalPlan, cost_s: float) -> TrainingTrace | Ending:
        """Return what the first steps under a config learn, or why that is not known."""
        ...


@dataclass(frozen=True)
class Known:
    """What a check knows of the program beforehand.

    Attributes:
        traces: Of the program as written, that earlier checks took. A check adds to them.
        normalises: Whether the model has BatchNorm.
        canary: What was found before the search.
    """

    traces: dict[RehearsalPlan, TrainingTrace] = field(default_factory=dict)
    normalises: bool = False
    canary: Canary | None = None

    @classmethod
    def of(cls, session: Session, baseline: Baseline) -> Self:
        """Return what a search knows of its program."""
        study = session.study
        return cls(
            session.traces,
            normalises=baseline.profile.model.batch_norm_layers > 0,
            canary=study.canary,
        )


class SelfCheck:
    """Compares configs with the program as written, which is run once for all of them.

    Args:
        runs: Runs the program with short epochs.
        space: What configs are from; its baseline is the program as written.
        step_s: Seconds of a step.
        known: What is known of the program.
    """

    def __init__(self, runs: Runs, space: ResolvedSpace, step_s: float, known: Known) -> None:
        self._runs = runs
        self._space = space
        self._batches = check_batches(step_s)
        self._step_s = step_s
        self._known = known

    def plan(self, config: Config, *, shakes: int = 0) -> RehearsalPlan:
        """Return how a config is run for the comparison; its steps are those of the baseline."""
        own, theirs = (int(c.get("accumulation_steps", 1)) for c in (self._space.baseline, config))
        steps = math.ceil(self._batches / own)
        return RehearsalPlan(
            batches=steps * theirs,
            epochs=CHECK_EPOCHS,
            enough_s=0.0,
            least_steps=CHECK_EPOCHS * steps,
            traces=TracePlan(shakes=shakes),
        )

    def plan_to_rehearse(self, config: Config, most_s: float) -> RehearsalPlan:
        """Return how a config is rehearsed: as it is compared, if all of it is and time allows."""
        usual = RehearsalPlan()
        is_compared = self._has_own_samples(config) and most_s > 2 * self.cost_s
        return replace(self.plan(config), enough_s=usual.enough_s) if is_compared else usual

    def _has_own_samples(self, config: Config) -> bool:
        """Whether the samples of a step stay those of the program."""
        return batch_growth(self._space.baseline, config) == 1.0

    def _takes_same_batches(self, config: Config) -> bool:
        return all(config.get(part) == self._space.baseline.get(part) for part in PARTS)

    def exact_part(self, config: Config) -> Config:
        """Return a config without the changes that train something else by design.

        More batches to a step, or more ranks, make a larger one by design. How they are put
        together is compared at the program's own step, of smaller batches.
        """
        own = self._space.baseline
        back = {
            knob: own[knob] for knob in by_design(config, own, normalises=self._known.normalises)
        }
        if "devices" in back and not self._known.normalises:
            shared = self._space.with_own_batch(config)
            back |= {knob: shared[knob] for knob in PARTS if knob in back}
            return self._space.canonical(config.replace(**back))
        parts = self._in_parts(config) if "accumulation_steps" in back else 1
        if parts > 1:
            size = int(own["batch_size"]) // parts
            back |= {"accumulation_steps": config["accumulation_steps"], "batch_size": size}
        return self._space.canonical(config.replace(**back))

    def _in_parts(self, config: Config) -> int:
        """Return into how many smaller batches the program's own can be cut as a config does it.

        1 if it cannot: where its size is not set by autotune, or the model normalises batches.
        """
        own = self._space.baseline
        steps, ours = (int(c["accumulation_steps"]) for c in (config, own))
        size = int(own.get("batch_size", 0)) if "batch_size" in self._space.domains else 0
        parts, rest = divmod(steps, ours)
        is_cut = parts > 1 and not rest and size and size % parts == 0
        return parts if is_cut and not self._known.normalises else 1

    def check(self, config: Config, traced: TrainingTrace | None = None) -> Checked:
        """Compare a config's training with that of the program as written.

        Args:
            config: The config.
            traced: What it trained in a rehearsal under ``plan(config)``, if there was one.
        """
        own = self._space.baseline
        designed = by_design(config, own, normalises=self._known.normalises)
        exact, found = self.exact_part(config), None
        if exact != own:
            found = self._cleared(exact) or self.exactly(exact, traced if exact == config else None)
        if found is not None and found.sameness is Sameness.DIFFERS:
            return Checked(found, designed, None, self._guilty(exact))
        learning, why = self._learned(config, traced) if designed else (None, "")
        is_worse = learning is not None and learning.low > MOST_LOSS
        return Checked(found, designed, learning, designed if is_worse else {}, why)

    def exactly(self, config: Config, traced: TrainingTrace | None = None) -> Agreement:
        """Return how a config without changes by design compares; twice, if it differs.

        Args:
            config: The config.
            traced: What it trained in a run under ``plan(config)``, if there was one.
        """
        found = self._compared(config, traced)
        return self._repeated(config, found) if found.sameness is Sameness.DIFFERS else found

    def _cleared(self, exact: Config) -> Agreement | None:
        """Return how a config compares by what was found before the search; None if unknown."""
        known = self._known.canary
        if known is None or known.training is None:
            return None
        return known.training if known.clears(exact, self._space.baseline) else None

    def _repeated(self, config: Config, found: Agreement) -> Agreement:
        """Return a difference if a second run shows it at the same step.

        What threads of a program do in another order each time differs elsewhere. Without a second
        run the difference stands: a config is not recommended by the lack of time. And samples do
        not round: workers that share a file read something else each time.
        """
        if found.part == SAMPLES:
            return found
        again = self._compared(config)
        if again.sameness is Sameness.UNKNOWN:
            return replace(found, is_unrepeated=True)
        if found.is_like(again):
            return again
        why = "a second run under this config differs elsewhere, or not at all"
        return Agreement(Sameness.UNKNOWN, why=why)

    def _learned(self, config: Config, traced: TrainingTrace | None) -> tuple[Interval | None, str]:
        """Return by how much a config's loss is larger at equal samples, or why it tells nothing.

        Neither where that was not compared.
        """
        if traced is None or not self._has_own_samples(config):
            return None, ""
        written = self.written()
        if isinstance(written, Ending):
            return None, ""
        gap, why = loss_gap(written, traced), untold(written)
        is_worse = gap is not None and gap.low > MOST_LOSS  # however little the program learns
        return (gap, "") if is_worse or not why else (None, why)

    def _compared(self, config: Config, traced: TrainingTrace | None = None) -> Agreement:
        """Return how a config compares; unknown if there is no time, or if a run failed."""
        written = self.written()
        if isinstance(written, Ending):
            return _not_compared(written)
        own = traced or self._runs.trace(config, self.plan(config), self.cost_s)
        if isinstance(own, Ending):
            return _not_compared(own)
        if is_equal(written, own):
            return same(written, own)
        found = NOT_COMPARED
        for count in (1, SHAKES):  # what a single run shows of rounding may be little by chance
            shaken = [self.written(shakes=number) for number in range(1, count + 1)]
            known = [trace for trace in shaken if isinstance(trace, TrainingTrace)]
            if not known:
                return _not_compared(shaken[0])
            found = compare(written, known, own, same_batches=self._takes_same_batches(config))
            if found.sameness is not Sameness.DIFFERS:
                break
        return found

    def written(self, *, shakes: int = 0) -> TrainingTrace | Ending:
        """Return the trace of the program as written, which is run once; else why there is none."""
        config = self._space.baseline
        plan = self.plan(config, shakes=shakes)
        if plan not in self._known.traces:
            ran = self._runs.trace(config, plan, self.cost_s)
            if isinstance(ran, Ending):
                return ran
            self._known.traces[plan] = ran
        return self._known.traces[plan]

    def _guilty(self, config: Config) -> dict[str, KnobValue]:
        """Return the change without which a config trains the same; all changes if none is found.

        Each change is taken back in turn, as long as there is time.
        """
        changes = config.changes_from(self._space.baseline)
        for knob, without in one_fewer(self._space, config):
            found = self._compared(without)
            if found.sameness in {Sameness.BITS, Sameness.ROUNDING}:
                return {knob: changes[knob]}
        return changes

    @property
    def cost_s(self) -> float:
        """Seconds that the steps of one run take."""
        return CHECK_EPOCHS * self._batches * self._step_s


def one_fewer(space: ResolvedSpace, config: Config) -> Iterator[tuple[str, Config]]:
    """Yield each change of a config with the config that lacks it; nothing if it is the only one.

    Changes that take others with them come last, as the number of workers does, without which
    workers cannot persist. Otherwise they would be blamed for what those others do.
    """
    changes = config.changes_from(space.baseline)
    lacking = {
        knob: space.canonical(config.replace(**{knob: space.baseline[knob]})) for knob in changes
    }
    lost = {knob: len(config.changes_from(without)) for knob, without in lacking.items()}
    for knob in sorted(changes, key=lambda knob: lost[knob]) if len(changes) > 1 else ():
        if lost[knob]:
            yield knob, lacking[knob]


def _not_compared(ending: TrainingTrace | Ending) -> Agreement:
    """Return that nothing was compared because a run ended; for lack of time unless it failed."""
    if isinstance(ending, TrainingTrace) or ending.outcome in ENDED_BY_US:
        return NOT_COMPARED
    return Agreement(Sameness.UNKNOWN, why=f"a short run failed: {ending.reason}")


def by_design(config: Config, own: Config, *, normalises: bool = False) -> dict[str, KnobValue]:
    """Return the changes of a config whose purpose is to train otherwise than the program does.

    Args:
        config: The config.
        own: The program's own.
        normalises: Whether the model has BatchNorm, which sees the samples of each rank alone.
    """
    changes = config.changes_from(own)
    designed = {k: v for k, v in changes.items() if registry()[k].changes_learning}
    has_more_ranks = ranks_in(config) != ranks_in(own)
    shares = has_more_ranks and normalises and not config.get("sync_batchnorm")
    if batch_growth(own, config) != 1.0 or shares:
        parts = PARTS if has_more_ranks else BATCH
        designed |= {knob: changes[knob] for knob in parts if knob in changes}
    return designed
