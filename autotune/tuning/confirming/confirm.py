"""Confirmation: compare baseline and winner in fresh processes; the only source of a claim.

The best of many measurements looks better than it is, because luck helped to make it the best (the
winner's curse). So the measurements of the search only select the candidate, and the claim rests on
windows of the confirmation alone.

A round is one fresh process. The first is started as the program is written, the second under the
winner, and so on. Within it the two configs take turns: A B B A …. On a virtual machine, equal
processes were seen to differ in speed by 10 % and more for as long as they lived. A ratio taken
within one process does not contain that difference, and drift over seconds affects both configs
alike.

Where the two configs cannot share a process, a round is one process of each. The difference between
such processes then widens the interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol, Self

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement import claim
from autotune.measurement.goal import THROUGHPUT, Goal
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.measurement.run_mode import RunMode
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.results.record import (
    Round,
    Side,
    TrialRecord,
    WindowRecord,
    gradients_sum,
    slowest_compilation,
)
from autotune.rig.open_rig import ShouldStop
from autotune.rig.rig import Rig
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import WindowPlan
from autotune.tuning.baseline import Baseline
from autotune.tuning.checking.growth import may_win
from autotune.tuning.checking.preferred import checked_first
from autotune.tuning.choosing.ranking import promising
from autotune.tuning.confirming.confirmation import (
    PAIRS,
    TURNS,
    UNPACED,
    Confirmation,
    Slopes,
    is_pair,
    looks_taken,
    read,
    winner_of,
)
from autotune.tuning.session import Session
from autotune.tuning.start.first_start import START_SILENCE_S
from autotune.tuning.storage.study import Study

# A fresh process on a 2-core machine was seen to run at half its steady speed for its first 3-5 s.
WARM_UP = WindowPlan(
    warmup_min_s=3.0, warmup_max_s=20.0, window_min_s=0.0, window_max_s=0.5, half_width=1.0
)
WINDOW = WindowPlan(
    warmup_min_s=0.4, warmup_max_s=3.0, window_min_s=0.8, window_max_s=1.5, half_width=0.01
)
# Where each process has one window, it contains the whole difference between processes anyway
WINDOW_APART = replace(WINDOW, window_min_s=1.5, window_max_s=3.0)
# For programs that end within seconds: warm-up and window in one, since there is no second window.
BRIEF = replace(WARM_UP, window_min_s=1.5, window_max_s=3.0, half_width=0.01)
MAX_MODES = 3  # run modes that a program may turn out to need, one after the other
CANDIDATES = 2  # configs that may fail in a fresh process before the baseline is kept


@dataclass(frozen=True)
class Failure:
    """Why a round has no result.

    Attributes:
        side: The config that was started or measured at that moment.
        ending: How its process ended.
    """

    side: Side
    ending: Ending

    @property
    def is_of_winner(self) -> bool:
        """The winner's process failed; nobody ended it."""
        return self.side is Side.WINNER and self.ending.outcome not in ENDED_BY_US


class HasTime(Protocol):
    """Signature of the callable that says whether a round still fits into the budget.

    ``Session.has_time_for`` is the one of a search.
    """

    def __call__(self, seconds: float, *, is_needed: bool) -> bool:
        """Return whether there is time left for another round.

        Args:
            seconds: What the round is expected to take.
            is_needed: Whether no claim is possible without it; then one Ctrl-C does not prevent it.
        """
        ...


@dataclass(frozen=True)
class OtherProgram:
    """A candidate that is another program, such as the script at another commit.

    Attributes:
        rigs: Makes its rigs; its mode can change while rounds run.
        applied: What it runs under.
    """

    rigs: RigFactory
    applied: AppliedConfig


