"""Decide where the program's passes over its loaders end, and where its epochs begin.

``ShortEpochs`` cuts every pass short. ``StepTracker`` lets training continue beyond the program's
epoch, so that a turn is never interrupted; if the program fails beyond its epoch, epochs end where
the program expects it, see ``Epochs``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from autotune.measurement.outcome import Epochs
from autotune.program.profile import LoaderFacts

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from autotune.inside.data.feed import Feed

# Within this many steps after a switch, a failure is blamed on the config, not on the epoch mode.
JUST_SWITCHED = 3
MAX_BATCHES = 64  # without a step; a large gradient accumulation takes that many for one step


@dataclass(eq=False)
class Pass:
    """One iteration of the program over a loader.

    Attributes:
        batches: Number of batches handed out so far.
        steps: Total optimizer steps of the program when the last of these batches was handed out.
        trains: Whether optimizer steps were made during the pass.
        is_over: Whether the pass was cut short.
    """

    batches: int = 0
    steps: int = 0
    trains: bool = False
    is_over: bool = False


class EpochEnds:
    """The pass over the training loader that a measured program is in, and how its epochs end.

    Attributes:
        is_endless: Whether training continues beyond the program's own epoch.
        switched_at: Total steps when the config changed last; starting the rig counts as a change.
        feed: What hands out the present pass's batches; None before the first pass.
        steps: Steps that have ended in the pass.
        samples: Samples of these steps.
        samples_between_starts: Samples between the beginnings of the last two passes, in endless
            mode; None if unknown.
    """

    def __init__(self, mode: Epochs) -> None:
        self.is_endless = mode is Epochs.ENDLESS
        self._training: WeakSet[Feed] = WeakSet()
        self.switched_at = 0
        self._has_switched_beyond = False
        self.feed: Feed | None = None
        self.steps = self.samples = 0
        self.samples_between_starts: int | None = None
        self._rebuilt: dict[int, int] = {}  # by place among the loaders: number of its last one

    def begin(self, feed: Feed) -> None:
        """Follow a new pass over the training loader."""
        if self.steps > 1 and self.is_endless:
            self.samples_between_starts = self.samples
        self.feed, self.steps, self.samples = feed, 0, 0

    def step_ended(self, samples: int) -> None:
        """Count a step in the present pass."""
        self.steps += 1
        self.samples += samples

    def starts_over(self, feed: Feed) -> bool:
        """Return whether a training feed restarts its data when they are used up.

        In a true epoch it restarts only if a config has changed the data under the program's loop.
        With a larger batch, for example, the epoch's number of batches needs the data more than
        once.
        """
        return self.is_endless or (feed.is_mixed and feed.limit is not None)

    def cuts(self, feed: Feed) -> bool:
        """Return whether a training feed ends here, although its loader may have more batches.

        In a true epoch, a feed whose data or options a config has changed ends after the number of
        batches that the program expects.
        """
        is_whole = feed.limit is not None and feed.handed >= feed.limit
        return not self.is_endless and is_whole and (feed.is_mixed or feed.is_behind)

    def trains(self, feed: Feed) -> None:
        """Note that a feed belongs to a training loader."""
        self._training.add(feed)

    def note_switch(self, steps: int) -> None:
        """Note that the config changes, after *steps* optimizer steps in total."""
        self.switched_at, self._has_switched_beyond = steps, self._is_beyond

    def suspect(self, steps: int) -> Epochs | None:
        """Return the epoch mode to try next if the present one may be why the program fails now.

        That is ``TRUE``, if the program has gone beyond its epoch. But if the failure follows at
        once after a change of config there, or a config has brought a smaller last batch, the
        config is the likelier cause.
        """
        is_recent = self._has_switched_beyond and steps - self.switched_at <= JUST_SWITCHED
        is_configs = is_recent or any(feed.present.is_short for feed in self._training)
        return Epochs.TRUE if self._is_beyond and not is_configs else None

    @property
    def _is_beyond(self) -> bool:
        return self.is_endless and any(feed.goes_beyond() for feed in self._training)

    def with_rebuilt(
        self,
        feed: Feed,
        loaders: tuple[DataLoader[Any], ...],
        facts: Callable[[DataLoader[Any]], LoaderFacts],
    ) -> tuple[DataLoader[Any], ...]:
        """Return the training loaders with the one that the program has rebuilt for a new epoch.

        It takes the place of the loader with the same facts. If several have the same facts, it
        takes the place of the one that was rebuilt longest ago.
        """
        its = _uncounted(facts(feed.loader))
        alike = [n for n, loader in enumerate(loaders) if _uncounted(facts(loader)) == its]
        if not alike or any(feed.loader is loader for loader in loaders):
            return loaders
        place = min(alike, key=lambda n: self._rebuilt.get(n, 0))
        self._rebuilt[place] = 1 + max(self._rebuilt.values(), default=0)
        return (*loaders[:place], feed.loader, *loaders[place + 1 :])


@dataclass
class _Trained:
    """A loader that trains, over all its passes, also where it is rebuilt for each epoch.

    Attributes:
        batches: That it has handed out for steps.
        epochs: Its passes in which a step was made.
    """

    batches: int = 0
    epochs: int = 0


class TrainedEpochs:
    """Counts the epochs of a program: the passes of the loader that hands out most batches.

    A pass trains if a step is made after one of its batches and before its end. Loaders that are
    read together, as by ``zip()``, train together. Called in the threads that ask for batches and
    make steps.

    Args:
        is_rebuilt: Whether a loader was built after training had begun. It is taken for the first
            loader with the same facts, though its dataset may have another length.

    Attributes:
        last: The pass that handed out the last batch with gradients; None before the first.
        count: Number of epochs in which a step was made.
        thread: That in which the last step was made; before the first, in which a model was called
            with gradients; None before that.
    """

    def __init__(
        self,
        facts: Callable[[DataLoader[Any]], LoaderFacts],
        is_rebuilt: Callable[[DataLoader[Any]], bool],
    ) -> None:
        self.last: Pass | None = None
        self.count = 0
        self.thread: int | None = None
        self._facts, self._is_rebuilt = facts, is_rebuilt
        self._fed: list[Pass] = []  # since the last step, and not over
        self._over: Pass | None = None  # the last of them that is over
        self._keys: WeakKeyDictionary[Pass, tuple[int, LoaderFacts]] = WeakKeyDictionary()
        self._trained: dict[int, _Trained] = {}  # by the id of the first dataset
        self._first: dict[LoaderFacts, int] = {}

    @property
    def last_trains(self) -> bool:
        """Whether the loader that handed out the last batch with gradients has trained."""
        return self.last is not None and self._keys[self.last][0] in self._trained

    def forwarded(self) -> None:
        """Note that a model was called with gradients, which tells the thread before a step does.

        A reader that is as far ahead as the first step has batches would be taken for the loop.
        """
        if not self.count:
            self.thread = get_ident()

    def took(self, feed: Feed, seen: Pass) -> None:
        """Note that a pass hands out a batch with gradients enabled."""
        if seen not in self._keys:  # once in a pass: it takes as long as a small step
            self._keys[seen] = self._key(feed.loader)
        self.last = seen
        if len(self._fed) > MAX_BATCHES:  # an evaluation, or many for one step
            self._fed = list(dict.fromkeys(self._fed))
        self._fed.append(seen)

    def ended(self, seen: Pass) -> None:
        """Note that a pass is over, so that no later step belongs to it."""
        if seen in self._fed:
            self._over = seen
            self._fed = [one for one in self._fed if one is not seen]

    def begins_again(self, feed: Feed) -> bool:
        """Return whether a pass that begins is another one of the loader that leads."""
        lead = max(self._trained, key=lambda key: self._trained[key].batches, default=None)
        return feed.wants_gradients and id(feed.loader.dataset) == lead

    def stepped(self) -> bool:
        """Count a step; return whether it is the first one of an epoch.

        A step that is made after a pass belongs to it if the pass made none, as that of a program
        which gathers the gradients of a whole epoch.
        """
        self.thread = get_ident()
        fed, self._fed, over, self._over = self._fed, [], self._over, None
        if not fed and over is not None and not over.trains:
            fed = [over]
        if not fed:
            return False
        goes_on = {self._keys[seen][0] for seen in fed if seen.trains}
        begun = dict.fromkeys(self._keys[seen] for seen in fed)
        for key, facts in begun:
            self._first.setdefault(facts, key)
            self._trained.setdefault(key, _Trained()).epochs += key not in goes_on
        for seen in fed:
            self._trained[self._keys[seen][0]].batches += 1
            seen.trains = True
        before, lead = self.count, max(self._trained.values(), key=lambda its: its.batches)
        self.count = max(self.count, lead.epochs)
        return self.count > before

    def _key(self, loader: DataLoader[Any]) -> tuple[int, LoaderFacts]:
        key = id(loader.dataset)
        facts = replace(_uncounted(self._facts(loader)), dataset_len=None, batch_size=None)
        if key not in self._trained and self._trained and self._is_rebuilt(loader):
            key = self._first.get(facts, key)
        return key, facts


def _uncounted(facts: LoaderFacts) -> LoaderFacts:
    return replace(facts, ordinal=0, twins=0)
