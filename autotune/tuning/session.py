"""Session: what the phases of one search() or resume() call share, and how it divides the budget.

The budget is divided after the baseline, when start-up and step times are known. Time is reserved
for the confirmation first, then for the rehearsal, and trials get the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from shlex import quote

from autotune.measurement.learning.training_trace import TrainingTrace
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.run_mode import RunMode
from autotune.program.rehearsal import RehearsalPlan
from autotune.results.record import BaselineInfo
from autotune.rig.open_rig import Reports
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import Progress
from autotune.tuning.budget import ENDING_S, Budget, Until, since_command_s
from autotune.tuning.events import Events
from autotune.tuning.interrupts import InterruptCounter
from autotune.tuning.live_rig import ALONE_S, METERED_S, WARM_UP_S, LiveRig
from autotune.tuning.start.start_up_time import StartUp
from autotune.tuning.storage.search_dir import SearchDir
from autotune.tuning.storage.study import Study
from autotune.tuning.surroundings import Surroundings

# Several costs are given in seconds and in steps. The larger counts: turns need some steps, however
# long they are.
MAX_FOR_CLAIM = 0.5  # share of the budget
# A process of the claim, without its start: two stays and turns of two configs
PROCESS_S, PROCESS_STEPS = 3.5, 4
TURNS_S, TURN_STEPS = 6.0, 16
METERED_TURNS = 8  # the same where energy or memory is read, which takes METERED_S each
OWN_TURNS_S = 4.0  # in the search's own process, once the candidate is chosen
PAIRS_WORTH = (5, 3)  # numbers of pairs of such processes to reserve time for, the best first
PROCESSES_WORTH = (4, 3, 2)  # the same of processes in which both configs take turns
TRIALS_WORTH_S = 6.0  # a search that could not measure for this long would not be a search
MIN_TRIAL_S = 1.0  # entering, and a round
MIN_TRIAL_STEPS = 3.0
REHEARSAL_WORTH_S = 4.0  # without the start: two short epochs and what lies between them
REHEARSAL_WORTH_STEPS = 16
CHECK_RUNS = 2  # the program as written, and the same with shaken weights
CHECK_EPOCHS = 3
CHECK_BATCHES = (5, 12)  # of such an epoch, at least and at most
TRAINING_S = 4.0  # that the steps of one run of the self-check may take, beyond the least ones
MAX_REHEARSAL_S = 60.0  # or twice the least it takes, for a program that starts slowly
MAX_KEPT_FOR_REHEARSAL = 1 / 3  # share of the time of the trials
COMPILING_WORTH_S = 30.0  # compiling a small model took 15-40 s on 2 cores; its rounds come after


def check_batches(step_s: float) -> int:
    """Return the batches of one of the self-check's short epochs.

    Args:
        step_s: Seconds that one takes.
    """
    least, most = CHECK_BATCHES
    return min(most, max(least, int(TRAINING_S / step_s / CHECK_EPOCHS)))


@dataclass
class Session:
    """What the phases of a search share, and the division of the budget.

    Each property that returns an ``Until`` says how long one kind of work may go on.

    Attributes:
        run: Directory of the search.
        study: Its record.
        budget: Wall time used and left.
        stop: Counts Ctrl-C.
        events: Told what happens.
        rigs: Makes the rigs of this session.
        live: The process in which configs take turns.
        startup: What the program was seen to do before it was ready.
        has_candidate: Whether some config may be confirmed. The race sets it.
        claims_apart: Whether the user wants values that need a fresh process, whose claim takes
            pairs of processes.
        trouble: Why no config could take turns, as a clause; empty if some did.
        divided_s: Seconds left after the baseline, which trials and confirmation share.
        traces: What the program as written learned in short runs, by their plan.
    """

    run: SearchDir
    study: Study
    budget: Budget
    stop: InterruptCounter
    events: Events
    rigs: RigFactory
    live: LiveRig
    startup: StartUp = field(default_factory=StartUp)
    has_candidate: bool = True
    claims_apart: bool = False
    trouble: str = ""
    divided_s: float = math.inf
    traces: dict[RehearsalPlan, TrainingTrace] = field(default_factory=dict)

    @property
    def until_over(self) -> Until:
        """Until the budget is used up or the user stops the search; used for the baseline."""
        return Until(self._stopped, lambda: self.budget.wait_s, "the budget is used up")

    @property
    def until_confirmation(self) -> Until:
        """Until only the reserved time is left or the user stops the search; used for trials.

        The reservation is computed once, when this is read, and holds for the whole trial.
        """
        reserve_s = self.kept_s
        what = (
            "the time for trials is used up; the rest of the budget is reserved for the "
            "confirmation"
        )
        return Until(
            self._stopped,
            lambda: min(self.budget.left_s - reserve_s, self.budget.wait_s),
            what if reserve_s else "the budget is used up",
        )

    @property
    def left_for_trials_s(self) -> float:
        """Seconds that trials may still take."""
        return self.until_confirmation.left_s()

    @property
    def share_left(self) -> float:
        """Share of the time for trials that is left, 0 to 1."""
        left_s = max(0.0, self.until_confirmation.left_s())
        used_s = max(0.0, self.divided_s - self.budget.left_s)
        return left_s / (left_s + used_s) if left_s else 0.0

    @property
    def kept_s(self) -> float:
        """Seconds of the budget that trials must leave for the rehearsal and the confirmation.

        0 if there is no candidate and no time for a trial besides the reservation: then it would be
        left unused, so trials may go on into it.
        """
        kept_s = self.reserve_s + self.rehearsal_s
        kept_s += OWN_TURNS_S if kept_s else 0.0
        has_time = self.budget.left_s - kept_s >= self._least_trial_s
        return kept_s if self.has_candidate or has_time else 0.0

    @property
    def _facts(self) -> BaselineInfo:
        facts = self.study.facts
        assert facts is not None, "the baseline was measured"
        return facts

    @property
    def _least_trial_s(self) -> float:
        facts = self.study.facts
        return max(MIN_TRIAL_S, MIN_TRIAL_STEPS * facts.step_s if facts else 0.0)

    def until_last_trial(self) -> Ending | None:
        """Return why no further trial is worth starting; None if one is.

        A trial without time for even one round is not started.
        """
        until = self.until_confirmation
        if until.left_s() < self._least_trial_s:
            return until() or Ending(Outcome.OUT_OF_TIME, until.reason)
        return until()

    @property
    def until_overdrawn(self) -> Until:
        """Until the overdraft is used up or Ctrl-C was pressed twice; used for the confirmation.

        The first Ctrl-C ends the search, but what was found may still be confirmed.
        """
        return Until(
            lambda: self._stopped() if self.stop.requests > 1 else None,
            lambda: self.budget.overdraft_s,
            "the budget ended before the confirmation's first round of measurements was complete",
        )

    def divide(self) -> None:
        """Divide the time left after the baseline; warn if it is too short for a confirmation.

        Must be called once the study knows the facts of the baseline.
        """
        self.divided_s = self.budget.left_s
        needed_s = min(PROCESSES_WORTH) * self._together_s()
        if not self.reserve_s:
            self.events.warn(
                f"A confirmation in fresh processes takes {needed_s:.0f} s, and this budget is too "
                "short for it: the search can find a faster config but not confirm it. "
                "Confirm it afterwards: "
                f"autotune resume {quote(self.run.name)} "
                f"--budget {math.ceil(self.budget.total_s + self.worth_s - self.budget.spent_s)}s"
            )

    def make_room(self) -> None:
        """Extend the budget, if need be, so that a candidate can be rehearsed and confirmed.

        Of a search that has used its budget and is asked to check what the best config learns.
        """
        if not self.study.checks_learning:
            return
        confirming_s = max(PROCESSES_WORTH) * self._together_s()
        rehearsing_s = 2 * ENDING_S + self.least_rehearsal_s + self.check_s
        needed_s = self.budget.spent_s + confirming_s + rehearsing_s
        self.budget.total_s = max(self.budget.total_s, needed_s)
        self.divide()

    @property
    def worth_s(self) -> float:
        """A total budget in seconds that would hold some trials and a full confirmation.

        It is recommended to the user when the present budget is too short.
        """
        facts = self.study.facts
        each_s = PROCESS_S + TURNS_S if facts is None else self._together_s()
        return self.budget.spent_s + max(PROCESSES_WORTH) * each_s + TRIALS_WORTH_S

    @property
    def reserve_s(self) -> float:
        """Seconds reserved for the confirmation; 0 if none fits besides the least time for trials.

        A longer confirmation gives a narrower interval, so it is preferred as long as it takes no
        more than half of the budget.
        """
        facts = self.study.facts
        if facts is None:
            return 0.0
        half_s = MAX_FOR_CLAIM * self.budget.total_s
        # In order of preference; the first that fits is taken.
        if self.claims_apart:
            wanted = [count * self._pair_s(facts) for count in PAIRS_WORTH]
        else:
            wanted = [count * self._together_s() for count in PROCESSES_WORTH]
        affordable = [s for s in wanted if s <= half_s] or [min(wanted)]
        return next((s for s in affordable if s + TRIALS_WORTH_S <= self.divided_s), 0.0)

    @property
    def least_rehearsal_s(self) -> float:
        """Least seconds for running one config through two short epochs, start included."""
        facts = self._facts
        return facts.startup_s + max(REHEARSAL_WORTH_S, REHEARSAL_WORTH_STEPS * facts.step_s)

    @property
    def rehearsal_s(self) -> float:
        """Seconds reserved for rehearsing the best config and comparing its training.

        Without the comparison, or 0, if that would take more than a third of the trials' time; 0 as
        well if no confirmation fits.
        """
        reserve_s = self.reserve_s
        if not reserve_s:
            return 0.0
        least_s = ENDING_S + self.least_rehearsal_s  # the program of the trials ends before it
        most_s = MAX_KEPT_FOR_REHEARSAL * (self.divided_s - reserve_s)
        return next((s for s in (least_s + self.check_s, least_s) if s <= most_s), 0.0)

    @property
    def has_time_for_canary(self) -> bool:
        """Whether the exact settings can be compared before the search.

        What that takes is saved after the search: the best config need not be compared again.
        """
        return self.rehearsal_s >= ENDING_S + self.least_rehearsal_s + self.check_s

    @property
    def check_s(self) -> float:
        """Least seconds of the self-check after a rehearsal: two more short runs.

        Or one, if the program as written was compared before the search: the best config may have
        other values.
        """
        facts, canary = self._facts, self.study.canary
        runs = CHECK_RUNS if canary is None or canary.training is None else CHECK_RUNS - 1
        steps = CHECK_EPOCHS * check_batches(facts.step_s)
        return runs * (facts.startup_s + steps * facts.step_s)

    def time_to_rehearse_s(self, *, kept_s: float) -> float:
        """Return how many seconds a rehearsal may take; 0 if there is not enough time for one.

        Args:
            kept_s: Seconds that it must leave in the budget.
        """
        least_s = self.least_rehearsal_s
        spare_s = min(self.budget.left_s - kept_s, max(MAX_REHEARSAL_S, 2 * least_s))
        return spare_s if spare_s >= least_s and self.stop.requests < 2 else 0.0

    def least_claim_s(self, *, is_apart: bool) -> float:
        """Return the least seconds that a claim takes.

        Args:
            is_apart: Whether its config cannot share a process with the program as written.
        """
        if is_apart:
            return min(PAIRS_WORTH) * self._pair_s(self._facts)
        return min(PROCESSES_WORTH) * self._together_s()

    @property
    def process_s(self) -> float:
        """Seconds that a process of the claim takes until turns begin."""
        facts = self._facts
        return facts.startup_s + max(PROCESS_S, PROCESS_STEPS * facts.step_s)

    @property
    def turns_s(self) -> float:
        """Least seconds of turns in a process of the claim."""
        facts = self._facts
        metered_s = METERED_TURNS * METERED_S if self.study.goal.needs_stays else 0.0
        return max(TURNS_S, TURN_STEPS * facts.step_s, metered_s)

    def may_compile(self) -> bool:
        """Return whether there is time to compile the model, and to let it take turns."""
        return self.until_confirmation.left_s() > 2 * COMPILING_WORTH_S

    def may_restart(self) -> bool:
        """Return whether there is time for a config in a fresh process, and for its claim."""
        facts = self._facts
        kept_s = self.least_claim_s(is_apart=True) + self.rehearsal_s
        return (
            self.budget.left_s - kept_s > facts.startup_s + WARM_UP_S + ALONE_S
            and not self.stop.requests
        )

    def _stopped(self) -> Ending | None:
        if self.stop.requests:
            return Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C")
        return None

    def _together_s(self) -> float:
        return self.process_s + self.turns_s

    @staticmethod
    def _pair_s(facts: BaselineInfo) -> float:
        return 2 * (facts.startup_s + max(WARM_UP_S + ALONE_S, TURN_STEPS / 2 * facts.step_s))


@contextmanager
def search_session(
    run: SearchDir, study: Study, budget_s: float, events: Events, surroundings: Surroundings
) -> Iterator[Session]:
    """Provide the session of a run whose lease this process holds.

    On leaving, also by an exception, no rig is left running, the time used is recorded and the
    lease is released.

    Args:
        run: Directory of the search.
        study: Its record; the caller has taken its lease.
        budget_s: Total wall time, earlier sessions included.
        events: Told what happens.
        surroundings: Clock, rigs and machine check.

    Raises:
        FenceError: when nothing keeps the program from changing the user's files.
    """
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
                study.hardware,
                reports=reports,
                options=study.head.options.fence,
                remember=remember,
                clock=clock,
            ) as rigs,
            LiveRig(rigs) as live,
        ):
            events.on_search_start(study.head, run.name, budget)
            events.on_fence(rigs.fence)
            study.fence = rigs.fence.sentence
            for warning in surroundings.look(study.head.hardware):
                events.warn(warning)
            yield Session(run, study, budget, stop, events, rigs, live, startup)
    finally:
        study.spent_s = budget.spent_s
        study.release_lease()
        events.on_search_end()
