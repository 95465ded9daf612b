"""The search: baseline, exploration, confirmation, result."""

from __future__ import annotations

from dataclasses import dataclass

from autotune import diagnosis as diagnoses
from autotune.budget import Budget, format_duration
from autotune.confirm import Confirmation, Contest, confirm, fit_together
from autotune.console import Console
from autotune.diagnosis import Diagnosis
from autotune.errors import BudgetError, ProgramError
from autotune.lr import rule_for
from autotune.measurement import Measurement
from autotune.objective import Objective
from autotune.outcome import Ending, Outcome
from autotune.profile import Profile
from autotune.proposals import Proposals, ranked, restarts
from autotune.record import BaselineFacts, Head, TrialRecord
from autotune.result import SearchResult, conclude
from autotune.rigs import Rigs
from autotune.rundir import RunDir
from autotune.setting import Setting
from autotune.space import ResolvedSpace
from autotune.stop import Stop
from autotune.study import Study

ROUND_WINDOWS_S = 28.0  # two warm-ups and eight windows, as planned in confirm.py, with switching
MOST_FOR_CONFIRMATION = 0.5  # of the budget
CANDIDATES = 2  # how many configs may fail in a fresh process before the baseline is kept
TRIALS_WORTH_S = 10.0  # a search that could not measure this long would not search
RESTART_WORTH_S = 25.0  # besides two starts: compiling a small model took 15-40 s on 2 cores
OVERDRAFT = 0.15  # of the budget, to let a running confirmation end


def search(run: RunDir, study: Study, budget_s: float, console: Console) -> SearchResult:
    """Search, or go on searching, what a study is about.

    Raises:
        ProgramError: when the program fails by itself or trains no step.
        BudgetError: when the budget cannot hold a baseline and a confirmation.
        UsageError: when a knob that the user named cannot act here.
        RunDirectoryError: when another process works on this run.
    """
    study.take_lease()
    budget = Budget(budget_s, study.spent_s)
    rigs = Rigs(study.head.program, run.path, study.head.hardware, console.progress)
    try:
        with (
            Stop(console.stopping) as stop,
            Objective(rigs) as objective,
        ):
            session = _Session(run, study, budget, stop, console, rigs, objective)
            console.begin(study.head, run.name, budget)
            profile, baseline, space = session.measure_baseline()
            diagnosis = diagnoses.diagnose(profile, baseline, space, study.head.hardware)
            console.diagnosed(diagnosis, space)
            session.explore(space, diagnosis)
            candidate, confirmation, reason = session.confirm_best(space)
            return session.conclude(space, candidate, confirmation, reason)
    finally:
        study.spent_s = budget.spent_s
        study.release_lease()


