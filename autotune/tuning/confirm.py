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

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Protocol, Self

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement import claim
from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.measurement.stats import MAX_DRAINED, t_quantile
from autotune.measurement.stream import StreamModel
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.results.record import Side, TrialRecord, WindowRecord, gradients_sum
from autotune.results.speedups import seen_in
from autotune.rig.open_rig import ShouldStop
from autotune.rig.rig import Rig
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import WindowPlan
from autotune.tuning.baseline import Baseline
from autotune.tuning.proposals import ranked
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
TURNS = {
    Side.BASELINE: (Side.BASELINE, Side.WINNER, Side.WINNER, Side.BASELINE),
    Side.WINNER: (Side.WINNER, Side.BASELINE, Side.BASELINE, Side.WINNER),
}
MIN_WINDOWS = 4  # two pairs: a single pair has no spread
MIN_ROUNDS = 2  # a claim from one process would not know how much other processes differ
CLAIM_LOOKS = range(MIN_ROUNDS, claim.MAX_LOOKS + 1)  # rounds after which it is looked
ONE_PROCESS = "a claim needs two fresh processes, and only one was measured"
FEW_PAIRS = "a claim needs {} fresh processes of each config, and only {} were measured"
# For two configs that cannot share a process: a round is one process of each side. Their rates
# contain the whole difference between processes, so more rounds and longer windows are needed.
PAIRS = {
    Side.BASELINE: (Side.BASELINE, Side.WINNER),
    Side.WINNER: (Side.WINNER, Side.BASELINE),
}
WINDOW_APART = replace(WINDOW, window_min_s=1.5, window_max_s=3.0)
# For programs that end within seconds: warm-up and window in one, since there is no second window.
BRIEF = replace(WARM_UP, window_min_s=1.5, window_max_s=3.0, half_width=0.01)
MAX_MODES = 3  # run modes that a program may turn out to need, one after the other
Round = list[WindowRecord]
Slopes = tuple[float, float]  # of one core and of all cores, as in the stream model
UNPACED: Slopes = (0.0, 0.0)
# A live speedup worth confirming however wide its interval is: only the confirmation decides.
WORTH_CONFIRMING = 1.02
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
class Confirmation:
    """The comparison of one candidate with the baseline, from fresh processes.

    Attributes:
        speedup: Of the winner over the baseline, with its 95 % interval.
        baseline: All windows of the baseline, in the order in which they ran.
        winner: All windows of the candidate.
        rounds: How many rounds were run.
        is_apart: Whether a round is one process of each side, because they cannot share one.
        raw: The speedup without the correction by the pilots; None if nothing was corrected.
    """

    speedup: Interval
    baseline: tuple[Measurement, ...]
    winner: tuple[Measurement, ...]
    rounds: int
    is_apart: bool = False
    raw: Interval | None = None

    @property
    def says_enough(self) -> bool:
        """Whether there were enough rounds for a claim.

        That is so from the first planned look on. Where both configs share a process, two rounds
        are enough: one starts as the program is written, the other as the winner.
        """
        return self.rounds >= _first_look(is_apart=self.is_apart)

    @property
    def lack(self) -> str:
        """Why there is no claim yet, for the user; empty if there were enough rounds for one."""
        if self.says_enough:
            return ""
        few = FEW_PAIRS.format(_first_look(is_apart=True), self.rounds)
        return few if self.is_apart else ONE_PROCESS

    @property
    def is_faster(self) -> bool:
        """Whether the winner may be claimed to be faster: the whole interval lies above 1.

        A single round never suffices, however fast the winner was in it.
        """
        return self.says_enough and self.speedup.low > 1.0

    @property
    def is_decided(self) -> bool:
        """Whether further rounds would not change the claim.

        This is so when a planned look finds that the interval excludes 1, or that the gain is not
        worth a claim even at its upper end.
        """
        excludes_one = self.speedup.low > 1.0 or self.speedup.high < WORTH_CONFIRMING
        return self._is_look and excludes_one

    @property
    def is_complete(self) -> bool:
        """Whether all planned looks were taken."""
        return self.rounds >= (max(claim.APART) if self.is_apart else claim.MAX_LOOKS)

    @property
    def _is_look(self) -> bool:
        return self.rounds in claim.APART if self.is_apart else self.says_enough

    def worth(self, round_s: float) -> float:
        """Return the seconds that must be left in the budget to start another round.

        Before the first look half a round is enough; the rest comes out of the budget's overdraft.
        """
        return round_s / 2 if not self.says_enough else round_s


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
    """

    rigs: RigFactory
    space: ResolvedSpace
    base: AppliedConfig
    winner: Config
    should_stop: ShouldStop
    slopes: Slopes = UNPACED

    @property
    def is_brief(self) -> bool:
        """Whether the program ends within seconds, so that each process yields a single window."""
        return self.rigs.mode.brief

    def applied(self, side: Side) -> AppliedConfig:
        """Return what a side runs under: the baseline, or the winner's config."""
        return self.base if side is Side.BASELINE else replace(self.base, config=self.winner)

    def extra_work(self, rounds: Sequence[Round]) -> float:
        """Return the ratio of samples that a whole run processes, winner to baseline.

        It exceeds 1 only for a program that makes a fixed number of steps: there a larger batch
        means more samples, not fewer steps, so samples/s would overstate the speedup. It is 1 until
        both sides were measured.
        """
        sides = {
            side: [w.measurement for r in rounds for w in r if w.side is side] for side in Side
        }
        if not self.base.traits.bounded_by_steps or not all(sides.values()):
            return 1.0
        winner, baseline = (
            fmean(m.samples_per_step for m in sides[side]) for side in (Side.WINNER, Side.BASELINE)
        )
        return self.base.extra_work(self.winner, winner / baseline)

    @property
    def needs_own_process(self) -> bool:
        """Whether the two configs cannot take turns within one process.

        They differ in a knob that acts only at start, or the program ends too soon.
        """
        return self.is_brief or self.space.needs_restart(self.base.config, self.winner)

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
    faster = promising(session.study, baseline.space)
    result = ConfirmationResult(None, reason="" if faster else _why_nothing_was_compared(session))
    base = replace(baseline.applied, sums=gradients_sum(session.study.records))
    for candidate in faster[:CANDIDATES]:
        plan = ConfirmationPlan(
            session.rigs,
            baseline.space,
            base,
            candidate.config,
            session.until_overdrawn,
            _frozen_slopes(session.study),
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
        slopes = study.slopes = StreamModel(seen_in(study.records)).slopes
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
    is_begun = any(_winner_of(r) == plan.winner for r in study.confirmation)
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
    size = len(plan.turns(Side.BASELINE))  # recorded as a round of another kind does not compare
    rounds = [r for r in earlier if _winner_of(r) == plan.winner and _is_kind(r, size)]
    share = claim.share_left(_looks_taken([r for r in earlier if _winner_of(r) != plan.winner]))
    while True:
        confirmation = read(rounds, plan.extra_work(rounds), share, plan.slopes)
        if confirmation is not None and (
            confirmation.is_decided
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


def read(
    rounds: Sequence[Round],
    extra_work: float = 1.0,
    share: float = 1.0,
    slopes: Slopes = UNPACED,
) -> Confirmation | None:
    """Return the confirmation that recorded rounds amount to; None below two pairs of windows.

    Args:
        rounds: In the order in which they ran.
        extra_work: Ratio of samples that a whole run processes, winner to baseline.
        share: Of the error that other candidates of the search have left, 0 to 1.
        slopes: By how much the pilots explain the speed of visits.
    """
    if sum(map(len, rounds)) < MIN_WINDOWS:
        return None
    windows = [w for r in rounds for w in r]
    baseline = tuple(w.measurement for w in windows if w.side is Side.BASELINE)
    winner = tuple(w.measurement for w in windows if w.side is Side.WINNER)
    # Recorded rounds do not say their kind, but only a pair of processes has exactly two windows.
    is_apart = _is_kind(rounds[0], len(PAIRS[Side.BASELINE]))
    raw = _speedup(rounds, share, UNPACED, is_apart=is_apart).times(1 / extra_work)
    uncorrected = Confirmation(raw, baseline, winner, len(rounds), is_apart)
    if not any(slopes) or not _corrects_both_alike(windows, slopes):
        return uncorrected
    paced = _speedup(rounds, share, slopes, is_apart=is_apart).times(1 / extra_work)
    return replace(uncorrected, speedup=paced, raw=raw)


def _corrects_both_alike(windows: Sequence[WindowRecord], slopes: Slopes) -> bool:
    """Return whether the pilots took turns between fast and slow for both sides alike.

    The machine's pace does not know which config runs, so its correction is the same for both on
    average. If it is not, beyond what its scatter explains (Student's t at 5 %), then the config
    itself has slowed its pilots, or the slopes have another sign here. Then raw figures count.
    """
    corrections = []
    for pair in zip(windows[::2], windows[1::2], strict=True):
        paces = {w.side: w.measurement.pace for w in pair}
        winner, baseline = paces[Side.WINNER], paces[Side.BASELINE]
        if winner is None or baseline is None:
            return False
        apart = winner - baseline
        corrections.append(slopes[0] * apart.one_core + slopes[1] * apart.all_cores)
    reach = t_quantile(len(corrections) - 1) * stdev(corrections) / math.sqrt(len(corrections))
    return abs(fmean(corrections)) <= reach


def _is_kind(one: Round, size: int) -> bool:
    """Return whether a round is a pair of processes, if *size* is that of a pair, or is not."""
    pair = len(PAIRS[Side.BASELINE])
    return (len(one) == pair) is (size == pair)


def _first_look(*, is_apart: bool) -> int:
    return min(claim.APART) if is_apart else MIN_ROUNDS


def _looks_taken(rounds: Sequence[Round]) -> list[float]:
    """Return, for each candidate of these rounds, the share of its planned looks that it had."""
    kinds = [(_winner_of(r), _is_kind(r, len(PAIRS[Side.BASELINE]))) for r in rounds]
    taken = []
    for kind in dict.fromkeys(kinds):
        count, planned = kinds.count(kind), list(claim.APART) if kind[1] else [*CLAIM_LOOKS]
        taken.append(sum(look <= count for look in planned) / len(planned))
    return taken


def _speedup(rounds: Sequence[Round], share: float, slopes: Slopes, *, is_apart: bool) -> Interval:
    """Return the speedup without the part that full buffers may have contributed.

    Batches that were prefetched before a window make its config look faster than it is. For the
    estimate and the lower bound, the drained share is taken off the winner's rates, so that it
    cannot lead to a claim. For the upper bound it is taken off the baseline's rates instead,
    because the baseline may have profited as well.
    """

    def ratio(lowered: Side) -> Interval:
        rates = [  # windows next to each other are compared: they share the machine's pace
            [
                {w.side: _rate(w, lowered, slopes) for w in pair}
                for pair in zip(r[::2], r[1::2], strict=True)
            ]
            for r in rounds
        ]
        if is_apart:
            winner, baseline = (
                [pair[side] for (pair,) in rates] for side in (Side.WINNER, Side.BASELINE)
            )
            return claim.apart(winner, baseline, share)
        return claim.together(
            [[pair[Side.WINNER] / pair[Side.BASELINE] for pair in pairs] for pairs in rates],
            share,
        )

    least, most = ratio(Side.WINNER), ratio(Side.BASELINE)
    return replace(least, high=max(least.high, most.high))


def _rate(window: WindowRecord, lowered: Side, slopes: Slopes) -> float:
    """Return the samples per second of a window, at a pace of the machine that is the same for all.

    Without slopes it is the rate as measured.
    """
    measured = window.measurement
    drained_share = measured.drained_share if window.side is lowered else 0.0
    rate = measured.throughput.estimate * (1 - min(drained_share, MAX_DRAINED))
    if measured.pace is None or not any(slopes):
        return rate
    one_core, all_cores = slopes
    return rate / math.exp(one_core * measured.pace.one_core + all_cores * measured.pace.all_cores)


def looks_faster(record: TrialRecord) -> bool:
    """Return whether a record's config is worth a confirmation.

    Either the whole live interval lies above 1, or the estimate is at least ``WORTH_CONFIRMING``.
    """
    found = record.speedup
    return found is not None and (found.low > 1.0 or found.estimate >= WORTH_CONFIRMING)


def promising(study: Study, space: ResolvedSpace) -> list[TrialRecord]:
    """Return the records that look faster than the baseline, best first.

    Configs that contain the changes blamed by a rehearsal are left out: they fail outside of the
    training loop, in the evaluation or a checkpoint for example.
    """
    guilty = [record.guilty for record in study.rehearsals if record.is_blamed]
    able = [
        record
        for record in study.records
        if not any(changes.items() <= record.config.items() for changes in guilty)
    ]
    return [record for record in ranked(able, space) if looks_faster(record)]


def _round(plan: ConfirmationPlan, first: Side) -> Round | Failure:
    """Run one round; start it again if the program turned out to need another run mode.

    The windows of a round must come from one mode, or they would not compare.
    """
    for _ in range(MAX_MODES):
        mode = plan.rigs.mode
        outcome = _round_in_mode(plan, first)
        if plan.rigs.mode == mode:
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
                plan.rigs.learn(result, as_written=side is Side.BASELINE)
                return Failure(side, result)
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def measure(self, side: Side) -> Measurement | Ending:
        """Measure a side; first start and warm up a fresh process if no suitable one is open."""
        plan, applied = self._plan, self._plan.applied(side)
        needs_own_process = plan.space.needs_restart(self._started_as, applied.config)
        if plan.is_brief or needs_own_process:
            self._close()
        if self._rig is None:
            self._rig = plan.rigs.new()
            self._started_as = applied.config
            if ending := self._begin(self._rig, applied):
                self._close()
                return ending
        window = BRIEF if plan.is_brief else WINDOW_APART if plan.needs_own_process else WINDOW
        result = self._rig.measure(applied, window, plan.should_stop, START_SILENCE_S)
        if isinstance(result, Ending):
            self._close()
        return result

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


def _winner_of(windows: Sequence[WindowRecord]) -> Config:
    return next(w.config for w in windows if w.side is Side.WINNER)
