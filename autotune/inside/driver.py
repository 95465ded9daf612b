"""Driver: at each border between two steps it counts, times, and does what the parent asks."""

from __future__ import annotations

import math
import os
import queue
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from autotune.config import KnobValue
from autotune.inside.compiled import CompileCounter, frames_compiled
from autotune.inside.dissect import Dissection
from autotune.inside.feed import Feed, first_tensor, steps_per_epoch
from autotune.inside.listener import Listener
from autotune.inside.meter import Flow, Instruments, Meter
from autotune.inside.observe import Observer
from autotune.inside.seams import Seams, loose_knobs
from autotune.inside.seams.forward import Root
from autotune.inside.seams.parts import PartsClock
from autotune.measurement import Memory
from autotune.probes.host_load import HostLoad
from autotune.probes.torch_memory import TorchMemory
from autotune.wire import (
    Close,
    Dissect,
    Dissected,
    Link,
    Measure,
    Measured,
    NotFinite,
    Progress,
    Ready,
    Start,
    ToRig,
)

STEPS_ALIKE = 4  # a step whose calls without gradients no recent step had holds a validation pass
SIGN_OF_LIFE_S = 5.0
PROGRESS_S = 0.3  # a message costs some 0.1 ms, and nobody reads faster
TOKEN_DTYPES = {torch.int64, torch.int32}  # what embeddings take


@dataclass
class _Counts:
    """What happened since the last border."""

    batch_samples: int = 0
    forward_samples: int = 0
    batches: int = 0
    wait_s: float = 0.0
    tokens: int = 0
    calls_without_grad: int = 0