@dataclass
class _Session:
    """One sitting on a run: what its steps share."""

    run: RunDir
    study: Study
    budget: Budget
    stop: Stop
    console: Console
    rigs: Rigs
    objective: Objective

    def measure_baseline(self) -> tuple[Profile, Measurement, ResolvedSpace]:
        """Observe and measure the untouched program, unless an earlier sitting did."""
        head = self.study.head
        facts, records = self.study.facts, self.study.records
        if facts is not None and records and records[0].measurement is not None:
            space = head.space.resolve(head.hardware, facts.profile)
            measurement = records[0].measurement
            self.objective.set_up(space, setting_for(head, facts.profile, space), measurement.step_s)
            self.console.resumed(records)
            return facts.profile, measurement, space
        self.console.phase("baseline")
        ready = self.objective.observe(self._until_stopped)
        if isinstance(ready, Ending):
            raise program_error(head, ready)
        space = head.space.resolve(head.hardware, ready.profile)
        self.objective.set_up(space, setting_for(head, ready.profile, space))
        trial = self.study.ask_for(space.baseline, space)
        record = self.objective.baseline(self._until_stopped)
        self.study.tell(trial, record)
        if record.measurement is None:
            assert record.ending is not None, "a trial without measurement has an ending"
            raise program_error(head, record.ending)
        self.study.facts = BaselineFacts(ready.profile, ready.startup_s)
        self.console.trial(0, record, space)
        self._check_budget()
        return ready.profile, record.measurement, space

    def explore(self, space: ResolvedSpace, diagnosis: Diagnosis) -> None:
        """Measure proposed configs until the time for the confirmation comes."""
        self.console.phase("searching")
        proposals = iter(
            Proposals(
                self.study, space, diagnosis, self.study.head.options.seed, self._may_restart
            )
        )
        while not self._time_to_confirm():
            proposal = next(proposals, None)
            if proposal is None:
                self.console.note("Nothing better is in sight: the search ends early.")
                break
            self.console.trying(proposal.config, proposal.why, space)
            best = self._best(space)
            record = self.objective(
                proposal.config,
                proposal.why,
                self._time_to_confirm,
                best.speedup.estimate if best and best.speedup else None,
            )
            self.study.tell(proposal.trial, record)
            self.study.spent_s = self.budget.spent_s
            self.console.trial(len(self.study.records) - 1, record, space)

    def confirm_best(
        self, space: ResolvedSpace
    ) -> tuple[TrialRecord | None, Confirmation | None, str]:
        """Run baseline and winner in fresh processes; a winner that fails there gives way once."""
        self.objective.close()
        winners = [r for r in ranked(self.study.records, space) if _looks_faster(r)]
        reason = ""
        for candidate in winners[:CANDIDATES]:
            self.console.confirming(candidate, space)
            outcome = confirm(self.study, self._contest(candidate, space), self._has_time_for)
            if isinstance(outcome, Confirmation):
                return candidate, outcome, ""
            reason = outcome.reason
            if outcome.outcome in {Outcome.INTERRUPTED, Outcome.OUT_OF_TIME}:
                return candidate, None, reason
            self.console.warn(f"The best config failed in a fresh process: {reason}")
        return (winners[0] if winners else None), None, reason

    def conclude(
        self,
        space: ResolvedSpace,
        candidate: TrialRecord | None,
        confirmation: Confirmation | None,
        reason: str,
    ) -> SearchResult:
        """Put together the result."""
        head, facts = self.study.head, self.study.facts
        assert facts is not None, "a search that concludes has a baseline"
        tried = [r.config for r in self.study.records if r.measurement is not None]
        untried = [
            f"{knob}={value}"
            for changes in restarts(space)
            for knob, value in changes.items()
            if not any(config[knob] == value for config in tried)
        ]
        return conclude(
            head=head,
            setting=setting_for(head, facts.profile, space),
            records=self.study.records,
            candidate=candidate,
            confirmation=confirmation,
            reason=reason,
            untried=untried,
            seconds=self.budget.spent_s,
            processes=self.rigs.started,
            run_dir=self.run.path,
        )

    def _contest(self, candidate: TrialRecord, space: ResolvedSpace) -> Contest:
        head, facts, first = self.study.head, self.study.facts, self.study.records[0].measurement
        assert facts is not None, "the baseline was measured"
        assert first is not None, "the baseline was measured"
        assert candidate.measurement is not None, "a candidate was measured"
        return Contest(
            self.rigs,
            setting_for(head, facts.profile, space),
            candidate.config,
            self._until_overdrawn,
            fit_together(first.memory, candidate.measurement.memory, head.hardware),
        )

    def _may_restart(self) -> bool:
        facts = self.study.facts
        worth_s = RESTART_WORTH_S + 2 * facts.startup_s if facts is not None else 0.0
        return self.budget.left_s - self._reserve_s() > worth_s

    def _has_time_for(self, seconds: float) -> bool:
        return self.stop.requests == 0 and self.budget.left_s > seconds

    def _best(self, space: ResolvedSpace) -> TrialRecord | None:
        return next(iter(ranked(self.study.records, space)), None)

    def _until_stopped(self) -> Ending | None:
        if self.stop.requests:
            return Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C")
        return None

    def _time_to_confirm(self) -> Ending | None:
        if ending := self._until_stopped():
            return ending
        if self.budget.left_s < self._reserve_s():
            return Ending(Outcome.OUT_OF_TIME, "the rest of the budget is for the confirmation")
        return None

    def _until_overdrawn(self) -> Ending | None:
        if self.stop.requests > 1:
            return Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C")
        if self.budget.left_s < -OVERDRAFT * self.budget.total_s:
            return Ending(Outcome.OUT_OF_TIME, "the budget ended before the first round did")
        return None

    def _reserve_s(self) -> float:
        """Two rounds of confirmation; in a budget too small for that, one."""
        round_s = self._round_s()
        return 2 * round_s if 2 * round_s <= MOST_FOR_CONFIRMATION * self.budget.total_s else round_s

    def _round_s(self) -> float:
        """What a round of the confirmation takes at least: two starts, then windows in turn."""
        facts = self.study.facts
        return ROUND_WINDOWS_S + 2 * facts.startup_s if facts is not None else 0.0

    def _check_budget(self) -> None:
        needed_s = self.budget.spent_s + self._round_s() + TRIALS_WORTH_S
        if self.budget.total_s < needed_s:
            raise BudgetError(
                f"A budget of {format_duration(self.budget.total_s)} is too short: the baseline "
                f"took {format_duration(self.budget.spent_s)}, and confirming a winner takes "
                f"{format_duration(self._round_s())} more. Give at least --budget "
                f"{round(needed_s)}s; the baseline is kept: autotune resume {self.run.name} "
                f"--budget {round(needed_s)}s"
            )


