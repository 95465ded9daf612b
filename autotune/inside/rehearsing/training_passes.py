"""Tell which passes over loaders train, and where another epoch begins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet, ref

from autotune.program.profile import LoaderFacts

if TYPE_CHECKING:
    from autotune.inside.data.feed import Feed
    from autotune.inside.epochs import Pass


class TrainingPasses:
    """Follows the passes whose batches the program takes with gradients enabled.

    Such a pass may still be an evaluation. It trains if a step is made with its batches. Loaders
    that are read together, as by ``zip()``, train together.

    The loader that is read first in an epoch leads it, and ends it by beginning another pass. Once
    its pass is over, any other loader that has trained in the epoch ends it likewise. So an epoch
    may consist of passes over several loaders, and a loader may start over in its middle. A loader
    that is rebuilt over other data, as with pseudo-labels, or with another batch size, counts as
    the same loader from its first step on.

    ``ShortEpochs`` calls it in the threads that ask for batches and make steps.

    Args:
        facts: Returns what identifies a feed's loader.
        is_rebuilt: Whether a feed's loader was built after training had begun.

    Attributes:
        lead: The pass that handed out the last batch with gradients; None before the first.
        epochs: Number of epochs in which a step was made.
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
        self._last: Callable[[], Feed | None] = lambda: None
        self._last_facts: LoaderFacts | None = None
        self._called: set[bool] = set()  # with gradients or without, since the last batch
        self._trained: set[LoaderFacts] = set()
        # In this epoch: which loaders have trained, the first of them, and passes that go on
        self._in_epoch: set[LoaderFacts] = set()
        self._leader: LoaderFacts | None = None
        self._open: WeakSet[Feed] = WeakSet()

    @property
    def lead_trains(self) -> bool:
        """Whether the loader that handed out the last batch with gradients has trained."""
        return self._last_facts in self._trained

    def took(self, feed: Feed, seen: Pass) -> None:
        """Note that a pass hands out a batch with gradients enabled."""
        if self._last() is feed:
            with self._lock:
                self._fed[feed] = seen
            self._called.clear()
            return
        facts = self._facts(feed)
        with self._lock:
            if feed not in self._open:  # it takes the place of an iterator that read ahead
                for other in [f for f in self._fed if f in self._open and self._facts(f) == facts]:
                    del self._fed[other]
            self._fed[feed] = seen
        self._leave_out_evaluated()
        self.lead, self._last, self._last_facts = seen, ref(feed), facts
        self._called.clear()

    def forward_called(self, *, has_gradients: bool) -> None:
        """Note that the program calls a model."""
        self._called.add(has_gradients)

    def ended(self, feed: Feed) -> None:
        """Note that a pass is over, so that no later step belongs to it."""
        with self._lock:
            self._fed.pop(feed, None)
            self._open.discard(feed)

    def begins_epoch(self, feed: Feed) -> bool:
        """Return whether a pass that is about to begin is that of another epoch."""
        if not feed.wants_gradients or self._facts(feed) not in self._in_epoch:
            return False
        return not self._leader_goes_on

    def begun(self) -> tuple[Feed, ...]:
        """Return the passes that have handed out batches and belong to another epoch.

        Only the first step of a pass tells a loader that was rebuilt from that of an evaluation,
        and a leader whose last iterator is kept from one that is evaluated in its middle.
        """
        self._leave_out_evaluated()
        feeding = [feed for feed, _ in self._feeding()]
        anew = [feed for feed in feeding if feed not in self._open]
        again = [feed for feed in anew if self._is_one_of(feed, self._in_epoch)]
        if again and self._leader_goes_on:
            leading = {self._leader}
            if any(self._facts(feed) in leading for feed in feeding if feed in self._open):
                return ()
            if not any(self._is_one_of(feed, leading) for feed in again):
                return ()
        return tuple(again)

    def epoch_begins(self, begun_by: Sequence[Feed]) -> None:
        """Forget what trained in the epoch before, and what was evaluated since.

        Args:
            begun_by: The passes of the new epoch that have handed out batches.
        """
        self._in_epoch.clear()
        self._leader = None
        with self._lock:
            self._open.clear()
            for feed in [feed for feed in self._fed if feed not in begun_by]:
                del self._fed[feed]

    def stepped(self) -> None:
        """Count a step.

        A step that is made after a pass belongs to none, as that of a program which gathers the
        gradients of a whole epoch. It still shows that the loader trains.
        """
        self._leave_out_evaluated()
        feeding = self._feeding()
        feeds = tuple(feed for feed, _ in feeding)
        if feeds and all(feed in self._open for feed in feeds):  # it goes on as before
            with self._lock:
                self._fed.clear()
            return
        passes, trained = [seen for _, seen in feeding], {self._facts(feed) for feed, _ in feeding}
        if feeding:
            self.epochs += self._leader is None
            self._leader = self._leader or self._facts(feeding[0][0])
            with self._lock:
                self._fed.clear()
                self._open.update(feeds)
        elif self._leader is None and self.lead is not None and self._last_facts is not None:
            self.epochs += not self.lead.trains
            passes, trained = [self.lead], {self._last_facts}
        for seen in passes:
            seen.trains = True
        self._trained |= trained
        self._in_epoch |= trained

    def _leave_out_evaluated(self) -> None:
        """Leave out the last batch if models got it without gradients alone.

        A batch that nothing else was read with is kept: there is nothing else to train on.
        """
        last = self._last()
        if last is not None and self._called == {False}:
            with self._lock:
                if len(self._fed) > 1:
                    self._fed.pop(last, None)

    @property
    def _leader_goes_on(self) -> bool:
        """Whether an iterator of the leader has made steps in this epoch, and is not over."""
        with self._lock:
            going_on = [*self._open]
        return any(self._facts(feed) == self._leader for feed in going_on)

    def _is_one_of(self, feed: Feed, loaders: AbstractSet[LoaderFacts | None]) -> bool:
        """Return whether a feed's loader is one of some, maybe rebuilt with another size."""
        facts = self._facts(feed)
        if facts in loaders:
            return True
        alike = {_without_size(one) for one in tuple(loaders) if one is not None}
        return self._is_rebuilt(feed) and _without_size(facts) in alike

    def _feeding(self) -> list[tuple[Feed, Pass]]:
        with self._lock:
            return [*self._fed.items()]


def _without_size(facts: LoaderFacts) -> LoaderFacts:
    return replace(facts, dataset_len=None, batch_size=None)
