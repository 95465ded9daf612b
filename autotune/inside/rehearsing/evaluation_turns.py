"""Try options of an evaluation loader in a program that runs, pass by pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.inside.data.batch_digest import (
    NotComparableError,
    batch_digest,
    seed_all,
    state_digest,
)
from autotune.measurement.epochs.epoch import EpochSeen
from autotune.program.evaluation import EvaluationTrials, Options, PassTrial
from autotune.program.profile import LoaderFacts

OWN: Options = {}
LEAST_PASSES = 2  # after the choice: one pair
ENOUGH_PASSES = 4  # the same if there is time
MOST_PASSES = 12  # the same where another process chose the options
STARTS_ONCE = "persistent_workers"
WORTH_COMPARING = 0.95  # of the seconds of the program's own options


@dataclass
class _Tried:
    """What was seen of one set of options."""

    options: Options
    seconds: list[float] = field(default_factory=list)


def passes_for(facts: LoaderFacts, tries: Sequence[Options], *, were_chosen: bool) -> int:
    """Return the least passes in which options can be compared with a loader's own.

    Args:
        facts: The loader as the program built it.
        tries: The options.
        were_chosen: Whether another process has chosen them.
    """
    first = (_first_passes(facts, options, were_chosen=were_chosen) for options in (OWN, *tries))
    return sum(first) + LEAST_PASSES


def _first_passes(facts: LoaderFacts, options: Options, *, were_chosen: bool) -> int:
    """Return how many passes some options get before the choice."""
    starts_once = facts.persistent_workers or STARTS_ONCE in options
    return 2 if not were_chosen and (not options or starts_once) else 1


def turn_s(epoch: EpochSeen, pass_s: float) -> float:
    """Return the seconds of a turn: of a whole pass, and of what comes before and after it.

    Args:
        epoch: The last one before the turns.
        pass_s: Seconds of a whole pass over the loader.
    """
    # A training pass is cut after three batches, unless the evaluation comes in its middle
    is_within = any(p.is_within for p in epoch.passes)
    share = 1.0 if is_within else min(1.0, 3 / epoch.batches)
    return pass_s + epoch.start_s + share * epoch.steps_s + epoch.saving_s + epoch.rest_s


def is_last_chance(needed_s: float, spare_s: float, epoch_s: float) -> bool:
    """Return whether there is time to try options now, and none after another epoch.

    Args:
        needed_s: Seconds of the least turns.
        spare_s: Seconds that are left.
        epoch_s: Seconds of an epoch.
    """
    return needed_s <= spare_s < needed_s + epoch_s


class EvaluationTurns:
    """Takes turns between the program's own options and others, in whole passes.

    ``OptionTrials`` calls it in the program's main thread. First each set of options gets a pass.
    The program's own get two, which must be the same, and so do workers that persist, which start
    in the first. These passes begin with the same random state. They must hand out the batches of
    the program's own options, bit for bit, leave the random state that those leave, and change
    nothing that the dataset holds. Then the fastest one and the program's own take turns: those
    passes count.

    Args:
        facts: By which the loader is recognised, also where it is built anew for each pass.
        tries: The options to try.
        most: Number of passes that there is time for.
        against: Why its items must not be loaded elsewhere, as a clause; empty if they may.
        picture: Returns something that compares equal as long as the dataset holds the same.
        were_chosen: Whether another process has chosen these options: one pass of each is enough,
            before those that count.

    Attributes:
        facts: The same.
        options: The options of the next pass.
    """

    def __init__(
        self,
        facts: LoaderFacts,
        tries: Sequence[Options],
        most: int,
        *,
        against: str = "",
        picture: Callable[[], object] = lambda: None,
        were_chosen: bool = False,
    ) -> None:
        self.facts = facts
        self.options = OWN
        self._were_chosen = were_chosen
        fitting = [
            count
            for count in range(len(tries), 0, -1)
            if passes_for(facts, tries[:count], were_chosen=were_chosen) <= most
        ]
        self._left = [_Tried(OWN), *map(_Tried, tries[: next(iter(fitting), 0)])]
        self._screened: list[_Tried] = []
        self._chosen = OWN
        self._turns: list[Options] = []
        self._passes: list[PassTrial] = []
        self._picture = picture
        self._pictured: object = None
        self._most = MOST_PASSES if were_chosen else ENOUGH_PASSES
        self._digest = 0
        self._own_digest: tuple[int, int] | None = None
        self._refusal = "" if fitting else "there was no time to try others"
        if facts.iterable:
            self._refusal = "its dataset is iterable, and each worker may repeat all its samples"
        elif facts.twins > 1:
            self._refusal = "the program has several loaders that look like it"
        elif against:
            self._refusal = against

    def begins(self) -> None:
        """Note that a pass begins: while options are compared, all begin in the same state."""
        if self._left and not self.is_over:
            self._pictured = self._picture()
            seed_all()

    def batch(self, batch: Any) -> None:
        """Take in a batch, while batches are still compared."""
        if not self._left or self.is_over:
            return
        try:
            self._digest = batch_digest(batch, self._digest)
        except NotComparableError:
            self._refuse("its batches cannot be compared")

    def pass_ended(self, seconds: float) -> None:
        """Note how long a whole pass took, and choose the options of the next one."""
        if self.is_over:
            return
        self._passes.append(PassTrial(self.options, seconds, is_chosen=not self._left))
        if self._left:
            self._screen(seconds)
        elif len(self._turns) > 1:
            del self._turns[0]
        else:
            self._turns = [OWN, self._chosen, self._chosen, OWN]  # what drifts meets both alike
        if self.is_over:
            self.options = OWN
        else:
            self.options = self._left[0].options if self._left else self._turns[0]

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to compare."""
        return bool(self._refusal) or sum(p.is_chosen for p in self._passes) >= self._most

    @property
    def found(self) -> EvaluationTrials:
        """What was tried so far."""
        return EvaluationTrials(self.facts, tuple(self._passes), self._refusal)

    def _refuse(self, why: str) -> None:
        self._refusal, self.options = why, OWN

    def _screen(self, seconds: float) -> None:
        tried = self._left[0]
        tried.seconds.append(seconds)
        digest, self._digest = (self._digest, state_digest()), 0
        if self._own_digest is None:
            self._own_digest = digest
        is_same = digest == self._own_digest and self._picture() == self._pictured
        if not is_same and not tried.options:
            self._refuse("its passes differ, or change what it loads from")
        elif not is_same:
            del self._left[0]
        elif len(tried.seconds) >= _first_passes(
            self.facts, tried.options, were_chosen=self._were_chosen
        ):
            self._screened.append(self._left.pop(0))
        if not self._left and not self._refusal:
            self._choose()

    def _choose(self) -> None:
        own, *others = self._screened
        best = min(others, key=lambda tried: tried.seconds[-1], default=None)
        if best is None:
            self._refuse("other options change its batches, or the random numbers after it")
        elif not self._were_chosen and best.seconds[-1] > WORTH_COMPARING * own.seconds[-1]:
            self._refuse("no other option was faster")
        else:
            self._chosen = best.options
            self._turns = [OWN, self._chosen, self._chosen, OWN]