class Driver(Listener):
    """Runs in the program's main thread, inside the calls that the seams intercept.

    A border is where the training loader is asked for a batch after an optimizer step; for programs
    without a DataLoader, the end of an optimizer step. At a border the driver may wait for the
    parent as long as it takes: the program stands still there, between two steps.

    Args:
        link: To the parent.
        commands: What the parent sends, read from the link by another thread.
        start: The program, and the config it starts under.
        started: When the process began to run the program, by ``perf_counter``.
        quit_process: Ends the process at once.
    """

    def __init__(
        self,
        link: Link,
        commands: queue.SimpleQueue[ToRig],
        start: Start,
        started: float,
        quit_process: Callable[[], None],
    ) -> None:
        self._link = link
        self._commands = commands
        self._setting = start.setting
        self._started = started
        self._quit = quit_process
        self.config_reads: Mapping[str, KnobValue] = {}
        self.seams = (
            Seams(self, start.setting.loader, loose_knobs(start.setting))
            if start.setting
            else Seams(self, target=None)
        )
        self._observer = Observer(self.seams)
        self._meter: Meter | None = None
        self._dissection: Dissection | None = None
        self._memory = TorchMemory("cpu")
        self._compiled = CompileCounter()
        self._host_load = HostLoad(os.getppid())
        self._feed: Feed | None = None
        self._feed_steps = 0
        self._feed_samples = 0
        self._samples_between_starts: int | None = None
        self._loss: torch.Tensor | None = None
        self._counts = _Counts()
        self._usual_calls = deque([0], maxlen=STEPS_ALIKE)
        self._batches_per_step = 1
        self._stepped = False
        self._sent = started
        self.steps = 0

    def before_batch(self, feed: Feed) -> None:
        """End the step that went before, if an optimizer has stepped since the last border."""
        if feed is not self._feed and not (self._observer.is_training(feed) and self._leads(feed)):
            return
        is_new = self._feed is not feed
        is_part_of_the_step = self._feed is not None and self._feed_steps == 0
        if is_new and not is_part_of_the_step:
            self._disturb()  # the program comes back to its loop after doing something else
        if self._stepped:
            self._border()
        if is_new:
            if self._feed_steps > 1:
                self._samples_between_starts = self._feed_samples
            self._feed, self._feed_steps, self._feed_samples = feed, 0, 0
        if (clock := self._clock) is not None:
            clock.asked()

    def after_batch(self, feed: Feed, samples: int, wait_s: float) -> None:
        """Count a batch of a training loader; others only disturb the block."""
        if (clock := self._clock) is not None:
            clock.leave()
        is_known = feed is self._feed
        if not is_known:
            self._observer.batch_handed_out(feed)
            if self._observer.loaders is not None and not self._observer.is_training(feed):
                self._disturb()
                return
        if is_known or self._leads(feed):
            self._counts.batch_samples += samples
            self._counts.batches += 1
        self._counts.wait_s += wait_s

    def never_ends(self, feed: Feed) -> bool:
        """A training loader starts over: code at the end of an epoch does not run in a rig."""
        return feed is self._feed or self._observer.is_training(feed)

    def epoch_ended(self, feed: Feed) -> None:  # noqa: ARG002
        """From here on there are more steps than the program planned: its schedules stand still."""
        self.seams.scheduler.hold()

    def forward_called(self, root: Root, args: tuple[Any, ...]) -> None:
        """Count samples at the largest model, for programs without a DataLoader."""
        if root.parameters < self.seams.forward.most_parameters:
            return
        if not torch.is_grad_enabled():
            self._counts.calls_without_grad += 1
            return
        tensor = first_tensor(args)
        if tensor is not None and tensor.dim() > 1 and tensor.dtype in TOKEN_DTYPES:
            self._counts.tokens += tensor.numel()
        self._counts.forward_samples += int(tensor.shape[0]) if tensor is not None else 1

    def loss_seen(self, loss: torch.Tensor) -> None:
        """Keep the last loss without looking at it: that would sync the device."""
        if loss.numel() == 1:
            self._loss = loss.detach()

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the step; without a DataLoader this is the border."""
        if not self._observer.optimizer_stepped(optimizer):
            return
        self.steps += 1
        self._stepped = True
        if self._observer.loaders is None:
            self._counts = _Counts()  # the first step's own: what came before it was set-up
        elif not self._observer.loaders:
            self._border()

    def program_ended(self) -> None:
        """Report what was measured so far, when the program ends in the middle of a window."""
        if self._meter is not None and self._meter.finish("the program ended"):
            self._report(self._meter)

    @property
    def _clock(self) -> PartsClock | None:
        return None if self._dissection is None else self._dissection.clock

    def _leads(self, feed: Feed) -> bool:
        loaders = self._observer.loaders
        return not loaders or feed.loader is loaders[0]

    def _disturb(self) -> None:
        task = self._meter or self._dissection
        if task is not None:
            task.disturb()

    def _border(self) -> None:
        counts = self._counts
        is_usual = counts.calls_without_grad in self._usual_calls
        self._usual_calls.append(counts.calls_without_grad)
        self._batches_per_step = max(1, counts.batches)
        self._counts, self._stepped = _Counts(), False
        samples = counts.batch_samples if self._observer.loaders else counts.forward_samples
        self._feed_steps += 1
        self._feed_samples += samples
        if not is_usual:
            self._disturb()  # a validation pass; a teacher model is called alike in every step
        if self._dissection is not None:
            self._dissect(self._dissection, samples, counts.wait_s)
            return
        if self._meter is None:
            self._observe(samples)
            return
        if not self._meter.step(samples, counts.wait_s, counts.tokens):
            if perf_counter() - self._sent > SIGN_OF_LIFE_S:
                self._progress(self._meter)
            return
        meter = self._meter
        loss = meter.losses[-1] if meter.losses else None
        if loss is not None and not math.isfinite(loss):
            assert self._setting is not None, "a window is measured under a setting"
            self._link.send(NotFinite(self._setting.config))
            self._obey()
        elif meter.is_done:
            self._report(meter)
            self._obey()
        else:
            if perf_counter() - self._sent > PROGRESS_S:
                self._progress(meter)
            meter.go_on()

    def _progress(self, meter: Meter) -> None:
        rate = meter.blocks[-1].samples_per_s if meter.blocks else 0.0
        self._link.send(Progress(meter.phase, rate))
        self._sent = perf_counter()

    def _observe(self, samples: int) -> None:
        if samples:
            self._observer.step_ended(samples)
        if not self._observer.is_complete:
            return
        if self.seams.loader.misses_target:
            raise LookupError(self.seams.loader.describe_missing_target())
        self._memory = TorchMemory(self._observer.device())
        profile = self._observer.profile(self.config_reads)
        self._link.send(Ready(profile, perf_counter() - self._started))
        self._obey()

    def _dissect(self, dissection: Dissection, samples: int, wait_s: float) -> None:
        dissection.step(samples, wait_s)
        if dissection.is_done:
            self._dissection = None
            self._link.send(Dissected(dissection.anatomy))
            self._obey()

    def _report(self, meter: Meter) -> None:
        measurement = meter.measurement(self._memory.read(Memory()))
        self._link.send(Measured(replace(measurement, compilation=self._compiled.read())))
        self._compiled.reset()

    def _obey(self) -> None:
        """Wait for the parent's next command and carry it out."""
        match self._commands.get():
            case Measure(setting, plan):
                before = self._setting.config if self._setting else setting.baseline
                if setting.config != before:
                    self.seams.scheduler.hold()
                self.seams.apply(setting, since=self._setting)
                self._setting = setting
                self._memory.reset()
                self._loss = None
                self._meter = Meter(plan, self._instruments())
                self._meter.disturb()  # the switch itself falls into the first step
            case Dissect(plan):
                self._meter = None
                self._dissection = Dissection(
                    plan,
                    self._instruments(),
                    self.seams,
                    self._feed if len(self._observer.loaders or ()) == 1 else None,
                    counts_flops=frames_compiled() == 0,
                )
            case Close():
                self._quit()
            case other:
                raise AssertionError(f"unexpected command {other!r}")

    def _instruments(self) -> Instruments:
        return Instruments(
            self._flow, self._sync, self._read_loss, self._activity, self._host_load.read
        )

    def _activity(self) -> int:
        """Grows while torch compiles, and while its allocator takes memory from the device."""
        return frames_compiled() + self._memory.segments_taken()

    def _flow(self) -> Flow:
        feed = self._feed
        if feed is None or not self._observer.loaders:
            return Flow()
        batches = self._batches_per_step
        ready = feed.ready_batches
        return Flow(
            buffered_steps=math.ceil(feed.buffered_batches / batches),
            cycle_steps=max(1, math.ceil(feed.num_workers / batches)),
            steps_per_epoch=steps_per_epoch(feed, batches),
            samples_per_epoch=self._samples_between_starts or feed.samples_per_epoch,
            start_s=feed.start_s,
            starts=feed.starts,
            ready_steps=None if ready is None else ready / batches,
            has_idle_workers=feed.has_idle_workers,
        )

    def _sync(self) -> None:
        if self._observer.device() != "cpu":
            torch.accelerator.synchronize()

    def _read_loss(self) -> float | None:
        return None if self._loss is None else float(self._loss.item())
