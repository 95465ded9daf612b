"""Where passes over loaders end: counted, cut short, or as long as the program itself would have.

Two listeners share this. Short epochs cut every pass. A rig that measures lets training go on
beyond its epoch, unless the program cannot bear that: then epochs are true ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from autotune.measurement.run_mode import Epochs
from autotune.program.profile import LoaderFacts
from autotune.program.rehearsal import OTHER_BATCHES

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from autotune.inside.data.feed import Feed

MAX_BATCHES = 64  # without a step: as many as a large accumulation takes


@dataclass
class Pass:
    """One iteration of the program over a loader.

    Attributes:
        batches: Handed out so far.
        steps: Optimizer steps that had been made when the last of them was.
        trains: Steps were made of its batches.
        is_over: It was cut short.
    """

    batches: int = 0
    steps: int = 0
    trains: bool = False
    is_over: bool = False


class Passes:
    """All passes of the program over its loaders, and where those end that train nothing.

    Feeds ask in the thread that iterates the loader.

    Args:
        other_batches: What a loader that trains nothing gets; None for all that it has.
    """

    def __init__(self, other_batches: int | None = OTHER_BATCHES) -> None:
        self._other_batches = other_batches
        self._passes: WeakKeyDictionary[Feed, Pass] = WeakKeyDictionary()

    def __contains__(self, feed: Feed) -> bool:
        return feed in self._passes

    def of(self, feed: Feed) -> Pass:
        """Return a pass, which begins when it is first asked for."""
        return self._passes.setdefault(feed, Pass())

    def took(self, feed: Feed, steps: int) -> Pass:
        """Count a batch, after so many steps of the program."""
        seen = self.of(feed)
        seen.trains |= seen.batches > 0 and steps > seen.steps
        seen.batches += 1
        seen.steps = steps
        return seen

    def cuts_other(self, feed: Feed, steps: int) -> bool:
        """Tell whether a pass that trains nothing has been long enough.

        With gradients it may yet train: then the first steps are waited for.
        """
        seen = self.of(feed)
        if self._other_batches is None:
            return False
        if feed.wants_gradients:
            seen.trains |= seen.batches > 0 and steps > seen.steps
            seen.is_over |= not seen.trains and seen.batches >= MAX_BATCHES
        else:
            seen.is_over |= seen.batches >= self._other_batches
        return seen.is_over


class EpochEnds:
    """Ends the epochs of a program that is measured, by its mode.

    StepTracker asks, in the thread that iterates the loader.

    Args:
        mode: How epochs end.

    Attributes:
        is_endless: Training goes on beyond the program's own epoch.
    """

    def __init__(self, mode: Epochs) -> None:
        self.mode = mode
        self.is_endless = mode is Epochs.ENDLESS
        self._passes = Passes(OTHER_BATCHES if mode is Epochs.TRUE else None)
        self._training: WeakSet[Feed] = WeakSet()
        self._cut_at: int | None = None  # steps when a loader was cut last

    def starts_over(self, feed: Feed) -> bool:
        """Tell whether a feed that trains begins its data anew where they end.

        In a true epoch only where these data are not those of the program's own epoch: a larger
        batch needs them more than once.
        """
        return self.is_endless or (feed.is_mixed and feed.limit is not None)

    def cuts(self, feed: Feed, steps: int, *, trains: bool) -> bool:
        """Tell whether a feed ends here, though its loader may have more."""
        if self.is_endless:
            return False
        if trains:
            is_whole = feed.limit is not None and feed.handed >= feed.limit
            return is_whole and (feed.is_mixed or feed.is_behind)
        if not self._passes.cuts_other(feed, steps):
            return False
        self._cut_at = steps
        return True

    def took(self, feed: Feed, steps: int, *, trains: bool) -> None:
        """A feed hands out a batch, after so many steps of the program."""
        if trains:
            self._training.add(feed)
        elif not self.is_endless:
            self._passes.took(feed, steps)

    def suspect(self, steps: int, *, has_just_switched: bool) -> Epochs | None:
        """Return how epochs would have to end if these here are why the program fails now.

        What fails beyond its own epoch may do so for that. But where it had gone on beyond it and
        failed as soon as the config changed, the config is the nearer cause; so it is where it
        brought a short batch. A pass that was cut may be the cause until the next step is made.

        Args:
            steps: That the program has made.
            has_just_switched: The config changed a few steps ago, beyond the epoch.
        """
        if self.is_endless:
            is_configs = has_just_switched or any(feed.is_short for feed in self._training)
            return Epochs.TRUE if self.is_beyond and not is_configs else None
        return Epochs.WHOLE if self._cut_at == steps else None

    @property
    def is_beyond(self) -> bool:
        """A loader that trains has handed out more than the program takes an epoch for."""
        return self.is_endless and any(feed.goes_beyond() for feed in self._training)


def known_by(facts: Callable[[DataLoader[Any]], LoaderFacts], feed: Feed) -> LoaderFacts:
    """Return what a feed's loader is known by, also where it is built again for each epoch."""
    return replace(facts(feed.loader), ordinal=0)
