"""Session: one call of search() or resume(): what its steps share, how they divide the budget."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from shlex import quote

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.run_mode import RunMode
from autotune.program.config import Config
from autotune.results.record import BaselineInfo
from autotune.rig.rig import Reports
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import SLOW_STEP_S, Progress
from autotune.tuning.budget import Budget, Until, since_command_s
from autotune.tuning.events import Events
from autotune.tuning.interrupts import InterruptCounter
from autotune.tuning.search_dir import SearchDir
from autotune.tuning.start.start_up_time import StartUp
from autotune.tuning.study import Study
from autotune.tuning.surroundings import Surroundings
from autotune.tuning.trial_runner import TrialRunner

MAX_FOR_CONFIRMATION = 0.5  # of the budget
APART_S = 9.0  # besides its start: what one process of confirm.py's pairs takes
PAIRS_WORTH = (3, 5)  # pairs of such processes are worth keeping time for, at least and at most
PAIRS_NEEDED = 2  # fewer say nothing
ROUNDS_NEEDED = 2  # a claim takes a process started as written, and one started as the winner
TRIALS_WORTH_S = 10.0  # a search that could not measure this long would not search
MIN_TRIAL_S = 1.0  # a switch and the shortest window
MIN_TRIAL_STEPS = 2.5  # however long these are: one is left out
RESTART_WORTH_S = 6.0  # besides two starts: the windows of a config and of the baseline, in turn
RESTART_WORTH_STEPS = 8  # however long these are
REHEARSAL_WORTH_S = 4.0  # besides its start: two short epochs with what lies between
REHEARSAL_WORTH_STEPS = 16  # of any length
MAX_REHEARSAL_S = 60.0  # or twice what it takes at least: a program may start slowly
MAX_KEPT_FOR_REHEARSAL = 1 / 3  # of what trials have
COMPILING_WORTH_S = 25.0  # besides two starts: compiling a small model took 15-40 s on 2 cores


@dataclass(frozen=True)
class Round:
    """What a process of the confirmation takes besides its start, with switching.

    Attributes:
        seconds: A warm-up and the windows as planned in confirm.py.
        steps: They take at least so many, however long these are.
        slow_steps: They take so many where steps are slow: windows are two steps then.
    """

    seconds: float
    steps: int
    slow_steps: int

    def cost_s(self, facts: BaselineInfo) -> float:
        """Return what it takes at least."""
        steps = self.slow_steps if facts.step_s > SLOW_STEP_S else self.steps
        return facts.startup_s + max(self.seconds, steps * facts.step_s)


FULL_ROUND = Round(24.0, 80, 30)  # eight windows
SHORT_ROUND = Round(14.0, 48, 18)  # four, the least that say anything


@dataclass
class Session:
    """What the steps of a search share.

    Attributes:
        startup: What the program was seen to do before it was ready.
        best_own_process_s: What the trial of the best config took, where it needs a process of its
            own; None where it does not.
        has_candidate: Some config may be confirmed.
        divided_s: What trials and confirmation share: the rest of the budget after the baseline.

    Each Until ends the work of a rig.
    """

    run: SearchDir
    study: Study
    budget: Budget
    stop: InterruptCounter
    events: Events
    rigs: RigFactory
    trial_runner: TrialRunner
    startup: StartUp = field(default_factory=StartUp)
    best_own_process_s: float | None = None
    has_candidate: bool = True
    divided_s: float = math.inf

    @property
    def until_over(self) -> Until:
        """Go on until the budget is used up, or the user stops it."""
        return Until(self._stopped, lambda: self.budget.wait_s, "the budget is used up")

    @property
    def until_confirmation(self) -> Until:
        """Go on until only the time for the confirmation is left."""
        reserve_s = self.kept_s
        what = "the rest of the budget is for the confirmation"
        return Until(
            self._stopped,
            lambda: min(self.budget.left_s - reserve_s, self.budget.wait_s),
            what if reserve_s else "the budget is used up",
        )

    @property
    def kept_s(self) -> float:
        """What trials must leave of the budget: nothing where that would be left unused."""
        kept_s = self.reserve_s + self.rehearsal_s
        has_time = self.budget.left_s - kept_s >= self._least_trial_s
        return kept_s if self.has_candidate or has_time else 0.0

    @property
    def _least_trial_s(self) -> float:
        facts = self.study.facts
        least_s = max(MIN_TRIAL_S, MIN_TRIAL_STEPS * facts.step_s if facts else 0.0)
        return least_s + (facts.startup_s if facts and self.rigs.mode.brief else 0.0)

    def until_last_trial(self) -> Ending | None:
        """Return why no further trial is worth beginning, None where one is."""
        until = self.until_confirmation
        if until.left_s() < self._least_trial_s:
            return until() or Ending(Outcome.OUT_OF_TIME, until.reason)
        return until()

    @property
    def until_overdrawn(self) -> Until:
        """Go on until the budget is clearly used up, or the user wants no confirmation either."""
        return Until(
            lambda: self._stopped() if self.stop.requests > 1 else None,
            lambda: self.budget.overdraft_s,
            "the budget ended before the first round did",
        )

    def divide(self) -> None:
        """Share out what is left after the baseline; what does not fit in is said."""
        self.divided_s = self.budget.left_s
        facts = self.study.facts
        assert facts is not None, "the baseline was measured"
        needed_s = ROUNDS_NEEDED * SHORT_ROUND.cost_s(facts)
        if not self.reserve_s:
            self.events.warn(
                f"A confirmation in fresh processes takes {needed_s:.0f} s, for which this budget "
                "is too short: what is found will be measured live only. "
                f"To confirm: autotune resume {quote(self.run.name)} --budget {self.worth_s:.0f}s"
            )

    @property
    def worth_s(self) -> float:
        """A budget that would hold trials and a confirmation."""
        facts = self.study.facts
        round_s = FULL_ROUND.cost_s(facts) if facts is not None else FULL_ROUND.seconds
        return self.budget.spent_s + ROUNDS_NEEDED * round_s + TRIALS_WORTH_S

    @property
    def reserve_s(self) -> float:
        """What is kept for the confirmation: what fits, and 0 where none does."""
        facts = self.study.facts
        if facts is None:
            return 0.0
        half_s = MAX_FOR_CONFIRMATION * self.budget.total_s
        if self.best_own_process_s is not None:
            pair_s = self._pair_s(facts, self.best_own_process_s)
            least, most = PAIRS_WORTH
            wanted = [max(least * pair_s, min(most * pair_s, half_s)), PAIRS_NEEDED * pair_s]
        else:
            full_s, short_s = (ROUNDS_NEEDED * r.cost_s(facts) for r in (FULL_ROUND, SHORT_ROUND))
            wanted = [full_s, short_s] if full_s <= half_s else [short_s]
        return next((s for s in wanted if s + TRIALS_WORTH_S <= self.divided_s), 0.0)

    @property
    def least_rehearsal_s(self) -> float:
        """What it takes to run one config through two short epochs."""
        facts = self.study.facts
        assert facts is not None, "the baseline was measured"
        return facts.startup_s + max(REHEARSAL_WORTH_S, REHEARSAL_WORTH_STEPS * facts.step_s)

    @property
    def rehearsal_s(self) -> float:
        """What is kept for rehearsing the best config, 0 where trials or proof would miss it."""
        reserve_s = self.reserve_s
        if not reserve_s:
            return 0.0
        least_s = self.least_rehearsal_s
        return least_s if least_s <= MAX_KEPT_FOR_REHEARSAL * (self.divided_s - reserve_s) else 0.0

    def time_to_rehearse_s(self, *, kept_s: float) -> float:
        """Return how long a rehearsal may take that leaves so much; 0 where it is not worth it."""
        least_s = self.least_rehearsal_s
        spare_s = min(self.budget.left_s - kept_s, max(MAX_REHEARSAL_S, 2 * least_s))
        return spare_s if spare_s >= least_s and self.stop.requests < 2 else 0.0

    def least_confirmation_s(self, own_process_s: float | None) -> float:
        """Return what a confirmation takes at least; *own_process_s* as ``best_own_process_s``."""
        facts = self.study.facts
        assert facts is not None, "the baseline was measured"
        if own_process_s is not None:
            return PAIRS_NEEDED * self._pair_s(facts, own_process_s)
        return ROUNDS_NEEDED * SHORT_ROUND.cost_s(facts)

    @property
    def has_time_for_full_rounds(self) -> bool:
        """The rounds that a claim takes can be as long as planned."""
        facts = self.study.facts
        if facts is None:
            return True
        return self.budget.overdraft_s >= ROUNDS_NEEDED * FULL_ROUND.cost_s(facts)

    def has_time_for(self, seconds: float, *, is_needed: bool) -> bool:
        """Tell whether the budget holds this much more, and the user is not in a hurry.

        One Ctrl-C ends the search, not what a claim needs; the second one ends that too.
        """
        is_hurried = self.stop.requests > (1 if is_needed else 0)
        return not is_hurried and self.budget.left_s > seconds

    def needs_own_process(self, config: Config, space: ResolvedSpace) -> bool:
        """Tell whether a config is confirmed in processes of its own."""
        return self.rigs.mode.brief or space.needs_restart(space.baseline, config)

    def may_restart(self, knob: str) -> bool:
        """Tell whether a value of a knob that needs a fresh process is still worth starting."""
        facts = self.study.facts
        if facts is None:
            return True
        work_s = COMPILING_WORTH_S if knob == "compile" else RESTART_WORTH_S
        worth_s = max(work_s, RESTART_WORTH_STEPS * facts.step_s) + 2 * facts.startup_s
        return self.budget.left_s - self.kept_s > worth_s

    def _stopped(self) -> Ending | None:
        if self.stop.requests:
            return Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C")
        return None

    @staticmethod
    def _pair_s(facts: BaselineInfo, own_process_s: float) -> float:
        process_s = facts.startup_s + APART_S
        return process_s + max(process_s, own_process_s)


@contextmanager
def search_session(
    run: SearchDir, study: Study, budget_s: float, events: Events, surroundings: Surroundings
) -> Iterator[Session]:
    """Work on a run whose lease was taken: listen for Ctrl-C, leave no rig and no lease behind."""
    clock = surroundings.clock
    budget = Budget(budget_s, study.spent_s + since_command_s(), clock)
    startup = StartUp(clock)

    def hear(progress: Progress) -> None:
        startup.hear(progress)
        events.on_progress(progress)

    def remember(mode: RunMode) -> None:
        study.mode = mode

    reports = Reports(hear, events.warn, events.note)
    try:
        with (
            InterruptCounter(events.on_interrupt) as stop,
            surroundings.make_rigs(
                replace(study.head.program, mode=study.mode),
                run.path,
                study.head.hardware,
                reports=reports,
                options=study.head.options.fence,
                remember=remember,
                clock=clock,
            ) as rigs,
            TrialRunner(rigs) as trial_runner,
        ):
            events.on_search_start(study.head, run.name, budget)
            events.on_fence(rigs.fence)
            study.fence = rigs.fence.sentence
            for doubt in surroundings.look(study.head.hardware):
                events.warn(doubt)
            yield Session(run, study, budget, stop, events, rigs, trial_runner, startup)
    finally:
        study.spent_s = budget.spent_s
        study.release_lease()
