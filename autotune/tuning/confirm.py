"""Confirmation: baseline and winner in fresh processes, in turn; the only source of a claim.

The best of many measurements looks better than it is, by the luck that made it the best (the
winner's curse); so what the search measured only chooses the candidate, and the claim rests on
windows of the confirmation alone.

A round is one fresh process, started as the program would be: as written in the first round, under
the winner in the second, and so on. In it the two configs take turns, A B B A …. Equal processes
were seen to differ in speed by 10 % and more for all their life on a virtual machine; a ratio taken
within one process is free of that, and drift over seconds meets both alike. Where a config needs a
process of its own, a round is one process of each side, and what such processes differ by widens
the interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol, Self

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.measurement import Interval, Measurement
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.measurement.stats import MAX_DRAINED, paired_ratio, unpaired_ratio
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.results.record import Side, TrialRecord, WindowRecord, gradients_sum
from autotune.rig.rig import Rig, ShouldStop
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import WindowPlan
from autotune.tuning.baseline import Baseline
from autotune.tuning.live_rig import START_SILENCE_S
from autotune.tuning.proposals import ranked
from autotune.tuning.session import Session
from autotune.tuning.study import Study

# A fresh process on a 2-core machine was seen to run at half its steady speed for its first 3-5 s.
WARM_UP = WindowPlan(
    warmup_min_s=3.0, warmup_max_s=20.0, window_min_s=0.0, window_max_s=0.5, half_width=1.0
)
WINDOW = WindowPlan(
    warmup_min_s=0.4, warmup_max_s=3.0, window_min_s=0.8, window_max_s=1.5, half_width=0.01
)
TURNS = {
    Side.BASELINE: (Side.BASELINE, Side.WINNER, Side.WINNER, Side.BASELINE) * 2,
    Side.WINNER: (Side.WINNER, Side.BASELINE, Side.BASELINE, Side.WINNER) * 2,
}
SHORT_TURNS = 4  # of a round that has no time for all
MIN_WINDOWS = 4  # two pairs: one has no spread
MIN_ROUNDS = 2  # below, a claim would rest on one process: nobody knows how others would differ
ONE_PROCESS = "a claim takes two fresh processes, and there was one"
MAX_ROUNDS = 6
# Of a config that needs processes of its own: a round is one process of each side, whose rates have
# all the spread of processes, so more of them are wanted, and more of each.
PAIRS = {
    Side.BASELINE: (Side.BASELINE, Side.WINNER),
    Side.WINNER: (Side.WINNER, Side.BASELINE),
}
WINDOW_APART = replace(WINDOW, window_min_s=1.5, window_max_s=3.0)
BRIEF = replace(WARM_UP, window_min_s=1.5, window_max_s=3.0, half_width=0.01)  # both in one
MAX_MODES = 3  # of which a program shows one after the other
MIN_PAIRS = 3
MAX_PAIRS = 12
Round = list[WindowRecord]
WORTH_CONFIRMING = 1.02  # a live speedup, however wide its interval: the confirmation decides
CANDIDATES = 2  # how many configs may fail in a fresh process before the baseline is kept
NARROW_PCT = 5.0  # half-width of the speedup at which no further round is worth its time


class HasTime(Protocol):
    """Tells whether there is time for so many seconds more, and for a round that a claim needs."""

    def __call__(self, seconds: float, *, is_needed: bool) -> bool:
        """Answer."""
        ...


@dataclass(frozen=True)
class Confirmation:
    """What the fresh processes of one candidate gave."""

    speedup: Interval
    baseline: tuple[Measurement, ...]
    winner: tuple[Measurement, ...]
    rounds: int
    least_rounds: int = MIN_ROUNDS

    @property
    def says_enough(self) -> bool:
        """One process was started as the program is written, and one as the winner."""
        return self.rounds >= MIN_ROUNDS

    @property
    def is_faster(self) -> bool:
        """The whole interval lies above 1, and not that of one process alone."""
        return self.says_enough and self.speedup.low > 1.0

    @property
    def is_decided(self) -> bool:
        """More rounds would not change what is said."""
        excludes_one = self.speedup.low > 1.0 or self.speedup.high < 1.0
        is_narrow = self.speedup.half_width_pct <= NARROW_PCT
        return self.rounds >= self.least_rounds and (excludes_one or is_narrow)

    def worth(self, round_s: float) -> float:
        """Return the time that must be left for one more round; one that is due may overdraw."""
        return round_s / 2 if self.rounds < self.least_rounds else round_s


@dataclass(frozen=True)
class ConfirmationPlan:
    """The two configs, and where and how they are run.

    Attributes:
        is_full_length: Rounds go on also once the speedup is decided.
        is_short: A round has half the windows.
    """

    rigs: RigFactory
    space: ResolvedSpace
    base: AppliedConfig
    winner: Config
    should_stop: ShouldStop
    is_full_length: bool = False
    is_short: bool = False

    @property
    def is_brief(self) -> bool:
        """The program ends within seconds: a window is all of a process."""
        return self.rigs.mode.brief

    def setting(self, side: Side) -> AppliedConfig:
        """Return the setting of a side."""
        return self.base if side is Side.BASELINE else replace(self.base, config=self.winner)

    def extra_work(self, rounds: Sequence[Round]) -> float:
        """Return how many times as many samples the whole run takes as the winner."""
        sides = {
            side: [w.measurement for r in rounds for w in r if w.side is side] for side in Side
        }
        if not self.base.bounded_by_steps or not all(sides.values()):
            return 1.0
        winner, baseline = (
            fmean(m.samples_per_step for m in sides[side]) for side in (Side.WINNER, Side.BASELINE)
        )
        return self.base.extra_work(self.winner, winner / baseline)

    @property
    def needs_own_process(self) -> bool:
        """Each side needs a process of its own."""
        return self.is_brief or self.space.needs_restart(self.base.config, self.winner)

    def turns(self, first: Side) -> tuple[Side, ...]:
        """Return whose windows a round has, in order."""
        turns = (PAIRS if self.needs_own_process else TURNS)[first]
        return turns[:SHORT_TURNS] if self.is_short else turns

    @property
    def most_rounds(self) -> int:
        """After so many rounds the claim is as good as it gets."""
        return MAX_PAIRS if self.needs_own_process else MAX_ROUNDS


@dataclass(frozen=True)
class ConfirmationResult:
    """How the confirmation came out.

    Attributes:
        candidate: The config that looked best, None when none looked faster than the baseline.
        confirmation: What fresh processes say of it, None when they could not be run; that of one
            alone says not enough.
        reason: Why there is no confirmation of a candidate that says enough.
    """

    candidate: TrialRecord | None
    confirmation: Confirmation | None = None
    reason: str = ""


def confirm_best(session: Session, baseline: Baseline) -> ConfirmationResult:
    """Confirm the best config; one that fails in a fresh process gives way to the next."""
    session.trial_runner.close()
    faster = promising(session.study, baseline.space)
    result = ConfirmationResult(None, reason="" if faster else _why_nothing_was_compared(session))
    base = replace(baseline.setting, sums=gradients_sum(session.study.records))
    for candidate in faster[:CANDIDATES]:
        plan = ConfirmationPlan(
            session.rigs,
            baseline.space,
            base,
            candidate.config,
            session.until_overdrawn,
            is_short=not session.has_time_for_full_rounds,
        )
        outcome = _confirm_in_time(session, plan, candidate)
        if isinstance(outcome, Confirmation):
            return ConfirmationResult(
                candidate, outcome, "" if outcome.says_enough else ONE_PROCESS
            )
        result = ConfirmationResult(candidate, reason=outcome.reason)
        if outcome.outcome in ENDED_BY_US:
            break
        session.events.warn(f"The best config failed in a fresh process: {outcome.reason}")
    return result


def _confirm_in_time(
    session: Session, plan: ConfirmationPlan, candidate: TrialRecord
) -> Confirmation | Ending:
    """Confirm a config, unless the budget cannot hold what that takes at least."""
    study = session.study
    needed_s = session.least_confirmation_s(candidate.cost_s if plan.needs_own_process else None)
    is_begun = any(_winner_of(r) == plan.winner for r in study.confirmation)
    left_s = session.budget.overdraft_s
    if not is_begun and left_s < needed_s:
        return Ending(
            Outcome.OUT_OF_TIME,
            f"fresh processes take about {needed_s:.0f} s, the budget had {max(0, left_s):.0f} s",
        )
    session.events.on_confirmation(candidate, plan.space)
    return confirm(plan, study.confirmation, study.add_confirmation, session.has_time_for)


def _why_nothing_was_compared(session: Session) -> str:
    """Return why there is nothing to say but of the baseline; empty where others were measured."""
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
) -> Confirmation | Ending:
    """Run rounds until the speedup is decided or time is up.

    Args:
        plan: What is run.
        earlier: Rounds of interrupted confirmations; those of the same winner count.
        keep: Records a round.
        has_time_for: Tells whether the budget holds so many seconds more; a round that a claim
            needs is run also where the user has asked once to end.

    Returns:
        The confirmation, or why there is none: the ending of the process that failed.
    """
    rounds = [r for r in earlier if _winner_of(r) == plan.winner]
    while True:
        confirmation = read(rounds, plan.extra_work(rounds))
        if confirmation is not None and (
            (confirmation.is_decided and not plan.is_full_length)
            or len(rounds) >= plan.most_rounds
            or not has_time_for(
                confirmation.worth(max(sum(w.cost_s for w in r) for r in rounds)),
                is_needed=not confirmation.says_enough,
            )
        ):
            return confirmation
        first = Side.BASELINE if len(rounds) % 2 == 0 else Side.WINNER
        outcome = _round(plan, first)
        if isinstance(outcome, Ending):
            was_ended = outcome.outcome in ENDED_BY_US
            if confirmation is not None and (was_ended or confirmation.says_enough):
                return confirmation
            return outcome  # one process that ran the winner, and one that failed, prove nothing
        keep(outcome)
        rounds.append(outcome)


def read(rounds: Sequence[Round], extra_work: float = 1.0) -> Confirmation | None:
    """Return what rounds say; None with less than two pairs of windows.

    Args:
        rounds: In the order in which they ran.
        extra_work: How many times as many samples the whole run takes as the winner.
    """
    if sum(map(len, rounds)) < MIN_WINDOWS:
        return None
    windows = [w for r in rounds for w in r]
    baseline = tuple(w.measurement for w in windows if w.side is Side.BASELINE)
    winner = tuple(w.measurement for w in windows if w.side is Side.WINNER)
    needs_own_process = len(rounds[0]) == len(PAIRS[Side.BASELINE])
    least_rounds = MIN_PAIRS if needs_own_process else MIN_ROUNDS
    speedup = _speedup(rounds).times(1 / extra_work)
    return Confirmation(speedup, baseline, winner, len(rounds), least_rounds)


def _speedup(rounds: Sequence[Round]) -> Interval:
    """Return the speedup, of which nothing is owed to full buffers.

    A window that drained them was faster than its config is. What they may have given is taken off
    the winner's rates, so that it cannot make a claim; taken off the baseline's instead, it tells
    how high the speedup may be.
    """
    least = _ratio(rounds, lowered=Side.WINNER)
    most = _ratio(rounds, lowered=Side.BASELINE)
    return replace(least, high=max(least.high, most.high))


def _ratio(rounds: Sequence[Round], *, lowered: Side) -> Interval:
    rates = [  # neighbours in turn are compared
        [{w.side: _rate(w, lowered) for w in pair} for pair in zip(r[::2], r[1::2], strict=True)]
        for r in rounds
    ]
    if len(rounds[0]) == len(PAIRS[Side.BASELINE]):
        sides = ([pair[side] for (pair,) in rates] for side in (Side.WINNER, Side.BASELINE))
        return unpaired_ratio(*sides)
    return paired_ratio(
        [[pair[Side.WINNER] / pair[Side.BASELINE] for pair in pairs] for pairs in rates]
    )


def _rate(window: WindowRecord, lowered: Side) -> float:
    measured = window.measurement
    drained_share = measured.drained_share if window.side is lowered else 0.0
    return measured.throughput.estimate * (1 - min(drained_share, MAX_DRAINED))


def looks_faster(record: TrialRecord) -> bool:
    """Tell whether a record's config is worth a confirmation."""
    found = record.speedup
    return found is not None and (found.low > 1.0 or found.estimate >= WORTH_CONFIRMING)


