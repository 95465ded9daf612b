"""Run the program with its epochs cut short, to see whether it survives what lies between them.

Such a run is called a rehearsal. The program itself is unchanged; only its passes over loaders end
early.

Covered: what a program does after an epoch and at its end: evaluation, metrics, schedules,
checkpoints, a second epoch with the workers that are left of the first. Not covered: what it does
every N steps, if N is larger than the number of steps in the short epochs.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch

from autotune.inside.epochs import MAX_BATCHES, Pass, Passes, known_by
from autotune.inside.listener import Listener
from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.rehearsing.epoch_clock import EpochClock
from autotune.inside.rehearsing.evaluation_outputs import OutputComparison
from autotune.inside.rehearsing.option_trials import OptionTrials
from autotune.inside.rehearsing.training_recorder import TrainingRecorder
from autotune.inside.seams import SeamSet
from autotune.inside.seams.equal_conditions import even_out
from autotune.inside.steering import Steering, loose_knobs
from autotune.measurement.run_mode import Epochs
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import KnobValue
from autotune.program.evaluation import loader_key
from autotune.program.profile import LoaderFacts
from autotune.program.rehearsal import Ended, RehearsalPlan, Seen
from autotune.rig.link import LinkClosed

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from autotune.inside.data.feed import Feed
    from autotune.inside.listener import Root

# Steps since the last batch. A program may make several steps with one batch; one that makes more
# than this keeps its batches and iterates over them without asking the loader again.
MAX_STEPS = 64
SEEKING = 3.0  # factor on the seconds of a training pass, to meet an evaluation in its middle


class ShortEpochs(Listener):
    """Cuts every pass over a loader short, and counts what the program does.

    ``rank_process`` creates it in place of a ``LeadRank`` or ``FollowerRank``. The seams call it in
    the program's main thread, and for batches in the thread that asks for them. A timer thread ends
    the rehearsal when its time is up.

    The rehearsal ends when the program begins another epoch after the planned ones, once it has had
    some time to reach its own end. A training loop that asks no loader, or no longer asks one, has
    no epochs: it is ended after that time.

    Args:
        applied: What the program runs under.
        plan: Where it is cut.
        over: Called once, in any thread, with what was seen when there is no more to see; None for
            a rank that follows another.
        started: When the process began to run the program, by ``perf_counter``.
        group: The processes that train together.
        epochs: The mode in which the program is measured. With whole epochs, passes that train
            nothing are not cut here either, because the program was seen to fail if they are.
    """

    def __init__(
        self,
        applied: AppliedConfig,
        plan: RehearsalPlan,
        over: Callable[[Seen], None] | None,
        started: float,
        group: Group = ALONE,
        epochs: Epochs = Epochs.ENDLESS,
    ) -> None:
        self.rehearsal = plan
        self.config_reads: Mapping[str, KnobValue] = {}
        self.seams = SeamSet(self, applied.traits.loader, loose_knobs(applied), group)
        self.steering = Steering(self.seams)
        self.steps = 0
        self._plan = plan
        self._over = over
        self._epochs = self._evaluations = 0
        self._is_evaluating = False
        self._first_step_at = math.inf
        self._heard = perf_counter()
        self._passes = Passes(None if epochs is Epochs.WHOLE else plan.other_batches)
        self._lead: Pass | None = None
        self._longest = 0
        self._trained: set[LoaderFacts] = set()
        self._known: WeakKeyDictionary[Feed, LoaderFacts] = WeakKeyDictionary()
        self._early: WeakSet[DataLoader[Any]] = WeakSet()  # built before the first step
        self._idle: set[LoaderFacts] = set()  # loaders whose passes trained nothing
        self._training_facts: LoaderFacts | None = None
        self._recorder: TrainingRecorder | None = None
        if (traces := plan.traces) is not None:
            self.seams.distribution.randomness.is_agreed = True
            even_out(traces, compiles=applied.config.get("compile", "off") != "off")
            self._recorder = TrainingRecorder(
                lambda: self.seams.forward.roots,
                lambda: self.seams.optimizer.optimizers,
                traces,
                is_alone=group.world_size == 1,
            )
        self._clock = None if plan.pass_s is None else EpochClock()
        self._outputs = OutputComparison(applied, self.steering)
        if self._clock is not None and self._outputs.changes:
            self.seams.forward.evaluated = self._outputs
        self._has_trained = False  # since the last epoch ended
        self._fed: set[LoaderFacts] = set()  # loaders read with gradients since the last step
        self._fed_steps: set[LoaderFacts] = set()
        self._trials: OptionTrials | None = None
        if plan.evaluation is not None:
            self._trials = OptionTrials(plan.evaluation, self.seams.loader, started)
        self._ending = threading.Lock()  # whoever acquires it reports; it is never released
        self._process = os.getpid()
        self._timer = threading.Timer(
            max(0.0, plan.most_s - (perf_counter() - started)), self._end, ("out of time",)
        )
        self._timer.daemon = True
        if over is not None:
            self._timer.start()

    def stand_aside(self) -> None:
        """Report nothing from now on: a process that the program has started trains instead."""
        self._ending.acquire(blocking=False)
        self._timer.cancel()

    def take_ranks(self, group: Group) -> None:
        """Accept that this process is one of several ranks; a rehearsal need not change."""

    def program_ended(self, *, has_failed: bool = False) -> None:  # noqa: ARG002
        """Report what was seen until the program ended; how it ended is reported separately."""
        if self._clock is not None:
            own = self.seams.trainers.batches_per_epoch
            self._clock.epoch_ended(own_batches=own, is_last=True)
        self._end("by itself")

    def before_batch(self, feed: Feed) -> None:
        """End the rehearsal if a training epoch begins after all that were planned."""
        self.seams.by_hand.look()
        self._heard = perf_counter()
        if feed in self._passes:
            return
        self._passes.of(feed)
        if not (feed.wants_gradients and self._has_trained_on(feed)):
            return
        if self._clock is not None and self._has_trained:
            self._has_trained = False
            self.seams.trainers.note_batches(feed.batches_per_epoch)
            own = self.seams.trainers.batches_per_epoch
            self._clock.epoch_ended(feed.begin_s, own_batches=own)
            if self._trials is not None and len(self._clock.epochs) >= self._plan.epochs:
                self._trials.consider(
                    self._clock.epochs,
                    self._fed_steps,
                    self._first_step_at,
                    is_long_enough=self._is_long_enough,
                )
        if self._is_enough:
            self._end("as planned")

    def cuts(self, feed: Feed) -> bool:
        """Return whether a pass over a loader has been long enough.

        A training pass ends after the planned number of batches if a step was made with the last of
        them, so that no accumulated gradients are left over. Otherwise it continues, but not beyond
        the longest training pass so far, or ``MAX_BATCHES`` if there was none.
        """
        if not self._has_had_its_time(feed):
            return False
        if not feed.wants_gradients:
            return self._passes.cuts_other(feed, self.steps)
        seen, plan = self._passes.of(feed), self._plan
        has_stepped = self.steps > seen.steps
        most = max(plan.batches, self._longest or MAX_BATCHES)
        seen.is_over |= seen.batches >= (plan.batches if has_stepped else most)
        if seen.is_over and seen.trains:
            self._longest = max(self._longest, seen.batches)
        return seen.is_over

    def _has_had_its_time(self, feed: Feed) -> bool:
        """Return whether a pass may be cut by now, where passes are timed."""
        trials = self._trials
        if trials is not None and trials.is_trying:
            if trials.tries(self._facts(feed)):
                return False
            return not trials.are_within or not feed.wants_gradients or self._is_late(feed)
        return self._is_late(feed)

    def _is_late(self, feed: Feed) -> bool:
        """Return whether a pass has taken the seconds of the plan.

        A training pass takes longer where no evaluation followed the first one: it may come in the
        middle of an epoch.
        """
        clock, least_s = self._clock, self._plan.pass_s
        if clock is None or least_s is None:
            return True
        if feed.wants_gradients and clock.epochs and not clock.epochs[0].evaluation_s:
            least_s *= SEEKING
        return clock.seconds(feed) >= least_s

    def pass_ended(self, feed: Feed) -> None:
        """Note the end of a pass, and its time where passes are timed."""
        facts = self._facts(feed)
        if not self._passes.of(feed).trains:
            self._idle.add(facts)
        if self._clock is not None and threading.current_thread() is threading.main_thread():
            is_cut = self._passes.of(feed).is_over
            self._clock.pass_ended(feed, is_cut=is_cut)
            self._fed.discard(facts)  # it is over before the next step
            if self._trials is not None and not is_cut and not self._has_trained_on(feed):
                self._trials.pass_ended(feed, facts, self._clock.whole_s(feed))

    @contextmanager
    def saving(self, what: Any, where: Any) -> Iterator[None]:
        """Record what is saved where training is traced, and time it where epochs are."""
        if self._recorder is not None:
            yield
            self._recorder.saved(what, where)
            return
        if self._clock is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        with self._clock.saving():
            yield

    def batch_handed(self, feed: Feed, batch: Any, samples: int) -> None:
        """Note what is trained on, where training is traced, and what is evaluated in turns."""
        if self._trials is not None and self._trials.is_trying:
            self._trials.batch(self._facts(feed), batch)
        if self._recorder is not None and feed.wants_gradients:
            self._recorder.batch_handed(batch, samples)

    def after_batch(self, feed: Feed, samples: int, wait_s: float) -> None:  # noqa: ARG002
        """Count a batch; one without gradients belongs to an evaluation."""
        self._heard = perf_counter()
        seen = self._passes.took(feed, self.steps)
        if self._clock is not None and threading.current_thread() is threading.main_thread():
            self._clock.batch(feed, loader_key(self._facts(feed)))
        if feed.wants_gradients:
            self._lead, self._training_facts = seen, self._facts(feed)
            self._fed.add(self._training_facts)
        else:
            self._evaluates()

    def loss_seen(self, loss: torch.Tensor) -> None:
        """Note the loss, where training is traced."""
        if self._recorder is not None:
            self._recorder.loss_seen(loss)

    def forward_called(self, root: Root, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        """Notice an evaluation whose samples do not come from a loader.

        Only calls without gradients after the end of a training pass count as an evaluation.
        """
        self.seams.by_hand.look()
        self._heard = perf_counter()
        if self._recorder is not None:
            self._recorder.forward_called()
        if self._clock is not None and threading.current_thread() is threading.main_thread():
            if torch.is_grad_enabled():
                self._clock.trains()
            else:
                self._clock.computes()
        is_between = self._lead is not None and self._lead.is_over
        if is_between and not torch.is_grad_enabled():
            self._evaluates()

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Count a step of any optimizer."""
        self._stepped(optimizer)

    def stepped_by_hand(self) -> None:
        """Count a step that the program made without an optimizer."""
        self._stepped(None)

    def _stepped(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Count a step and, if it is the first one of its pass, an epoch."""
        self._heard = now = perf_counter()
        if not self.steps:
            self._early.update(self.seams.loader.built)
        self.steps += 1
        self._first_step_at = min(self._first_step_at, now)
        self._is_evaluating = False
        self._has_trained = True
        self._fed_steps |= self._fed
        self._fed.clear()
        if self._clock is not None:
            self._clock.stepped()
        if self._lead is not None and not self._lead.trains:
            assert self._training_facts is not None, "the batch came from a loader"
            self._lead.trains = True
            self._epochs += 1
            self._trained.add(self._training_facts)
        if self._recorder is not None:
            self._recorder.stepped(optimizer, self._epochs)
            if self._recorder.is_over:
                self._end("as planned")
        has_no_epochs = self._lead is None or self.steps - self._lead.steps > MAX_STEPS
        if has_no_epochs and self._is_long_enough:
            self._end("as planned")

    @property
    def _is_long_enough(self) -> bool:
        plan, enough_s = self._plan, self._plan.enough_s
        if self._clock is not None and not any(e.evaluation_s for e in self._clock.epochs):
            enough_s = max(enough_s, plan.seek_s)
        return self.steps >= plan.least_steps and perf_counter() - self._first_step_at >= enough_s

    @property
    def _is_enough(self) -> bool:
        if self._epochs < self._plan.epochs:
            return False
        if self._trials is not None and self._trials.timed is not None:
            return self._trials.is_over
        return self._is_long_enough or self._epochs >= self._plan.most_epochs

    def _facts(self, feed: Feed) -> LoaderFacts:
        """Return the facts that identify a feed's loader, even if it is rebuilt for each epoch.

        They are put together once in a pass: that takes as long as a small step.
        """
        if (known := self._known.get(feed)) is None:
            self._known[feed] = known = known_by(self.seams.loader.facts, feed)
        return known

    def _has_trained_on(self, feed: Feed) -> bool:
        """Return whether a feed's loader was trained on, even if its dataset has grown since.

        One that was rebuilt and differs in the length of its dataset alone may be that of an
        evaluation, which its first whole pass shows.
        """
        facts = self._facts(feed)
        if facts in self._trained or facts in self._idle or feed.loader in self._early:
            return facts in self._trained
        return _without_length(facts) in {_without_length(its) for its in tuple(self._trained)}

    def _evaluates(self) -> None:
        if self.steps and not self._is_evaluating:
            self._is_evaluating = True
            self._evaluations += 1

    def _end(self, how: Ended) -> None:
        if self._over is None or os.getpid() != self._process:
            return  # a rank that follows another, or a process that the program has forked
        if not self._ending.acquire(blocking=False):
            return
        self._timer.cancel()
        silent_s = perf_counter() - self._heard
        with suppress(LinkClosed):
            trace = None if self._recorder is None else self._recorder.trace
            trials = self._trials
            before = None if trials is None else trials.timed
            timed = () if self._clock is None else before or tuple(self._clock.epochs)
            tried = None if trials is None else trials.found
            self._over(
                Seen(
                    self.steps,
                    self._epochs,
                    self._evaluations,
                    how,
                    silent_s,
                    trace,
                    timed,
                    tried,
                    self._outputs.found,
                )
            )


def _without_length(facts: LoaderFacts) -> LoaderFacts:
    return replace(facts, dataset_len=None)
