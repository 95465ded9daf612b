"""What the rounds of a confirmation amount to: the speedup, and whether it may be claimed.

A round is one fresh process in which the two configs take turns, or a pair of processes where they
cannot share one. ``confirm`` runs the rounds; this only reads them, so a resumed search reads those
of earlier sessions alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev

from autotune.measurement.claim import APART, MAX_LOOKS, Claim, apart, together
from autotune.measurement.goal import NO_COUNTER, THROUGHPUT, Goal, Objective
from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement
from autotune.measurement.stats import MAX_DRAINED, spread, t_quantile
from autotune.program.config import Config
from autotune.results.record import Round, Side, WindowRecord
from autotune.tuning.confirming.carry_over import doubted, most_changed, without_carry_over

TURNS = {
    Side.BASELINE: (Side.BASELINE, Side.WINNER, Side.WINNER, Side.BASELINE),
    Side.WINNER: (Side.WINNER, Side.BASELINE, Side.BASELINE, Side.WINNER),
}
MIN_WINDOWS = 4  # two pairs: a single pair has no spread
MIN_ROUNDS = 2  # a claim from one process would not know how much other processes differ
ONE_PROCESS = "a claim needs two fresh processes, and only one was measured"
FEW_PAIRS = "a claim needs {} fresh processes of each config, and only {} were measured"
# For two configs that cannot share a process: a round is one process of each side. Their rates
# contain the whole difference between processes, so more rounds and longer windows are needed.
PAIRS = {
    Side.BASELINE: (Side.BASELINE, Side.WINNER),
    Side.WINNER: (Side.WINNER, Side.BASELINE),
}
Slopes = tuple[float, float]  # of one core and of all cores, as in the stream model
UNPACED: Slopes = (0.0, 0.0)
UNLIKELY = 0.05  # chance of a claim at the last look, below which further rounds are in vain
# A live speedup worth confirming however wide its interval is: only the confirmation decides.
WORTH_CONFIRMING = 1.02


@dataclass(frozen=True)
class Confirmation:
    """The comparison of one candidate with the baseline, from fresh processes.

    Attributes:
        speedup: Of the winner over the baseline, with its 95 % interval.
        baseline: All windows of the baseline, in the order in which they ran.
        winner: All windows of the candidate.
        rates: Samples per second of both sides, each as in a process that runs it alone:
            median and range of the windows.
        rounds: How many rounds were run.
        is_apart: Whether a round is one process of each side, because they cannot share one.
        raw: The speedup without the correction by the pilots; None if nothing was corrected.
        corrections: The least and the largest factor on the speed of a window that was taken out,
            relative to their median; None if nothing was corrected.
        chance: How likely the last planned look would find the winner faster, from 0 to 1.
        carried_share: By what share the sides have changed each other's speed at most, because what
            one leaves in a process stays there for the other. That was taken out of the speedup.
    """

    speedup: Interval
    baseline: tuple[Measurement, ...]
    winner: tuple[Measurement, ...]
    rates: tuple[Interval, Interval]
    rounds: int
    is_apart: bool = False
    raw: Interval | None = None
    corrections: tuple[float, float] | None = None
    chance: float = 1.0
    carried_share: float = 0.0

    @property
    def says_enough(self) -> bool:
        """Whether there were enough rounds for a claim.

        That is so from the first planned look on. Where both configs share a process, two rounds
        are enough: one starts as the program is written, the other as the winner.
        """
        return self.rounds >= self._planned[0]

    @property
    def lack(self) -> str:
        """Why there is no claim yet, for the user; empty if there were enough rounds for one."""
        if self.says_enough:
            return ""
        return FEW_PAIRS.format(self._planned[0], self.rounds) if self.is_apart else ONE_PROCESS

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
        return self.rounds in self._planned and excludes_one

    @property
    def is_in_vain(self) -> bool:
        """Whether a planned look finds that even the last one is unlikely to make a claim."""
        return self.rounds in self._planned and self.chance < UNLIKELY

    @property
    def is_complete(self) -> bool:
        """Whether all planned looks were taken."""
        return self.rounds >= self._planned[-1]

    @property
    def _planned(self) -> tuple[int, ...]:
        return planned_looks(is_apart=self.is_apart)

    def worth(self, round_s: float) -> float:
        """Return the seconds that must be left in the budget to start another round.

        Before the first look half a round is enough; the rest comes out of the budget's overdraft.
        """
        return round_s / 2 if not self.says_enough else round_s


def read(
    rounds: Sequence[Round],
    extra_work: float = 1.0,
    share: float = 1.0,
    slopes: Slopes = UNPACED,
    goal: Goal = THROUGHPUT,
) -> Confirmation | None:
    """Return the confirmation that recorded rounds amount to; None below two pairs of windows.

    Args:
        rounds: In the order in which they ran.
        extra_work: Ratio of samples that a whole run processes, winner to baseline.
        share: Of the error that other candidates of the search have left, 0 to 1.
        slopes: By how much the pilots explain the speed of visits.
        goal: What is compared.
    """
    if goal.objective is Objective.MEMORY:
        slopes = UNPACED  # the machine's pace changes no memory
    if sum(map(len, rounds)) < MIN_WINDOWS:
        return None
    windows = [w for r in rounds for w in r]
    baseline = tuple(w.measurement for w in windows if w.side is Side.BASELINE)
    winner = tuple(w.measurement for w in windows if w.side is Side.WINNER)
    is_apart = is_pair(rounds[0])
    take_turns = not is_apart and goal.objective is not Objective.MEMORY
    alone = without_carry_over(rounds) if take_turns else rounds

    def claimed(slopes: Slopes) -> Claim:
        as_seen, found = (
            _claim(these, share, slopes, goal, extra_work, is_apart=is_apart)
            for these in (rounds, alone)
        )
        chance = min(found.chance, as_seen.chance)
        return Claim(doubted(found.speedup, as_seen.speedup), chance)

    raw = claimed(UNPACED)
    uncorrected = Confirmation(
        raw.speedup,
        baseline,
        winner,
        (_rates(alone, Side.BASELINE), _rates(alone, Side.WINNER)),
        len(rounds),
        is_apart,
        chance=raw.chance,
        carried_share=most_changed(rounds, alone),
    )
    if not any(slopes) or not _corrects_both_alike(windows, slopes):
        return uncorrected
    paces = [_pace_factor(w.measurement, slopes) for w in windows]
    middle = median(paces)
    corrected = claimed(slopes)
    return replace(
        uncorrected,
        speedup=corrected.speedup,
        chance=corrected.chance,
        raw=raw.speedup,
        corrections=(min(paces) / middle, max(paces) / middle),
    )


def _rates(rounds: Sequence[Round], side: Side) -> Interval:
    """Return the samples per second of a side: median and range of its windows."""
    return spread([w.measurement.throughput for r in rounds for w in r if w.side is side])


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


def is_pair(one: Round) -> bool:
    """Return whether a round is a pair of processes; only such a round has exactly two windows."""
    return len(one) == len(PAIRS[Side.BASELINE])


def planned_looks(*, is_apart: bool) -> tuple[int, ...]:
    """Return the numbers of rounds after which the interval may decide, in order.

    Args:
        is_apart: Whether a round is one process of each side.
    """
    return tuple(APART) if is_apart else tuple(range(MIN_ROUNDS, MAX_LOOKS + 1))


def looks_taken(rounds: Sequence[Round]) -> list[float]:
    """Return, for each candidate of these rounds, the share of its planned looks that it had."""
    counts = Counter((winner_of(r), is_pair(r)) for r in rounds)
    taken = []
    for (_, is_apart), count in counts.items():
        planned = planned_looks(is_apart=is_apart)
        taken.append(sum(look <= count for look in planned) / len(planned))
    return taken


def _claim(
    rounds: Sequence[Round],
    share: float,
    slopes: Slopes,
    goal: Goal,
    extra_work: float,
    *,
    is_apart: bool,
) -> Claim:
    """Return what is said without the part that full buffers may have contributed.

    Batches that were prefetched before a window make its config look faster than it is. For the
    estimate and the lower bound, the drained share is taken off the winner's rates, so that it
    cannot lead to a claim. For the upper bound it is taken off the baseline's rates instead,
    because the baseline may have profited as well.
    """

    def ratio(lowered: Side) -> Claim:
        rates = [  # windows next to each other are compared: they share the machine's pace
            [
                {w.side: _rate(w, lowered, slopes, goal) / work[w.side] for w in pair}
                for pair in zip(r[::2], r[1::2], strict=True)
            ]
            for r in rounds
        ]
        if is_apart:
            winner, baseline = (
                [pair[side] for (pair,) in rates] for side in (Side.WINNER, Side.BASELINE)
            )
            return apart(winner, baseline, share)
        return together(
            [[pair[Side.WINNER] / pair[Side.BASELINE] for pair in pairs] for pairs in rates],
            share,
        )

    work = {Side.BASELINE: 1.0, Side.WINNER: extra_work}
    least, most = ratio(Side.WINNER), ratio(Side.BASELINE)
    high = max(least.speedup.high, most.speedup.high)
    return replace(least, speedup=replace(least.speedup, high=high))


def _rate(window: WindowRecord, lowered: Side, slopes: Slopes, goal: Goal) -> float:
    """Return what is compared of a window, at a pace of the machine that is the same for all.

    Without slopes it is as measured.
    """
    measured = window.measurement
    drained_share = measured.drained_share if window.side is lowered else 0.0
    rate = measured.throughput.estimate * (1 - min(drained_share, MAX_DRAINED))
    factor = goal.factor(measured)
    assert factor is not None, NO_COUNTER[goal.objective]
    return factor * rate / _pace_factor(measured, slopes)


def _pace_factor(measured: Measurement, slopes: Slopes) -> float:
    """Return the factor on the speed that the machine's pace explains; only ratios have a meaning.

    1.0 without pilots or slopes.
    """
    if measured.pace is None or not any(slopes):
        return 1.0
    one_core, all_cores = slopes
    return math.exp(one_core * measured.pace.one_core + all_cores * measured.pace.all_cores)


def winner_of(windows: Round) -> Config:
    """Return the config that a round compared with the baseline."""
    return next(w.config for w in windows if w.side is Side.WINNER)
