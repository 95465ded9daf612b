"""Time what the program does in its short epochs, besides making steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, finalize

import torch

from autotune.inside.compiled import frames_compiled
from autotune.measurement.epochs.epoch import EpochSeen, OtherPass

if TYPE_CHECKING:
    from autotune.inside.data.feed import Feed


PART_OF_A_STEP = 0.5  # share of the batches from which what comes with them is part of their steps


@dataclass(eq=False)
class _Open:
    """A pass over a loader while it lasts."""

    loader: str
    start_s: float
    seconds: float = 0.0
    batches: int = 0
    steps: int = 0
    trains: bool = False  # steps were made with its batches
    leads: bool = False  # it was read first for them
    is_cut: bool = False
    length: int | None = None
    after: int = 0
    computes: bool = False  # without a loader, in the middle of a training pass
    is_over: bool = False

    @property
    def seen(self) -> OtherPass:
        return OtherPass(
            self.loader,
            self.start_s,
            self.seconds,
            self.batches,
            self.is_cut,
            self.length,
            self.after,
        )


class EpochClock:
    """Charges the program's time to what it does: a pass over a loader, saving, or the rest.

    ``EpochTimer`` calls it in the program's main thread. A pass inside another one, such as an
    evaluation in the middle of an epoch, is charged for its own time. A pass that the program
    leaves early ends when its iterator is gone, which is when a ``for`` loop is left.

    Args:
        now: Returns seconds.
        compiled: Returns a number that grows with each compilation.

    Attributes:
        epochs: The epochs that have ended.
    """

    def __init__(
        self,
        now: Callable[[], float] = perf_counter,
        compiled: Callable[[], int] = frames_compiled,
    ) -> None:
        self.epochs: list[EpochSeen] = []
        self._now, self._compiled = now, compiled
        self._passes: WeakKeyDictionary[Feed, _Open] = WeakKeyDictionary()
        self._begin()

    def _begin(self) -> None:
        self._mark = self._now()
        self._compiled_before = self._compiled()
        self._in_epoch: list[_Open] = []
        self._stack: list[_Open] = []
        self._is_saving = self._is_computing = False
        self._computing_s = self._saving_s = self._saving_within_s = self._rest_s = 0.0
        self._saves = 0
        self._saved_after: list[int] = []

    def seconds(self, feed: Feed) -> float:
        """Return how long a pass has been going on since its first batch."""
        if (seen := self._passes.get(feed)) is None:
            return 0.0
        is_running = bool(self._stack) and self._stack[-1] is seen
        return seen.seconds + (self._now() - self._mark if is_running else 0.0)

    def whole_s(self, feed: Feed) -> float:
        """Return how long a pass has taken, its beginning included; 0.0 for one not seen."""
        return self._passes[feed].start_s + self.seconds(feed) if feed in self._passes else 0.0

    def batch(self, feed: Feed, loader: str) -> None:
        """Note that a pass is about to hand out a batch; its first one begins it.

        Args:
            feed: The pass.
            loader: By which its loader is told from others.
        """
        seen = self._passes.get(feed)
        self.trains()
        if seen is None or seen not in self._in_epoch:
            self._sync()
            # A pass that goes on from an epoch to the next began in the first of them
            start_s = min(feed.start_s, self._now() - self._mark) if seen is None else 0.0
            self._charge(until=self._now() - start_s)
            self._mark = self._now()
            self._leave_unrelated()
            if not self.epochs and not self._has_stepped:
                self._forget_the_start()
            self._passes[feed] = seen = _Open(loader, start_s, after=self._handed)
            finalize(feed, self._left, seen).atexit = False
            self._in_epoch.append(seen)
        elif not self._stack or self._stack[-1] is not seen:
            self._sync()
            self._charge()
        if seen in self._stack:
            del self._stack[self._stack.index(seen) + 1 :]
        else:
            self._stack.append(seen)
        self._is_computing = False
        seen.batches += 1

    def _leave_unrelated(self) -> None:
        """Leave a pass that trained nothing when another one begins: the program broke out of it.

        Two loaders that the program reads together both go on, so they come back.
        """
        while self._stack and not self._stack[-1].steps and self._has_stepped:
            self._stack.pop()

    def _forget_the_start(self) -> None:
        """Forget what the program did before its first training pass."""
        self._in_epoch = [*self._stack]
        self._computing_s = self._saving_s = self._saving_within_s = self._rest_s = 0.0
        self._saves = 0
        self._saved_after = []

    def _left(self, seen: _Open) -> None:
        """Note that the iterator of a pass is gone."""
        seen.is_over = True
        if seen in self._stack and threading.current_thread() is threading.main_thread():
            self._charge()
            del self._stack[self._stack.index(seen) :]

    @property
    def _handed(self) -> int:
        """Batches of the training pass that is going on; 0 if none is."""
        return max((p.batches for p in self._stack if p.steps), default=0)

    @property
    def _has_stepped(self) -> bool:
        return any(seen.steps for seen in self._in_epoch)

    def pass_ended(self, feed: Feed, *, is_cut: bool) -> None:
        """Note that a pass is over.

        Args:
            feed: The pass.
            is_cut: Whether autotune ended it.
        """
        seen = self._passes.get(feed)
        if seen is None:
            return
        self._sync()
        # Workers end once in a pass, however long it is: that is not part of its batches
        end_s = feed.end_s if is_cut else 0.0
        self._charge(until=self._now() - end_s)
        seen.start_s += max(0.0, self._now() - self._mark)
        self._mark = self._now()
        length = feed.batches_per_epoch if is_cut else None
        seen.is_over = True
        seen.is_cut = is_cut and length != seen.batches
        seen.length = length if seen.is_cut else None
        if seen in self._stack:
            del self._stack[self._stack.index(seen) :]

    def stepped(self, feeds: Sequence[Feed] = ()) -> None:
        """Note an optimizer step, which belongs to all passes that are going on.

        Args:
            feeds: The passes whose batches it was made with, the one read first in front.
        """
        self.trains()
        for seen in self._stack:
            seen.steps += 1
        for number, feed in enumerate(feeds):
            if (fed := self._passes.get(feed)) is not None:
                fed.trains = True
                fed.leads |= number == 0

    def computes(self) -> None:
        """Note that the model computes without gradients.

        In the middle of a training pass, that is an evaluation which reads no loader, until the
        program trains on.
        """
        if self._is_saving:
            return
        if not self._stack:
            self._charge()
            self._is_computing = True
        elif self._stack[-1].steps:
            self._sync()
            self._charge()
            seen = _Open("", 0.0, batches=1, after=self._handed, computes=True)
            self._in_epoch.append(seen)
            self._stack.append(seen)

    def trains(self) -> None:
        """Note that the program trains, so that an evaluation without a loader is over."""
        if self._stack and self._stack[-1].computes:
            self._sync()
            self._charge()
            self._stack.pop()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Note that the program saves."""
        if self._is_saving:  # one function that saves calls another
            yield
            return
        self._sync()
        self._charge()
        self._is_saving, self._is_computing = True, False
        try:
            yield
        finally:
            self._charge()
            self._is_saving = False
            self._saves += 1
            if self._handed:
                self._saved_after.append(self._handed)

    def epoch_ended(
        self,
        begin_s: float = 0.0,
        *,
        own_batches: int | None = None,
        begun_by: Sequence[Feed] = (),
        is_last: bool = False,
    ) -> None:
        """Note that another training pass begins, or that the program has ended.

        Args:
            begin_s: Seconds that the beginning of the new pass has taken until now.
            own_batches: Batches of a training pass of a library's trainer, which may have been told
                to take fewer; None without one.
            begun_by: The passes of the new epoch, if they have handed out batches already, all of
                which belong to it.
            is_last: Whether the program has ended.
        """
        self._sync()
        begun = max(self._mark, self._now() - begin_s)
        self._charge(until=begun)
        moved = [seen for feed in begun_by if (seen := self._passes.get(feed)) is not None]
        self._in_epoch = [p for p in self._in_epoch if p not in moved]
        trained = [p for p in self._in_epoch if p.trains] or [p for p in self._in_epoch if p.steps]
        # What came before the first training pass is the start
        first = self._in_epoch.index(trained[0]) if trained and not self.epochs else 0
        others = [p for p in self._in_epoch[first:] if p not in trained]
        self._in_epoch = trained + others
        self._keep_what_steps_compute(trained)
        for seen in trained:
            if own_batches is not None and seen.batches < own_batches:
                seen.is_cut, seen.length = True, own_batches
        if own_batches is not None and any(p.is_cut for p in trained):
            self._is_over_after(max(p.batches for p in trained))
        leading = [p for p in trained if p.leads]
        if trained:
            leading = leading or [max(trained, key=lambda p: p.batches)]
            self.epochs.append(
                EpochSeen(
                    steps=sum(p.steps for p in leading),
                    batches=sum(p.batches for p in leading),
                    start_s=sum(p.start_s for p in trained),
                    steps_s=sum(p.seconds for p in trained),
                    passes=tuple(p.seen for p in self._in_epoch if p not in trained),
                    computing_s=self._computing_s,
                    saving_s=self._saving_s,
                    saving_within_s=self._saving_within_s,
                    saved_after=tuple(sorted(set(self._saved_after))),
                    saves=self._saves,
                    rest_s=self._rest_s,
                    is_cut=any(p.is_cut for p in trained),
                    length=_length(leading),
                    is_last=is_last,
                    compiles=self._compiled() > self._compiled_before,
                )
            )
        self._begin()
        self._mark = begun
        self._in_epoch, self._stack = moved, [p for p in moved if not p.is_over]

    def _is_over_after(self, batches: int) -> None:
        """Note that a trainer's pass was over after this number of batches.

        A trainer that takes fewer batches than its loader has keeps the iterator, so evaluating and
        saving at the end seem to come in the middle of the pass.
        """
        for seen in self._in_epoch:
            if seen.after >= batches:
                seen.after = 0
        if self._saved_after and min(self._saved_after) >= batches:
            self._saving_s += self._saving_within_s
            self._saving_within_s, self._saved_after = 0.0, []

    def _keep_what_steps_compute(self, trained: list[_Open]) -> None:
        """Give computing without gradients back to the steps, if it is part of each of them.

        So it is where a teacher or a generator computes what a step trains on.
        """
        computed = [p for p in self._in_epoch if p.computes]
        if trained and len(computed) >= PART_OF_A_STEP * max(p.batches for p in trained):
            trained[0].seconds += sum(p.seconds for p in computed)
            self._in_epoch = [p for p in self._in_epoch if not p.computes]

    def _charge(self, until: float | None = None) -> None:
        now = self._now() if until is None else until
        spent_s = max(0.0, now - self._mark)
        self._mark = max(self._mark, now)
        if self._is_saving and any(p.steps for p in self._stack):
            self._saving_within_s += spent_s
        elif self._is_saving:
            self._saving_s += spent_s
        elif self._stack:
            self._stack[-1].seconds += spent_s
        elif self._is_computing:
            self._computing_s += spent_s
        else:
            self._rest_s += spent_s

    @staticmethod
    def _sync() -> None:
        """Wait for the device, whose work belongs to what the program did until now."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()


def _length(leading: Sequence[_Open]) -> int | None:
    """Return the batches of some passes if none had been cut; None if none was, or if unknown."""
    cut = [p for p in leading if p.is_cut]
    if not cut or any(p.length is None for p in cut):
        return None
    return sum(p.length or p.batches for p in leading)
