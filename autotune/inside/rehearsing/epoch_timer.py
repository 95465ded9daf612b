"""Time the epochs of a program that runs with short epochs, and try options of its evaluation."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from autotune.inside.rehearsing.epoch_clock import EpochClock
from autotune.inside.rehearsing.option_trials import OptionTrials
from autotune.measurement.epochs.epoch import EpochSeen
from autotune.program.evaluation import EvaluationTrials, loader_key
from autotune.program.profile import LoaderFacts
from autotune.program.rehearsal import RehearsalPlan

if TYPE_CHECKING:
    from autotune.inside.data.feed import Feed
    from autotune.inside.seams import SeamSet

IN_THREAD = "another thread of the program takes the batches, and only the main thread is timed"
OUTSIDE = "it makes its steps after its passes over the loader, not during them"
SEEKING = 3.0  # factor on the seconds of a training pass, to meet an evaluation in its middle


class EpochTimer:
    """Says when passes have had their time, and what the epochs were made of.

    ``ShortEpochs`` calls it where a plan asks for timing, and says what trains and what does not.
    What other threads than the program's main one load or save is not timed.

    Args:
        plan: How long passes are, and what to try of an evaluation loader.
        pass_s: Seconds after which a pass may be cut.
        seams: Give the batches of a trainer's epoch, and an evaluation loader its options.
        started: When the process began to run the program, by ``perf_counter``.
    """

    def __init__(self, plan: RehearsalPlan, pass_s: float, seams: SeamSet, started: float) -> None:
        self._plan, self._pass_s, self._seams = plan, pass_s, seams
        self._clock = EpochClock()
        self._has_trained = False  # since the last epoch ended
        self._has_evaluated = False
        self._has_stepped = self._has_stepped_in_pass = self._is_in_thread = False
        self._trials: OptionTrials | None = None
        if plan.evaluation is not None:
            self._trials = OptionTrials(plan.evaluation, seams.loader, started)

    @property
    def epochs(self) -> tuple[EpochSeen, ...]:
        """The epochs that have ended, without those in which options were tried."""
        before = None if self._trials is None else self._trials.timed
        return before or tuple(self._clock.epochs)

    @property
    def why_untimed(self) -> str:
        """Why no epoch was timed, as a clause; empty if one was, or if none has ended in time."""
        if self._clock.epochs:
            return ""
        if self._is_in_thread:
            return IN_THREAD
        return OUTSIDE if self._has_stepped and not self._has_stepped_in_pass else ""

    @property
    def tried(self) -> EvaluationTrials | None:
        """What was tried of an evaluation loader; None if nothing was to be tried."""
        return None if self._trials is None else self._trials.found

    @property
    def enough_s(self) -> float:
        """Seconds after which the planned epochs are enough: more until an evaluation is seen."""
        plan = self._plan
        return plan.enough_s if self._has_evaluated else max(plan.enough_s, plan.seek_s)

    @property
    def is_enough(self) -> bool | None:
        """Whether all was tried that there is time for; None if nothing is tried, or not yet."""
        if self._trials is None or self._trials.timed is None:
            return None
        return self._trials.is_over

    def epoch_begins(
        self,
        begin_s: float,
        begun_by: Sequence[Feed],
        *,
        trained: AbstractSet[LoaderFacts],
        first_step_at: float,
        is_long_enough: bool,
    ) -> None:
        """Note that another epoch begins, which ends one if steps were made since the last.

        Args:
            begin_s: Seconds that the beginning of its first pass has taken until now.
            begun_by: Its passes, if they have handed out batches already.
            trained: The loaders that train.
            first_step_at: When the first step ended, by ``perf_counter``.
            is_long_enough: Whether the program has had its time.
        """
        if not (self._has_trained and _is_main_thread()):
            return
        self._has_trained = False
        own_batches = self._seams.trainers.batches_per_epoch
        self._clock.epoch_ended(begin_s, own_batches=own_batches, begun_by=begun_by)
        self._has_evaluated |= any(epoch.evaluation_s for epoch in self._clock.epochs[-1:])
        if self._trials is not None and len(self._clock.epochs) >= self._plan.epochs:
            self._trials.consider(
                self._clock.epochs, trained, first_step_at, is_long_enough=is_long_enough
            )

    def program_ended(self) -> None:
        """Note that the program has ended, and its last epoch with it."""
        self._clock.epoch_ended(own_batches=self._seams.trainers.batches_per_epoch, is_last=True)

    def may_cut(self, feed: Feed, facts: LoaderFacts) -> bool:
        """Return whether a pass may be cut by now."""
        trials = self._trials
        if trials is not None and trials.is_trying:
            if trials.tries(facts):
                return False
            return not trials.are_within or not feed.wants_gradients or self._is_late(feed)
        return self._is_late(feed)

    def _is_late(self, feed: Feed) -> bool:
        """Return whether a pass has taken its seconds.

        A training pass takes longer where no evaluation followed the first one: it may come in the
        middle of an epoch.
        """
        least_s, epochs = self._pass_s, self._clock.epochs
        if feed.wants_gradients and epochs and not epochs[0].evaluation_s:
            least_s *= SEEKING
        return self._clock.seconds(feed) >= least_s

    def pass_ended(self, feed: Feed, facts: LoaderFacts, *, is_cut: bool, trains: bool) -> None:
        """Note the end of a pass.

        Args:
            feed: The pass.
            facts: What identifies its loader.
            is_cut: Whether autotune ended it.
            trains: Whether the program trains on the loader.
        """
        if not _is_main_thread():
            return
        self._clock.pass_ended(feed, is_cut=is_cut)
        if self._trials is not None and not is_cut and not trains:
            self._trials.pass_ended(feed, facts, self._clock.whole_s(feed))

    def batch(self, feed: Feed, facts: LoaderFacts) -> None:
        """Note that a pass hands out a batch."""
        if _is_main_thread():
            self._clock.batch(feed, loader_key(facts))
        elif feed.wants_gradients:
            self._is_in_thread = True

    def handed(self, facts: LoaderFacts, batch: Any) -> None:
        """Take in a batch, which options of an evaluation loader must not change."""
        if self._trials is not None and self._trials.is_trying:
            self._trials.batch(facts, batch)

    def stepped(self, feeds: Sequence[Feed]) -> None:
        """Note an optimizer step, and the passes to which it belongs."""
        if not _is_main_thread():
            return
        if not self._has_trained and feeds:
            self._seams.trainers.note_batches(feeds[0].batches_per_epoch)
        self._has_trained = self._has_stepped = True
        self._has_stepped_in_pass |= bool(feeds)
        self._clock.stepped(feeds)

    def forward_called(self) -> None:
        """Note that the program calls its model."""
        if not _is_main_thread():
            return
        if torch.is_grad_enabled():
            self._clock.trains()
        else:
            self._clock.computes()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Note that the program saves."""
        if not _is_main_thread():
            yield
            return
        with self._clock.saving():
            yield


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