def promising(study: Study, space: ResolvedSpace) -> list[TrialRecord]:
    """Return what looks faster, best first, but for what fails outside of its training loop."""
    guilty = [record.guilty for record in study.rehearsals if record.is_blamed]
    able = [
        record
        for record in study.records
        if not any(changes.items() <= record.config.items() for changes in guilty)
    ]
    return [record for record in ranked(able, space) if looks_faster(record)]


def _round(plan: ConfirmationPlan, first: Side) -> Round | Ending:
    """Run a round; one in which the program shows another mode begins anew in that."""
    for _ in range(MAX_MODES):
        mode = plan.rigs.mode
        outcome = _round_in_mode(plan, first)
        if plan.rigs.mode == mode:
            break
    return outcome


def _round_in_mode(plan: ConfirmationPlan, first: Side) -> Round | Ending:
    windows: list[WindowRecord] = []
    with _Process(plan) as process:
        for side in plan.turns(first):
            began = plan.rigs.clock()
            result = process.measure(side)
            if isinstance(result, Ending) and result.outcome is Outcome.RAN_OUT:
                result = process.measure(side)  # a short program ended: it is started once more
            as_written = side is Side.BASELINE
            if isinstance(result, Ending) and plan.rigs.learn(result, as_written=as_written):
                return result
            if isinstance(result, Ending):
                pairs = windows[: len(windows) // 2 * 2]
                says_enough = not plan.needs_own_process and len(pairs) >= MIN_WINDOWS
                return pairs if says_enough and result.outcome in ENDED_BY_US else result
            config = plan.setting(side).config
            windows.append(WindowRecord(side, config, result, plan.rigs.clock() - began))
    return windows


class _Process:
    """The process of a round; replaced where a config needs one of its own."""

    def __init__(self, plan: ConfirmationPlan) -> None:
        self._contest = plan
        self._rig: Rig | None = None
        self._started_as = plan.base.config

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def measure(self, side: Side) -> Measurement | Ending:
        """Measure a side, in a fresh process that is warmed up first if there is none for it."""
        plan, setting = self._contest, self._contest.setting(side)
        needs_own_process = plan.space.needs_restart(self._started_as, setting.config)
        if plan.is_brief or needs_own_process:
            self._close()
        if self._rig is None:
            self._rig = plan.rigs.new()
            self._started_as = setting.config
            if ending := self._begin(self._rig, setting):
                self._close()
                return ending
        window = BRIEF if plan.is_brief else WINDOW_APART if plan.needs_own_process else WINDOW
        result = self._rig.measure(setting, window, plan.should_stop, START_SILENCE_S)
        if isinstance(result, Ending):
            self._close()
        return result

    def _begin(self, rig: Rig, setting: AppliedConfig) -> Ending | None:
        """Start a fresh process and run it in, where it lives long enough for that."""
        plan = self._contest
        opened = rig.open(setting, plan.should_stop, START_SILENCE_S)
        if isinstance(opened, Ending):
            return opened
        if plan.is_brief:
            return None
        warm = rig.measure(setting, WARM_UP, plan.should_stop, START_SILENCE_S)
        return warm if isinstance(warm, Ending) else None

    def _close(self) -> None:
        if self._rig is not None:
            self._rig.close()
        self._rig = None


def _winner_of(windows: Sequence[WindowRecord]) -> Config:
    return next(w.config for w in windows if w.side is Side.WINNER)
