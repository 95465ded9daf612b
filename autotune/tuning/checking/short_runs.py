"""Short runs: the program with short epochs in a fresh process, within the time that is left."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, Self

from autotune.measurement.learning.training_trace import NO_TIME, TrainingTrace
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.lr import LrRule
from autotune.program.rehearsal import SILENCE_TOLD_S, Rehearsal, RehearsalPlan
from autotune.results.blame import is_of_device
from autotune.rig.rig_factory import RigFactory
from autotune.tuning.budget import Budget, Until
from autotune.tuning.live_rig import SILENCE_STEPS
from autotune.tuning.plan import MOST_REHEARSAL_S
from autotune.tuning.session import Baseline, Session

AT_MOST = 3.0  # times what a run is expected to take
ANSWER_S = 3.0  # a rig that exceeds its time by this is considered not to answer any more
# A program that did nothing for this long, and for longer than SILENCE_STEPS steps, stands still.
# These shares of a run are enough, but for a moment: if it uses no processor, or if it does.
SILENT_S, SILENT_SHARE, BUSY_SHARE = 20.0, 0.5, 0.8
NOT_STARTED = Ending(Outcome.OUT_OF_TIME, NO_TIME)


class Runs(Protocol):
    """What runs the program with short epochs."""

    def trace(
        self, config: Config, plan: RehearsalPlan, cost_s: float, lr_rule: LrRule = ..., /
    ) -> TrainingTrace | Ending:
        """Return what the first steps under a config learn, or why that is not known."""


@dataclass(frozen=True)
class Subject:
    """The program that is run.

    Attributes:
        written: Its config as it is written.
        startup_s: From the start of a process to the end of the steps that are observed.
        step_s: Seconds of a step as written.
    """

    rigs: RigFactory
    written: AppliedConfig
    startup_s: float
    step_s: float


class ShortRuns:
    """Runs the program with short epochs, within the time of a search.

    Args:
        kept_s: Seconds of the budget that are left to others.
        until: Says when the user wants the end.
    """

    def __init__(self, subject: Subject, budget: Budget, kept_s: float, until: Until) -> None:
        self._subject, self._budget, self._kept_s = subject, budget, kept_s
        self._until = until

    @classmethod
    def of(
        cls, session: Session, baseline: Baseline, kept_s: float, until: Until | None = None
    ) -> Self:
        """Return the runs of a search, which may use its overdraft unless *until* forbids it."""
        step_s, startup_s = baseline.measurement.step_s, session.plan.startup_s
        subject = Subject(session.rigs, baseline.applied, startup_s, step_s)
        return cls(subject, session.budget, kept_s, until or session.until_overdrawn)

    def trace(
        self,
        config: Config,
        plan: RehearsalPlan,
        cost_s: float,
        lr_rule: LrRule = LrRule.AUTO,
    ) -> TrainingTrace | Ending:
        """Run a config through short epochs, and return what its steps learn or why not."""
        ran = self.timed(config, plan, cost_s, lr_rule)
        if ran.seen is not None and ran.seen.trace is not None and not ran.has_failed:
            return ran.seen.trace
        return ran.ending if ran.has_failed and ran.ending is not None else NOT_STARTED

    def timed(
        self,
        config: Config,
        plan: RehearsalPlan,
        cost_s: float,
        lr_rule: LrRule = LrRule.AUTO,
    ) -> Rehearsal:
        """Run a config through short epochs, if there is time for it."""
        needed_s = self._subject.startup_s + cost_s
        spare_s = self._budget.left_s - self._kept_s
        if spare_s < needed_s or self._until.stopped() is not None:
            return Rehearsal(None, NOT_STARTED)
        most_s = min(spare_s, max(MOST_REHEARSAL_S, AT_MOST * needed_s))
        return self.run(config, replace(plan, most_s=most_s), lr_rule)

    def run(self, config: Config, plan: RehearsalPlan, lr_rule: LrRule = LrRule.AUTO) -> Rehearsal:
        """Run a config through short epochs, for at most the seconds of the plan.

        A program that stands still when time is up, counts as hung; one that was still at work has
        merely run out of time, which is no failure.
        """
        budget, subject = self._budget, self._subject
        until_s = budget.left_s - plan.most_s - ANSWER_S
        should_stop = Until(
            self._until.stopped,
            lambda: budget.left_s - until_s,
            "the rehearsal did not end in time",
        )
        applied = replace(subject.written, config=config)
        if lr_rule is not LrRule.AUTO:
            applied = replace(applied, lr_rule=lr_rule)
        for _ in range(2):  # once more after an error of a GPU
            with subject.rigs.new() as rig:
                ran = rig.rehearse(applied, plan, should_stop)
            if ran.ending is None or not is_of_device(ran.ending):
                break
        seen = ran.seen
        if seen is None or seen.is_whole or not seen.steps:
            return ran
        share = BUSY_SHARE if seen.is_at_work else SILENT_SHARE
        usual_s = min(SILENT_S, max(SILENCE_TOLD_S, share * plan.most_s))
        usual_s = max(usual_s, SILENCE_STEPS * subject.step_s)
        compiles = config.get("compile", "off") != "off"  # which takes long and is silent
        if compiles or seen.silent_s < usual_s:
            return ran
        reason = f"it stood still: nothing for {seen.silent_s:.0f} s after step {seen.steps}"
        return replace(ran, ending=Ending(Outcome.HUNG, reason))