@dataclass(frozen=True)
class ConfirmationPlan:
    """The two configs to compare, and how to run them.

    Attributes:
        rigs: Makes the rigs; its mode can change while rounds run.
        space: Tells whether the two configs can share a process.
        base: The program as written.
        winner: The candidate's config.
        should_stop: Called many times a second; an Ending from it ends the current window.
        slopes: By how much the pilots explain the speed of visits, as the search learned before
            its first confirmation. They stay the same for all rounds.
        goal: What is compared.
        compile_s: Seconds that the winner spends compiling.
        claims: Whether only a claim is of interest. If not, rounds go on where none is likely: what
            they show of the machine's noise is worth as much.
        other: The candidate, where it is another program; None if both are configs of one program.
    """

    rigs: RigFactory
    space: ResolvedSpace
    base: AppliedConfig
    winner: Config
    should_stop: ShouldStop
    slopes: Slopes = UNPACED
    goal: Goal = THROUGHPUT
    compile_s: float = 0.0
    claims: bool = True
    other: OtherProgram | None = None

    @property
    def modes(self) -> tuple[RunMode, ...]:
        """How the sides' programs are run at present."""
        return tuple(self.rigs_of(side).mode for side in Side)

    @property
    def is_brief(self) -> bool:
        """Whether a program ends within seconds, so that each process yields a single window."""
        return any(mode.brief for mode in self.modes)

    def rigs_of(self, side: Side) -> RigFactory:
        """Return what makes the rigs of a side."""
        is_other = self.other is not None and side is Side.WINNER
        return self.other.rigs if self.other is not None and is_other else self.rigs

    def applied(self, side: Side) -> AppliedConfig:
        """Return what a side runs under: the baseline, or the winner's config."""
        if side is Side.BASELINE:
            return self.base
        return replace(self.base, config=self.winner) if self.other is None else self.other.applied

    def extra_work(self, rounds: Sequence[Round]) -> float:
        """Return the ratio of what a whole run has to do, winner to baseline.

        It exceeds 1 for a program that makes a fixed number of steps: there a larger batch means
        more samples, not fewer steps, so samples/s would overstate the speedup. And where the time
        of compiling counts. It is 1 until both sides were measured.

        Another program is compared by what it does per second, as nobody knows how much it has to
        do.
        """
        if self.other is not None:
            return 1.0
        compiling = 1 / self.goal.kept_share(self.compile_s)
        sides = {
            side: [w.measurement for r in rounds for w in r if w.side is side] for side in Side
        }
        is_bounded = self.base.traits.bounded_by_steps and self.goal.objective.counts_samples
        if not is_bounded or not all(sides.values()):
            return compiling
        winner, baseline = (
            fmean(m.samples_per_step for m in sides[side]) for side in (Side.WINNER, Side.BASELINE)
        )
        return compiling * self.base.extra_work(self.winner, winner / baseline)

    def excess(self, measured: Measurement) -> Ending | None:
        """Return by how much a window is beyond the user's limit of memory; None if it is not."""
        used = measured.memory
        capacity = self.rigs.hardware.capacity_bytes(on_device=used.is_on_device)
        return self.goal.excess(used, capacity)

    @property
    def needs_own_process(self) -> bool:
        """Whether the two configs cannot take turns within one process.

        They differ in a knob that acts only at start, the program ends too soon, or they are
        configs of two programs.
        """
        return (
            self.is_brief
            or self.other is not None
            or self.space.needs_restart(self.base.config, self.winner)
        )

    def turns(self, first: Side) -> tuple[Side, ...]:
        """Return the sides whose windows make up a round, in order.

        Args:
            first: The side as which the process is started.
        """
        return (PAIRS if self.needs_own_process else TURNS)[first]


@dataclass(frozen=True)
class ConfirmationResult:
    """Outcome of the confirmation phase.

    Attributes:
        candidate: The config that looked best; None if nothing looked faster than the baseline.
        confirmation: What fresh processes measured; None if they could not be run. A confirmation
            of one round alone does not say enough for a claim.
        reason: Why there is no confirmation that says enough; empty if there is one, or if configs
            were measured and none looked faster.
    """

    candidate: TrialRecord | None
    confirmation: Confirmation | None = None
    reason: str = ""


