"""Tell which passes over loaders train, and where another epoch begins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

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
        # read since the last step, and not over
        self._fed: WeakKeyDictionary[Feed, Pass] = WeakKeyDictionary()
        self._lead_facts: LoaderFacts | None = None
        self._trained: set[LoaderFacts] = set()
        self._trained_in_epoch: set[LoaderFacts] = set()

    @property
    def trained(self) -> frozenset[LoaderFacts]:
        """The loaders that have trained so far."""
        return frozenset(tuple(self._trained))

    def begins_epoch(self, feed: Feed) -> bool:
        """Return whether a pass that is about to begin is that of another epoch.

        It is not if another loader was read since the last step: then this one is read together
        with it, and starts over in the middle of its pass, or just after its beginning.
        """
        facts = self._facts(feed)
        if not feed.wants_gradients or facts not in self._trained_in_epoch:
            return False
        return all(self._facts(other) == facts for other, _ in self._feeding())

    def epoch_begins(self) -> None:
        """Forget what trained in the epoch before."""
        self._trained_in_epoch.clear()

    def took(self, feed: Feed, seen: Pass) -> None:
        """Note that a pass hands out a batch with gradients enabled."""
        with self._lock:
            self._fed[feed] = seen
        self.lead, self._lead_facts = seen, self._facts(feed)

    def ended(self, feed: Feed) -> None:
        """Note that a pass is over, so that no later step belongs to it."""
        with self._lock:
            self._fed.pop(feed, None)

    def begun_before_step(self) -> tuple[Feed, ...]:
        """Return the passes with which another epoch has begun, if the next step tells that.

        Only its first step tells a loader that was rebuilt from that of an evaluation.
        """
        feeding = self._feeding()
        if any(seen.trains for _, seen in feeding):
            return ()
        alike = {_without_size(facts) for facts in tuple(self._trained_in_epoch)}
        for feed, _ in feeding:
            facts = self._facts(feed)
            has_grown = self._is_rebuilt(feed) and _without_size(facts) in alike
            if facts in self._trained_in_epoch or has_grown:
                return tuple(feed for feed, _ in feeding)
        return ()

    def stepped(self) -> tuple[Feed, ...]:
        """Count a step, and return the passes to which it belongs.

        A step that is made after a pass belongs to none, as that of a program which gathers the
        gradients of a whole epoch. It still shows that the loader trains.
        """
        feeding = self._feeding()
        with self._lock:
            self._fed.clear()
        passes, trained = [seen for _, seen in feeding], {self._facts(feed) for feed, _ in feeding}
        if not passes and self.lead is not None and self._lead_facts is not None:
            passes, trained = [self.lead], {self._lead_facts}
        self.epochs += bool(passes) and not any(seen.trains for seen in passes)
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
