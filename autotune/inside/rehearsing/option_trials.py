"""Option trials: options of an evaluation loader in a program whose epochs are timed.

``EvaluationTurns`` says what each pass gets; this picks the loader and the moment to begin.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import ref

from autotune.inside.data.item_watch import look_at, settled
from autotune.inside.epochs import uncounted
from autotune.inside.rehearsing.evaluation_turns import (
    EvaluationTurns,
    is_last_chance,
    passes_for,
    turn_s,
)
from autotune.inside.seams.loader import LoaderSeam
from autotune.measurement.epochs.epoch import EpochSeen
from autotune.program.config import KnobValue
from autotune.program.evaluation import EvaluationPlan, EvaluationTrials
from autotune.program.profile import LoaderFacts

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from autotune.inside.data.feed import Feed

# Epochs seen as a whole, and seconds since the first step: the first epoch is slower, and where
# epochs are short, so are those of the first seconds.
WHOLE_ENOUGH, SETTLED_S = 4, 3.0
WORTH_TRYING = 0.1  # share of an epoch from which options are tried


@dataclass(frozen=True)
class _OtherLoader:
    """A loader that trains nothing.

    Attributes:
        pass_s: Seconds of its last whole pass.
        facts: What other runs know it by.
        loader: The one that this pass was over; a program may build it anew for each.
    """

    pass_s: float
    facts: LoaderFacts
    loader: ref[DataLoader[Any]]


class OptionTrials:
    """Tries options of the slowest evaluation loader, once enough epochs were timed.

    ``EpochTimer`` calls it in the program's main thread.

    Args:
        plan: Which options, and until when.
        loaders: The seam of all loaders, which gives a loader its options.
        started: When the process began to run the program, by ``perf_counter``.

    Attributes:
        timed: The epochs before the first turn; None as long as more of them are timed.
        are_within: Whether the loader is read in the middle of training passes.
    """

    def __init__(self, plan: EvaluationPlan, loaders: LoaderSeam, started: float) -> None:
        self.timed: tuple[EpochSeen, ...] | None = None
        self.are_within = False
        self._plan, self._loaders, self._started = plan, loaders, started
        self._others: dict[LoaderFacts, _OtherLoader] = {}
        self._looked_at, self._share = 0, 0.0  # epochs, and the most that evaluation took of one
        self._turns: EvaluationTurns | None = None
        self._tried: LoaderFacts | None = None  # whose options take turns

    @property
    def is_trying(self) -> bool:
        """Whether passes take turns now."""
        return self._turns is not None and not self._turns.is_over

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to time or to try."""
        is_late = perf_counter() - self._started >= self._plan.enough_s
        return self.timed is not None and (not self.is_trying or is_late)

    @property
    def found(self) -> EvaluationTrials | None:
        """What was tried; None if nothing was to be tried."""
        return None if self._turns is None else self._turns.found

    def tries(self, facts: LoaderFacts) -> bool:
        """Return whether this is the loader whose options are tried."""
        return facts == self._tried

    def batch(self, facts: LoaderFacts, batch: Any) -> None:
        """Take in a batch of a loader."""
        if self._turns is not None and self.tries(facts):
            self._turns.batch(batch)

    def pass_ended(self, feed: Feed, facts: LoaderFacts, seconds: float) -> None:
        """Note how long a whole pass took over a loader that trains nothing."""
        if self._turns is None:
            # The first of several that the program builds is the one to recognise
            first = self._others.get(facts)
            known = self._loaders.facts(feed.loader) if first is None else first.facts
            self._others[facts] = _OtherLoader(seconds, known, ref(feed.loader))
        elif self.tries(facts):
            self._turns.pass_ended(seconds)

    def consider(
        self,
        epochs: Sequence[EpochSeen],
        trained: Collection[LoaderFacts],
        first_step_at: float,
        *,
        is_long_enough: bool,
    ) -> None:
        """Begin to try options, once enough epochs were timed.

        Where evaluation is worth it, a few whole epochs are enough, so that time is left for turns,
        or less if another epoch would take that time.

        Args:
            epochs: The epochs that have ended, in order; at least one.
            trained: Loaders that were read for steps.
            first_step_at: When the first step ended, by ``perf_counter``.
            is_long_enough: Whether the program has had its time, however few epochs that were.
        """
        if self.timed is not None:
            return
        timed, slowest = tuple(epochs), self._slowest(epochs, trained)
        if slowest is None:
            self.timed = timed if is_long_enough else None
            return
        facts, one_s = slowest.facts, turn_s(timed[-1], slowest.pass_s)
        spare_s = self._plan.enough_s - (perf_counter() - self._started)
        tries, were_chosen = self._plan.tries(facts), self._plan.options is not None
        needed_s = one_s * passes_for(facts, tries[:1], were_chosen=were_chosen)
        is_settled = perf_counter() - first_step_at >= SETTLED_S
        has_whole = is_settled and sum(epoch.is_whole for epoch in timed) >= WHOLE_ENOUGH
        is_enough = has_whole or is_long_enough
        if not is_enough and not is_last_chance(needed_s, spare_s, timed[-1].seconds):
            return
        turns = EvaluationTurns(
            facts,
            tries,
            most=int(spare_s / one_s),
            against=self._against_workers(slowest),
            picture=_picture_of(slowest.loader),
            were_chosen=were_chosen,
        )
        if turns.is_over and not is_enough:  # nothing can be tried, so more epochs are timed
            return
        self.timed, self._turns, self._tried = timed, turns, uncounted(facts)
        self.are_within = any(p.is_within for p in timed[-1].passes)
        self._loaders.evaluation.choose_by(self._options_of)

    def _slowest(
        self, epochs: Sequence[EpochSeen], trained: Collection[LoaderFacts]
    ) -> _OtherLoader | None:
        """Return the slowest loader that trains nothing; None if options are not worth trying."""
        for epoch in epochs[self._looked_at :]:  # each once: short epochs are many
            self._share = max(self._share, epoch.evaluation_share(self._plan.loop_s))
        self._looked_at = len(epochs)
        if self._share < WORTH_TRYING:
            return None
        others = (o for known, o in self._others.items() if known not in trained and o.pass_s > 0)
        return max(others, key=lambda other: other.pass_s, default=None)

    def _against_workers(self, other: _OtherLoader) -> str:
        """Return why a loader's items must not be loaded elsewhere; empty if they may."""
        if (own := other.loader()) is None:
            return "the program builds it anew for each pass"
        # Workers read copies of the dataset already
        is_copied = bool(other.facts.num_workers)
        return "" if is_copied else self._loaders.dataset_facts(own).against_workers

    def _options_of(self, loader: DataLoader[Any]) -> Mapping[str, KnobValue]:
        """Return the options of a pass that begins; empty for any other loader."""
        turns = self._turns
        assert turns is not None, "options are chosen in turns"
        if uncounted(self._loaders.facts(loader)) != self._tried:
            return {}
        turns.begins()
        return turns.options


def _picture_of(loader: Callable[[], DataLoader[Any] | None]) -> Callable[[], object]:
    """Return a function that tells what a loader's items depend on."""

    def picture() -> object:
        own = loader()
        return None if own is None else settled(look_at(own))

    return picture
