"""Session: one sitting on a run; what its steps share, and how they divide the budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from autotune import preflight
from autotune.budget import Budget
from autotune.console import Console
from autotune.objective import Objective
from autotune.outcome import Ending, Outcome
from autotune.rig import Reports
from autotune.rigs import Rigs
from autotune.rundir import RunDir
from autotune.stop import Stop
from autotune.study import Study

ROUND_WINDOWS_S = 24.0  # a warm-up and eight windows as planned in confirm.py, with switching
ROUND_STEPS = (
    80  # a warm-up and eight windows take at least this many steps, however long these are
)
MOST_FOR_CONFIRMATION = 0.5  # of the budget
APART_S = 9.0  # besides its start: what one process of confirm.py's pairs takes
PAIRS_WORTH = (3, 5)  # pairs of such processes are worth keeping time for, at least and at most
RESTART_WORTH_S = 6.0  # besides two starts: the windows of a config and of the baseline, in turn
COMPILING_WORTH_S = 25.0  # besides two starts: compiling a small model took 15-40 s on 2 cores
OVERDRAFT = 0.15  # of the budget, to let a running confirmation end


@dataclass
class Session:
    """What the steps of a search share.

    Attributes:
        best_apart_s: Where the best config so far is confirmed in processes of its own: what its
            trial in one took.

    The methods that return an Ending are asked many times a second while a rig is at work; an
    Ending ends that work.
    """

    run: RunDir
    study: Study
    budget: Budget
    stop: Stop
    console: Console
    rigs: Rigs
    objective: Objective
    best_apart_s: float | None = None

    @property
    def round_s(self) -> float:
        """What a round of the confirmation takes at least: a start, then windows in turn."""
        facts = self.study.facts
        if facts is None:
            return 0.0
        return facts.startup_s + max(ROUND_WINDOWS_S, ROUND_STEPS * facts.step_s)

    @property
    def reserve_s(self) -> float:
        """What is kept for the confirmation: two rounds, or one in a budget too small for that."""
        if self.best_apart_s is not None and self.study.facts is not None:
            process_s = self.study.facts.startup_s + APART_S
            pair_s = process_s + max(process_s, self.best_apart_s)
            least, most = PAIRS_WORTH
            worth_s = min(most * pair_s, MOST_FOR_CONFIRMATION * self.budget.total_s)
            return max(least * pair_s, worth_s)
        two = 2 * self.round_s
        return two if two <= MOST_FOR_CONFIRMATION * self.budget.total_s else self.round_s

    def until_stopped(self) -> Ending | None:
        """Go on until the user stops it."""
        if self.stop.requests:
            return Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C")
        return None

    def until_confirmation(self) -> Ending | None:
        """Go on until only the time for the confirmation is left."""
        if ending := self.until_stopped():
            return ending
        if self.budget.left_s < self.reserve_s:
            return Ending(Outcome.OUT_OF_TIME, "the rest of the budget is for the confirmation")
        return None

    def until_overdrawn(self) -> Ending | None:
        """Go on until the budget is clearly used up, or the user wants no confirmation either."""
        if self.stop.requests > 1:
            return Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C")
        if self.budget.left_s < -OVERDRAFT * self.budget.total_s:
            return Ending(Outcome.OUT_OF_TIME, "the budget ended before the first round did")
        return None

    def has_time_for(self, seconds: float) -> bool:
        """Tell whether the budget holds this much more, and the user is not in a hurry."""
        return self.stop.requests == 0 and self.budget.left_s > seconds

    def may_restart(self, knob: str) -> bool:
        """Tell whether a value of a knob that needs a fresh process is still worth starting."""
        facts = self.study.facts
        work_s = COMPILING_WORTH_S if knob == "compile" else RESTART_WORTH_S
        worth_s = work_s + 2 * facts.startup_s if facts is not None else 0.0
        return self.budget.left_s - self.reserve_s > worth_s


@contextmanager
def sitting(run: RunDir, study: Study, budget_s: float, console: Console) -> Iterator[Session]:
    """Work on a run whose lease was taken: listen for Ctrl-C, leave no rig and no lease behind."""
    budget = Budget(budget_s, study.spent_s)
    reports = Reports(console.progress, console.warn)
    try:
        with (
            Stop(console.stopping) as stop,
            Rigs(study.head.program, run.path, study.head.hardware, reports) as rigs,
            Objective(rigs) as objective,
        ):
            console.begin(study.head, run.name, budget)
            for doubt in preflight.doubts(study.head.hardware):
                console.warn(doubt)
            yield Session(run, study, budget, stop, console, rigs, objective)
    finally:
        study.spent_s = budget.spent_s
        study.release_lease()