def confirm_best(session: Session, baseline: Baseline) -> ConfirmationResult:
    """Confirm the best config; if it fails in a fresh process, try the next best.

    At most ``CANDIDATES`` configs are tried. If the user or the budget ends the confirmation, no
    other candidate is tried.
    """
    session.trial_runner.close()  # its process would compete with the rounds
    able = promising(session.study, baseline.space)
    able = [r for r in able if may_win(session, baseline.space, r.config)]
    faster = checked_first(session, baseline, able)
    result = ConfirmationResult(None, reason="" if faster else _why_nothing_was_compared(session))
    records = session.study.records
    base = replace(baseline.applied, sums=gradients_sum(records))
    for candidate in faster[:CANDIDATES]:
        compilation = slowest_compilation(records, candidate.config)
        plan = ConfirmationPlan(
            session.rigs,
            baseline.space,
            base,
            candidate.config,
            session.until_overdrawn,
            _frozen_slopes(session.study),
            session.study.goal,
            0.0 if compilation is None else compilation.seconds,
        )
        outcome = _confirm_in_time(session, plan, candidate)
        if isinstance(outcome, Confirmation):
            return ConfirmationResult(candidate, outcome, outcome.lack)
        reason = outcome.ending.reason
        if not outcome.is_of_winner:
            if outcome.ending.outcome not in ENDED_BY_US:
                reason = f"the program as written failed in a fresh process: {reason}"
            return ConfirmationResult(candidate, reason=reason)
        result = ConfirmationResult(candidate, reason=reason)
        session.events.warn(f"The best config failed in a fresh process: {reason}")
    return result


def _frozen_slopes(study: Study) -> Slopes:
    """Return the slopes that were learned before the first confirmation; resume keeps them."""
    if (slopes := study.slopes) is None:
        slopes = study.slopes = study.model.slopes
    return slopes


def _confirm_in_time(
    session: Session, plan: ConfirmationPlan, candidate: TrialRecord
) -> Confirmation | Failure:
    """Confirm a config, unless the time left cannot hold the shortest confirmation.

    A confirmation that an earlier session began goes on in any case: what it recorded may be
    enough.
    """
    study = session.study
    needed_s = session.least_confirmation_s(candidate.cost_s if plan.needs_own_process else None)
    is_begun = any(winner_of(r) == plan.winner for r in study.confirmation)
    left_s = session.budget.overdraft_s
    if not is_begun and left_s < needed_s:
        reason = (
            f"fresh processes take about {needed_s:.0f} s, but the budget had only "
            f"{max(0, left_s):.0f} s left"
        )
        return Failure(Side.WINNER, Ending(Outcome.OUT_OF_TIME, reason))
    session.events.on_phase("confirming")
    session.events.on_confirmation(candidate, plan.space)
    return confirm(plan, study.confirmation, study.add_confirmation, session.has_time_for)


def _why_nothing_was_compared(session: Session) -> str:
    """Return why only the baseline was measured; empty if other configs were measured.

    Without this, a search whose baseline used up the budget would report "no gain".
    """
    others = session.study.records[1:]
    ending = session.until_last_trial()
    if ending is None or any(record.measurement is not None for record in others):
        return ""
    return ending.reason


def confirm(
    plan: ConfirmationPlan,
    earlier: Sequence[Round],
    keep: Callable[[Round], None],
    has_time_for: HasTime,
) -> Confirmation | Failure:
    """Run rounds until the speedup is decided or time is up.

    Args:
        plan: The two configs and how to run them.
        earlier: Rounds that are already recorded; those of the same winner count.
        keep: Called with each new round, to record it.
        has_time_for: Says whether the budget holds another round.

    Returns:
        The confirmation. A failure instead, if the winner's process failed in any round: a config
        that fails in a fresh process is not recommended, however fast it was in others. Or if
        something else ended the first round before two pairs of windows.
    """
    rounds = [  # pairs of processes do not compare with configs that took turns in one
        r for r in earlier if winner_of(r) == plan.winner and is_pair(r) is plan.needs_own_process
    ]
    share = claim.share_left(looks_taken([r for r in earlier if winner_of(r) != plan.winner]))
    while True:
        confirmation = read(rounds, plan.extra_work(rounds), share, plan.slopes, plan.goal)
        if confirmation is not None and (
            confirmation.is_decided
            or (confirmation.is_in_vain and plan.claims)
            or confirmation.is_complete
            or not has_time_for(
                confirmation.worth(max(sum(w.cost_s for w in r) for r in rounds)),
                is_needed=not confirmation.says_enough,
            )
        ):
            return confirmation
        first = Side.BASELINE if len(rounds) % 2 == 0 else Side.WINNER
        outcome = _round(plan, first)
        if isinstance(outcome, Failure):
            return outcome if confirmation is None or outcome.is_of_winner else confirmation
        keep(outcome)
        rounds.append(outcome)