def setting_for(head: Head, profile: Profile, space: ResolvedSpace) -> Setting:
    """Return the baseline's setting: what every other config is applied against."""
    families = [name for optimizer in profile.optimizers for name in optimizer.families]
    return Setting(
        config=space.baseline,
        baseline=space.baseline,
        loader=profile.training_loader,
        lr_rule=head.options.lr_rule or rule_for(families),
        own_knobs=tuple(profile.config_reads),
        device=profile.device,
    )


def program_error(head: Head, ending: Ending) -> ProgramError:
    """Return why the untouched program gave no baseline, with the mend."""
    return ProgramError(_complaint(head, ending), ending.program_traceback)


def _complaint(head: Head, ending: Ending) -> str:
    name = head.program.name
    match ending.outcome:
        case Outcome.RAN_OUT:
            return (
                f"There is nothing to measure in {head.program}: {ending.reason}, and a baseline "
                "needs a few dozen. Is this the training script? Give it more data or epochs."
            )
        case Outcome.INTERRUPTED:
            return f"Stopped before the baseline of {name} was measured; there is nothing to report."
        case Outcome.OUT_OF_MEMORY | Outcome.HOST_OUT_OF_MEMORY:
            return (
                f"{name} does not fit as it is written: {ending.reason}. "
                "Make its batch or its model smaller first."
            )
        case Outcome.HUNG:
            return f"{name} hangs by itself: {ending.reason}. Its last output is above."
        case _:
            return (
                f"{name} fails by itself, before autotune changed anything: {ending.reason}"
                f"{_misplaced_options(head)}"
            )


def _misplaced_options(head: Head) -> str:
    """Autotune's own options after the program went to the program: say so."""
    from autotune.cli import option_names

    ours = [a for a in head.program.args if a.partition("=")[0] in option_names("search")]
    if not ours:
        return ""
    return (
        f"\n{' '.join(ours)} stood after the program and went to it. If that was meant for "
        "autotune: its options come before the program."
    )


def _looks_faster(record: TrialRecord) -> bool:
    return record.speedup is not None and record.speedup.low > 1.0
