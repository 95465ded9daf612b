"""Session: what the phases of one search() or resume() call share, and how long each may go on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from autotune.errors import AutotuneError
from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.examination import StepBreakdown
from autotune.measurement.learning.training_trace import TrainingTrace
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending, Outcome, RunMode
from autotune.program.applied_config import AppliedConfig
from autotune.program.profile import Profile
from autotune.program.rehearsal import RehearsalPlan
from autotune.program.sources import Files, Sources
from autotune.results.record import as_elsewhere
from autotune.results.result import SearchResult
from autotune.results.verdict import changes_of
from autotune.results.wording import typed_duration
from autotune.rig.fence.caches import cache_roots
from autotune.rig.open_rig import Reports
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import Progress
from autotune.sharing.entries import Request
from autotune.sharing.membership import Membership
from autotune.tuning.budget import ENDING_S, Budget, InterruptCounter, Until
from autotune.tuning.events import Events, Phase
from autotune.tuning.live_rig import ALONE_S, WARM_UP_S, LiveRig
from autotune.tuning.plan import COMPILING_S, MOST_REHEARSAL_S, TRIALS_WORTH_S, Plan
from autotune.tuning.start.start_up_time import StartUp
from autotune.tuning.storage.search_dir import SearchDir
from autotune.tuning.storage.study import Study
from autotune.tuning.surroundings import Surroundings

Finish = Callable[[SearchResult], None]  # writes the files of a result
KEPT_EVERY_S = 5.0  # the time used so far is recorded, while the program shows signs of life


@dataclass(frozen=True)
class Baseline:
    """The measured baseline and the search space that follows from it."""

    profile: Profile
    measurement: Measurement
    breakdown: StepBreakdown
    space: ResolvedSpace
    applied: AppliedConfig


@dataclass
class Session:
    """What the phases of a search share.

    Attributes:
        plan: The division of the budget; ``divide()`` makes it.
        has_candidate: Whether some config may be confirmed. The race sets it.
        trouble: Why no config could take turns, as a clause; empty if some did.
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
    plan: Plan = field(default_factory=Plan)
    has_candidate: bool = True
    trouble: str = ""
    traces: dict[RehearsalPlan, TrainingTrace] = field(default_factory=dict)

    @contextmanager
    def what_is_measured_counts(self) -> Iterator[None]:
        """Take an error for the end of the search: what follows reads what was measured.

        A defect is raised again when the session ends.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it is told, and a defect is raised again
            self.events.warn(f"The search ends with what was measured: {error}")
            first_sentence = str(error).partition("\n")[0].partition(". ")[0].rstrip(" .:")
            is_foreseen = isinstance(error, AutotuneError | OSError)
            self.stop.end(
                first_sentence if is_foreseen else f"{type(error).__name__}: {first_sentence}",
                raised=None if is_foreseen else error,
            )

    def keep(self, result: SearchResult, finish: Finish) -> SearchResult:
        """Record the result and have its files written, as far as that is possible; return it."""
        self.stop.result = result
        with faults_warned_of(self.events):
            self.study.result = result
        with faults_warned_of(self.events):
            finish(result)
        self.sharing.answered(result)
        return result

    def begin(self, phase: Phase) -> None:
        """Record the time used so far, as a search may be killed, and say which phase it is."""
        self.study.spent_s = self.budget.spent_s
        self.sharing.begin(str(phase))
        self.events.on_phase(phase)

    @property
    def sharing(self) -> Membership:
        """The other machines that share the search; none, where it is of one machine."""
        return self.study.sharing

    def join(self, baseline: Baseline) -> None:
        """Begin to share what is measured with machines of the same kind."""
        machine = self.study.hardware
        self.sharing.join(machine.fingerprint, machine.named, baseline.space)
        self.hear()

    def hear(self) -> None:
        """Take in what other machines have measured since."""
        self.study.hear(self.sharing.others())
        tried = self.sharing.tried_elsewhere()
        if len(tried) > len(self.study.elsewhere):
            self.study.elsewhere = tuple(map(as_elsewhere, tried))

    def accepted(self, space: ResolvedSpace) -> Request | None:
        """Return what machines are to claim together; what fails on this one is refused."""
        while (announced := self.sharing.announced()) is not None:
            if not (fault := self.study.fault_of(announced.config)):
                return announced
            changes = changes_of(announced.config, space.baseline)
            self.events.warn(
                f"This machine does not claim what another one announced, {changes}: {fault}"
            )
            self.sharing.refuse(fault)
        return None

    @property
    def files(self) -> Files:
        """What the program was seen to import of the user's."""
        sources = self.rigs.reports.sources
        return {} if sources is None else dict(sources.known)

    def divide(self, *, needs_pairs: bool | None = None) -> None:
        """Divide the time that is left; for a claim by pairs of processes, if these are needed."""
        facts, canary = self.study.facts, self.study.canary
        assert facts is not None, "the baseline was measured"
        self.plan = Plan(
            self.budget.total_s,
            self.budget.left_s,
            facts.startup_s,
            facts.step_s,
            self.plan.needs_pairs if needs_pairs is None else needs_pairs,
            self.study.goal.needs_stays,
            canary is not None and canary.training is not None,
        )

    def warn_if_short(self) -> None:
        """Warn if a new search is too short for a claim; one that goes on may have its parts."""
        if not self.plan.reserve_s and self.study.speeds is None:
            needed_s = self.plan.claim_s(is_apart=self.plan.needs_pairs)
            total_s = self.budget.total_s + self.worth_s - self.budget.spent_s
            resume = self.study.head.to_resume(self.run.name)
            self.events.warn(
                f"There is no time to confirm: fresh processes take {needed_s:.0f} s. Afterwards: "
                f"{resume} --budget {typed_duration(total_s)}"
            )

    def make_room(self) -> None:
        """Extend the budget, if need be, so that a candidate can be rehearsed and confirmed.

        Of a search that has used its budget and is asked to check what the best config learns.
        """
        rehearsing_s = 2 * ENDING_S + self.plan.least_rehearsal_s + self.plan.check_s
        needed_s = self.budget.spent_s + self.plan.full_claim_s + rehearsing_s
        self.budget.total_s = max(self.budget.total_s, needed_s)
        self.divide()

    @property
    def worth_s(self) -> float:
        """A total budget in seconds that would hold some trials and a full confirmation."""
        return self.budget.spent_s + self.plan.full_claim_s + TRIALS_WORTH_S

    @property
    def until_over(self) -> Until:
        """Until the budget is used up or the user stops the search; used for the baseline."""
        return Until(self.stop.ending, lambda: self.budget.wait_s, "the budget is used up")

    @property
    def until_confirmation(self) -> Until:
        """Until only the reserved time is left or the user stops the search; used for trials.

        Nothing is reserved if there is no candidate and no time for a trial besides it: then it
        would be left unused.
        """
        kept_s = self.plan.kept_s + self.plan.apart_s
        if not self.has_candidate and self.budget.left_s - kept_s < self.plan.least_trial_s:
            kept_s = self.plan.apart_s
        what = (
            "the time for trials is used up; the rest of the budget is reserved for the "
            "confirmation"
        )
        return Until(
            self.stop.ending,
            lambda: min(self.budget.left_s - kept_s, self.budget.wait_s),
            what if kept_s else "the budget is used up",
        )

    @property
    def until_overdrawn(self) -> Until:
        """Until the overdraft is used up or Ctrl-C was pressed twice; used for the confirmation.

        The first Ctrl-C ends the search, but what was found may still be confirmed.
        """
        return Until(
            lambda: self.stop.ending() if self.stop.requests > 1 else None,
            lambda: self.budget.overdraft_s,
            "the budget ended before the confirmation's first round of measurements was complete",
        )

    def until_last_trial(self) -> Ending | None:
        """Return why no further trial is worth starting; None if one is."""
        until = self.until_confirmation
        if until.left_s() < self.plan.least_trial_s:
            return until() or Ending(Outcome.OUT_OF_TIME, until.reason)
        return until()

    @property
    def share_left(self) -> float:
        """Share of the time for trials that is left, 0 to 1."""
        left_s = max(0.0, self.until_confirmation.left_s())
        used_s = max(0.0, self.plan.divided_s - self.budget.left_s)
        return left_s / (left_s + used_s) if left_s else 0.0

    def time_to_rehearse_s(self, *, kept_s: float) -> float:
        """Return how many seconds a rehearsal may take; 0 if there is not enough time for one."""
        least_s = self.plan.least_rehearsal_s
        spare_s = min(self.budget.left_s - kept_s, max(MOST_REHEARSAL_S, 2 * least_s))
        return spare_s if spare_s >= least_s and self.stop.requests < 2 else 0.0

    @property
    def still_confirms_s(self) -> float:
        """About the seconds of the claim that may follow a first Ctrl-C; 0 if none does."""
        needed_s = self.plan.claim_s(is_apart=self.plan.needs_pairs)
        is_due = self.study.speeds is not None and self.stop.requests < 2
        return needed_s if is_due and self.budget.overdraft_s >= needed_s else 0.0

    def may_compile(self) -> bool:
        """Return whether there is time to compile the model, and to let it take turns."""
        return self.until_confirmation.left_s() > 2 * COMPILING_S

    def may_restart(self) -> bool:
        """Return whether there is time for a config in a fresh process, and for its claim."""
        kept_s = self.plan.claim_s(is_apart=True) + self.plan.rehearsal_s
        needed_s = self.plan.startup_s + WARM_UP_S + ALONE_S
        return self.budget.left_s - kept_s > needed_s and not self.stop.requests