def _round(plan: ConfirmationPlan, first: Side) -> Round | Failure:
    """Run one round; start it again if the program turned out to need another run mode.

    The windows of a round must come from one mode, or they would not compare.
    """
    for _ in range(MAX_MODES):
        modes = plan.modes
        outcome = _round_in_mode(plan, first)
        if plan.modes == modes:
            break
    return outcome


def _round_in_mode(plan: ConfirmationPlan, first: Side) -> Round | Failure:
    windows: list[WindowRecord] = []
    with _Process(plan) as process:
        for side in plan.turns(first):
            began = plan.rigs.clock()
            result = process.measure(side)
            if isinstance(result, Ending) and result.outcome is Outcome.RAN_OUT:
                result = process.measure(side)  # a short program ended; this starts it again
            if isinstance(result, Ending):
                # which changes the mode if the program needs another one
                ran = plan.applied(side)
                plan.rigs_of(side).learn(result, as_written=ran.config == ran.baseline)
                return Failure(side, result)
            if side is Side.WINNER and (too_much := plan.excess(result)) is not None:
                return Failure(side, too_much)
            config = plan.applied(side).config
            windows.append(WindowRecord(side, config, result, plan.rigs.clock() - began))
    return windows


class _Process:
    """The process of a round, replaced whenever a config cannot run in it.

    The first window starts it, and the process is closed when the round ends or a window fails.
    """

    def __init__(self, plan: ConfirmationPlan) -> None:
        self._plan = plan
        self._rig: Rig | None = None
        self._started_as = plan.base.config
        self._side = Side.BASELINE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def measure(self, side: Side) -> Measurement | Ending:
        """Measure a side; first start and warm up a fresh process if no suitable one is open."""
        plan, applied = self._plan, self._plan.applied(side)
        if plan.is_brief or not self._suits(side):
            self._close()
        if self._rig is None:
            self._rig = plan.rigs_of(side).new()
            self._started_as, self._side = applied.config, side
            if ending := self._begin(self._rig, applied):
                self._close()
                return ending
        window = BRIEF if plan.is_brief else WINDOW_APART if plan.needs_own_process else WINDOW
        result = self._rig.measure(applied, window, plan.should_stop, START_SILENCE_S)
        if isinstance(result, Ending):
            self._close()
        return result

    def _suits(self, side: Side) -> bool:
        """Return whether the open process can run a side."""
        if self._plan.other is not None:
            return self._side is side
        config = self._plan.applied(side).config
        return not self._plan.space.needs_restart(self._started_as, config)

    def _begin(self, rig: Rig, applied: AppliedConfig) -> Ending | None:
        """Start a fresh process under a config and warm it up.

        A program that ends within seconds is not warmed up here: its only window includes the
        warm-up.
        """
        plan = self._plan
        opened = rig.open(applied, plan.should_stop, START_SILENCE_S)
        if isinstance(opened, Ending):
            return opened
        if plan.is_brief:
            return None
        warm = rig.measure(applied, WARM_UP, plan.should_stop, START_SILENCE_S)
        return warm if isinstance(warm, Ending) else None

    def _close(self) -> None:
        if self._rig is not None:
            self._rig.close()
        self._rig = None
