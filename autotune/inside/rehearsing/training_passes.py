"""Tell which passes over loaders train, and where another epoch begins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from autotune.program.profile import LoaderFacts

if TYPE_CHECKING:
    from autotune.inside.data.feed import Feed
    from autotune.inside.epochs import Pass


class TrainingPasses:
    """Follows the passes whose batches the program takes with gradients enabled.

    Such a pass may still be an evaluation. It trains if a step is made while it goes on. Loaders
    that are read together, as by ``zip()``, train together.

    An epoch ends when a loader that has trained in it begins another pass. So it may consist of
    passes over several loaders. A loader that is rebuilt over other data, as with pseudo-labels, or
    with another batch size, counts as the same loader from its first step on.

    ``ShortEpochs`` calls it in the threads that ask for batches and make steps.

    Args:
        facts: Returns what identifies a feed's loader.
        is_rebuilt: Whether a feed's loader was built after training had begun.

    Attributes:
        lead: The pass that handed out the last batch with gradients; None before the first.
        epochs: Number of times that all passes that were going on made their first step.
    """

    def __init__(
        self, facts: Callable[[Feed], LoaderFacts], is_rebuilt: Callable[[Feed], bool]
    ) -> None:
        self.lead: Pass | None = None
        self.epochs = 0
        self._facts, self._is_rebuilt = facts, is_rebuilt
        self._lock = threading.Lock()
        # read since the last step, and not over; and those read before it
        self._fed: WeakKeyDictionary[Feed, Pass] = WeakKeyDictionary()
        self._last: WeakSet[Feed] = WeakSet()
        self._lead_facts: LoaderFacts | None = None
        self._trained: set[LoaderFacts] = set()
        self._trained_in_epoch: set[LoaderFacts] = set()

    @property
    def trained(self) -> frozenset[LoaderFacts]:
        """The loaders that have trained so far."""
        return frozenset(tuple(self._trained))

    @property
    def lead_trains(self) -> bool:
        """Whether the loader that handed out the last batch with gradients has trained."""
        return self._lead_facts in self._trained

    def begins_epoch(self, feed: Feed) -> bool:
        """Return whether a pass that is about to begin is that of another epoch.

        It is not if it starts over in the middle of another pass, with which it is read together.
        """
        facts = self._facts(feed)
        if not feed.wants_gradients or facts not in self._trained_in_epoch:
            return False
        feeding = [other for other, _ in self._feeding() if self._facts(other) != facts]
        return not any(other in self._last for other in feeding)

    def epoch_begins(self, begun_by: Sequence[Feed]) -> None:
        """Forget what trained in the epoch before, and what was evaluated since.

        Args:
            begun_by: The passes of the new epoch that have handed out batches.
        """
        self._trained_in_epoch.clear()
        with self._lock:
            for feed in [feed for feed in self._fed if feed not in begun_by]:
                del self._fed[feed]

    def took(self, feed: Feed, seen: Pass) -> None:
        """Note that a pass hands out a batch with gradients enabled."""
        with self._lock:
            self._fed[feed] = seen
        self.lead, self._lead_facts = seen, self._facts(feed)

    def ended(self, feed: Feed) -> None:
        """Note that a pass is over, so that no later step belongs to it."""
        with self._lock:
            self._fed.pop(feed, None)

    def begun(self) -> tuple[Feed, ...]:
        """Return the passes that belong to another epoch than the last step.

        They are read since, over loaders that trained in that epoch, or were rebuilt. Only a step
        tells a loader that was rebuilt from that of an evaluation.
        """
        feeding = [feed for feed, _ in self._feeding()]
        if any(feed in self._last for feed in feeding):
            return ()
        alike = {_without_size(facts) for facts in tuple(self._trained_in_epoch)}
        return tuple(feed for feed in feeding if self._trains_again(feed, alike))

    def _trains_again(self, feed: Feed, alike: set[LoaderFacts]) -> bool:
        facts = self._facts(feed)
        is_other = self._is_rebuilt(feed) and _without_size(facts) in alike
        return facts in self._trained_in_epoch or is_other

    def stepped(self) -> tuple[Feed, ...]:
        """Count a step, and return the passes to which it belongs.

        A step that is made after a pass belongs to none, as that of a program which gathers the
        gradients of a whole epoch. It still shows that the loader trains.
        """
        feeding = self._feeding()
        passes, trained = [seen for _, seen in feeding], {self._facts(feed) for feed, _ in feeding}
        goes_on = any(feed in self._last for feed, _ in feeding)
        if not passes and self.lead is not None and self._lead_facts is not None:
            passes, trained, goes_on = [self.lead], {self._lead_facts}, self.lead.trains
        self.epochs += bool(passes) and not goes_on
        if feeding:
            with self._lock:
                self._fed.clear()
                self._last = WeakSet(feed for feed, _ in feeding)
        for seen in passes:
            seen.trains = True
        self._trained |= trained
        self._trained_in_epoch |= trained
        return tuple(feed for feed, _ in feeding)

    def _feeding(self) -> list[tuple[Feed, Pass]]:
        with self._lock:
            return [*self._fed.items()]


def _without_size(facts: LoaderFacts) -> LoaderFacts:
    return replace(facts, dataset_len=None, batch_size=None)