@contextmanager
def faults_warned_of(events: Events) -> Iterator[None]:
    """Warn of a fault of the record, a file or the fence, and go on."""
    try:
        yield
    except (AutotuneError, OSError) as fault:
        events.warn(str(fault))


@contextmanager
def search_session(
    run: SearchDir, study: Study, budget_s: float, events: Events, surroundings: Surroundings
) -> Iterator[Session]:
    """Provide the session of a run whose lease this process holds.

    On leaving, also by an exception, no rig is left running, the time used is recorded and the
    lease is released.

    Raises:
        FenceError: when nothing keeps the program from changing the user's files.
        Terminated: when SIGTERM or SIGHUP has ended the session.
    """
    clock = surroundings.clock
    budget = Budget(budget_s, study.spent_s, clock)
    startup = StartUp(clock)
    sources = Sources(study.files, cache_roots(os.environ))

    def keep() -> None:
        study.spent_s = budget.spent_s
        if study.facts is not None and study.facts.files != sources.known:
            study.facts = replace(study.facts, files=dict(sources.known))

    def quietly(step: Callable[[], None]) -> None:
        with faults_warned_of(events):
            step()

    def hear(progress: Progress) -> None:
        startup.hear(progress)
        events.on_progress(progress)
        if budget.spent_s - study.spent_s > KEPT_EVERY_S:  # a search may be killed
            keep()

    def remember(mode: RunMode) -> None:
        study.mode = mode

    def interrupted(requests: int) -> None:
        events.on_interrupt(requests, sessions[0].still_confirms_s if sessions else 0.0)

    sessions: list[Session] = []
    with InterruptCounter(interrupted) as stop, ExitStack() as ending:
        study.storage.is_urgent = lambda: stop.is_urgent
        study.sharing = surroundings.sharing
        study.sharing.say = events.warn
        # Each step for itself, the last one first: a full disk does not keep rigs open
        ending.callback(events.on_search_end)
        ending.callback(study.sharing.leave)
        ending.callback(quietly, study.release_lease)
        ending.callback(quietly, keep)
        rigs = surroundings.make_rigs(
            replace(study.head.program, mode=study.mode),
            run.path,
            study.hardware,
            reports=Reports(
                hear,
                events.warn,
                events.note,
                sources,
                is_urgent=lambda: stop.is_urgent,
                signalled=lambda: stop.signalled,
            ),
            options=study.head.options.fence,
            remember=remember,
            clock=clock,
        )
        ending.callback(quietly, rigs.__exit__)
        live = LiveRig(rigs)
        ending.callback(quietly, live.close)
        events.on_search_start(study.head, run.name, budget)
        if (kept := run.kept_locally) is not None:
            events.warn(str(kept))
        events.on_fence(rigs.fence)
        study.fence = rigs.fence.sentence
        for warning in surroundings.look(study.head.hardware):
            events.warn(warning)
        sessions.append(Session(run, study, budget, stop, events, rigs, live, startup))
        yield sessions[0]
