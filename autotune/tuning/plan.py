"""Plan: how the seconds that are left after the baseline are divided among the phases of a search.

Time is reserved for the confirmation first, then for the rehearsal of its candidate, and trials get
the rest. All of it follows from measured seconds: those of a start and of a step. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from autotune.measurement.claim import LEAST_PAIRS, LEAST_PROCESSES
from autotune.tuning.budget import ENDING_S
from autotune.tuning.live_rig import ALONE_S, METERED_S, WARM_UP_S


class Cost(NamedTuple):
    """What some work takes, without starts: seconds, or steps where these take longer."""

    seconds: float
    steps: float

    def of(self, step_s: float) -> float:
        """Return the seconds of the work of a program whose steps take so long."""
        return max(self.seconds, self.steps * step_s)


PROCESS = Cost(3.5, 4)  # a process of the claim until its turns begin: two stays
TURNS = Cost(6.0, 16)  # of two configs, in such a process
METERED_TURNS = 8  # the same where energy or memory is read, which takes METERED_S each
OWN_TURNS_S = 4.0  # in the search's own process, once the candidate is chosen
REHEARSAL = Cost(4.0, 16)  # two short epochs and what lies between them
TRIAL = Cost(1.0, 3)  # entering, and a round
# Of a claim, the best number first
PAIRS, PROCESSES = (5, LEAST_PAIRS), (4, 3, LEAST_PROCESSES)
MOST_FOR_CLAIM = 0.5  # share of the budget
MOST_FOR_REHEARSAL = 1 / 3  # share of the time for trials
# The same of comparing before the search, as the best config can be compared after it. With a
# third, 2 of 5 searches of 90 s claimed a gain of 1.3x, and 10 of 10 where nothing was compared
MOST_FOR_CANARY = 1 / 4
TRIALS_WORTH_S = 6.0  # a search that could not measure for this long would not be a search
MOST_REHEARSAL_S = 60.0  # or twice the least it takes, for a program that starts slowly
COMPILING_S = 30.0  # compiling a small model took 15-40 s on 2 cores; its rounds come after
CHECK_EPOCHS = 3
CHECK_BATCHES = (5, 12)  # of one of the self-check's short epochs, at least and at most
CHECK_S = 4.0  # that the steps of one run of it may take, beyond the least ones


def check_batches(step_s: float) -> int:
    """Return the batches of one of the self-check's short epochs, by the seconds of a step."""
    least, most = CHECK_BATCHES
    return min(most, max(least, int(CHECK_S / step_s / CHECK_EPOCHS)))


@dataclass(frozen=True)
class Plan:
    """The division of a budget. Before the baseline nothing is known, and nothing is reserved.

    Attributes:
        divided_s: What is left of it, to be divided.
        startup_s: From the start of a process to the end of the steps that are observed.
        step_s: None before the baseline.
        needs_pairs: Whether the user wants values that need a fresh process, whose claim takes
            pairs of processes.
        is_metered: Whether configs are compared by meters, which are read over longer turns.
        is_cleared: Whether the program as written was compared before the search, so the best
            config takes one run less.
        apart_s: What the race leaves to values that were asked for and need fresh processes.
    """

    total_s: float = 0.0
    divided_s: float = 0.0
    startup_s: float = 0.0
    step_s: float | None = None
    needs_pairs: bool = False
    is_metered: bool = False
    is_cleared: bool = False
    apart_s: float = 0.0

    @property
    def process_s(self) -> float:
        """Seconds that a process of the claim takes until turns begin."""
        return self.startup_s + PROCESS.of(self.step_s or 0.0)

    @property
    def turns_s(self) -> float:
        """Least seconds of turns in a process of the claim."""
        metered_s = METERED_TURNS * METERED_S if self.is_metered else 0.0
        return max(TURNS.of(self.step_s or 0.0), metered_s)

    def claim_s(self, *, is_apart: bool, processes: int | None = None) -> float:
        """Return the seconds of a claim of some processes, or pairs; by default the fewest."""
        if not is_apart:
            return (processes or min(PROCESSES)) * (self.process_s + self.turns_s)
        alone = Cost(WARM_UP_S + ALONE_S, TURNS.steps / 2)
        each_s = 2 * (self.startup_s + alone.of(self.step_s or 0.0))
        return (processes or min(PAIRS)) * each_s

    @property
    def full_claim_s(self) -> float:
        """Seconds of the longest claim, by pairs of processes where these are needed."""
        most = max(PAIRS if self.needs_pairs else PROCESSES)
        return self.claim_s(is_apart=self.needs_pairs, processes=most)

    @property
    def reserve_s(self) -> float:
        """Seconds reserved for the confirmation; 0 if none fits besides the least time for trials.

        A longer confirmation gives a narrower interval, so it is preferred as long as it takes no
        more than half of the budget.
        """
        if self.step_s is None:
            return 0.0
        counts = PAIRS if self.needs_pairs else PROCESSES
        wanted = [self.claim_s(is_apart=self.needs_pairs, processes=count) for count in counts]
        affordable = [s for s in wanted if s <= MOST_FOR_CLAIM * self.total_s] or [min(wanted)]
        worth_s = OWN_TURNS_S + max(TRIALS_WORTH_S, self.least_trial_s)
        return next((s for s in affordable if s + worth_s <= self.divided_s), 0.0)

    @property
    def least_rehearsal_s(self) -> float:
        """Least seconds for running one config through two short epochs, start included."""
        return self.startup_s + REHEARSAL.of(self.step_s or 0.0)

    @property
    def check_s(self) -> float:
        """Least seconds of the self-check after a rehearsal: one or two more short runs."""
        step_s = self.step_s or 1.0
        runs = 1 if self.is_cleared else 2
        return runs * (self.startup_s + CHECK_EPOCHS * check_batches(step_s) * step_s)

    @property
    def rehearsal_s(self) -> float:
        """Seconds reserved for rehearsing the best config and, if these fit, comparing it."""
        if not self.reserve_s:
            return 0.0
        wanted = (self.compared_s, self.compared_s - self.check_s)
        return next((s for s in wanted if s <= self.most_for_rehearsal_s), 0.0)

    @property
    def compared_s(self) -> float:
        """Least seconds for rehearsing a config and comparing it with the program as written."""
        return ENDING_S + self.least_rehearsal_s + self.check_s  # another program ends before it

    @property
    def most_for_rehearsal_s(self) -> float:
        """Most seconds that rehearsals and comparisons may take from the trials."""
        return MOST_FOR_REHEARSAL * (self.divided_s - self.reserve_s)

    @property
    def has_time_for_canary(self) -> bool:
        """Whether the exact settings can be compared before the search.

        What that takes is saved after the search if the best config changes nothing else.
        """
        spare_s = self.divided_s - self.reserve_s
        return self.reserve_s > 0 and self.compared_s <= MOST_FOR_CANARY * spare_s

    @property
    def after_canary(self) -> Plan:
        """The plan of what the comparison before the search leaves; itself where none is made."""
        if self.is_cleared or not self.has_time_for_canary:
            return self
        return replace(self, divided_s=self.divided_s - self.compared_s, is_cleared=True)

    @property
    def kept_s(self) -> float:
        """Seconds that trials must leave for rehearsal, confirmation and own turns."""
        kept_s = self.reserve_s + self.rehearsal_s
        return kept_s + OWN_TURNS_S if kept_s else 0.0

    @property
    def least_trial_s(self) -> float:
        """Least seconds of a trial that can show anything."""
        return TRIAL.of(self.step_s or 0.0)
