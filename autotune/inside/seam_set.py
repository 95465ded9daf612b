"""All seams of one process: which of them are installed, in which order, and what connects them.

The seams and the hubs are the only places where autotune changes PyTorch in the program's process.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from autotune.inside.hubs import Hubs
from autotune.inside.listener import Listener
from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.autocast import AutocastSeam
from autotune.inside.seams.by_hand import ByHandSeam
from autotune.inside.seams.checkpoint import CheckpointSeam
from autotune.inside.seams.distribution import DistributionSeam
from autotune.inside.seams.fencing import FenceSeams
from autotune.inside.seams.flags import FlagsSeam
from autotune.inside.seams.forward import ForwardSeam
from autotune.inside.seams.imported import ImportedSeam
from autotune.inside.seams.loader import LoaderSeam
from autotune.inside.seams.optimizer import OptimizerSeam
from autotune.inside.seams.rates import RatesSeam
from autotune.inside.seams.scaling import ScalingSeam
from autotune.inside.seams.torch_settings import CallDetectionSeam, TorchSettingsSeam
from autotune.inside.seams.trainers import TrainersSeam
from autotune.inside.seams.transfer import TransferSeam
from autotune.program.profile import LoaderFacts

logger = logging.getLogger("autotune")
# After this many steps the seams that only watch the first steps are removed, and module calls are
# intercepted only for the classes of the roots (the outermost modules) that were called by then.
STEPS_UNTIL_ROOTS_ARE_KNOWN = 3


@dataclass
class StepSeams:
    """The seams at the steps of optimizers and schedulers, and at what scales gradients."""

    optimizer: OptimizerSeam
    accumulation: AccumulationSeam
    scaling: ScalingSeam
    rates: RatesSeam
    by_hand: ByHandSeam


@dataclass
class ModelSeams:
    """The seams at the calls of models, and at the copies of what models are called with."""

    forward: ForwardSeam
    distribution: DistributionSeam
    checkpoint: CheckpointSeam
    autocast: AutocastSeam
    transfer: TransferSeam


@dataclass
class WatchingSeams:
    """The seams that only watch the program's first steps."""

    uses: CallDetectionSeam
    flags: FlagsSeam


class SeamSet:
    """All seams of one process; ``Steering`` acts through its members.

    They are installed on the main thread before the program starts. Then the program's calls of
    PyTorch run the seams, on whatever thread it makes these calls.

    Args:
        listener: Is told of batches, calls and steps while it measures. None for a plain run under
            a config: there iteration and the loss are left alone, and counting of steps stops as
            soon as the model is known.
        target: The training loader as the search saw it; None while it is not known.
        program_knobs: Knobs of the loader that the program sets itself, so that its loader may
            differ from ``target`` in them.
    """

    def __init__(
        self,
        listener: Listener | None,
        target: LoaderFacts | None,
        program_knobs: Sequence[str] = (),
        group: Group = ALONE,
    ) -> None:
        self._listener = listener
        self.group = group
        self._steps = 0
        self.hubs = hubs = Hubs()
        optimizer = OptimizerSeam(self._about_to_train, self._stepped, self._built)
        living = lambda: optimizer.optimizers  # noqa: E731
        accumulation, rates = AccumulationSeam(living), RatesSeam(self._say)
        distribution = DistributionSeam(group, living, accumulation, hubs.backward)
        forward = ForwardSeam(listener, living, distribution.route)
        self.steps = StepSeams(
            optimizer=optimizer,
            accumulation=accumulation,
            scaling=ScalingSeam(living),
            rates=rates,
            by_hand=ByHandSeam(optimizer, forward, self._stepped_by_hand),
        )
        self.model = ModelSeams(
            forward, distribution, CheckpointSeam(), AutocastSeam(), TransferSeam()
        )
        self.process = TorchSettingsSeam()
        forward.on_root = self._root_called
        self.trainers = TrainersSeam(
            endless=listener is not None and listener.is_endless,
            rehearsal=listener.rehearsal if listener is not None else None,
        )
        self.loader = LoaderSeam(
            hubs.iterate, listener, accumulation, target, program_knobs, rates.fed
        )
        self.watched = WatchingSeams(CallDetectionSeam(), FlagsSeam())
        self.fence = FenceSeams(group, hubs.saving)
        self._imported = ImportedSeam()
        # The order of the listeners, the outermost first: what changes the gradients with which a
        # pass begins comes before what looks at the pass, and gradients are averaged before they
        # are unscaled.
        measuring = () if listener is None else (listener,)
        hubs.backward.order = (
            *measuring,
            accumulation,
            self.steps.scaling,
            self.steps.by_hand,
            distribution,
        )
        hubs.steps.order = (accumulation, self.steps.scaling, optimizer, rates)
        hubs.saving.order = measuring
        hubs.iterate.order = (self.loader, self.loader.passes, self.trainers)

    def install(self, *, is_late: bool = False) -> None:
        """Install what watches or changes the program.

        A later config may need nearly any of it; without a listener the config is final.

        Args:
            is_late: Whether the program already runs, so that it may have imported by name what the
                seams replace: under ``autotune.apply()``, and in processes that it starts.
        """
        if is_late:
            self._imported.note()
        self._steps = 0
        is_measured = self._listener is not None
        self.loader.install()
        self.steps.optimizer.install(watches=is_measured)
        self.model.distribution.install()
        if is_measured or self._acts_at_calls or self.process.is_needed:
            self.model.forward.install()
        self._join()
        if is_measured or self.steps.accumulation.is_needed:
            self.steps.accumulation.install()
        # What torch was built for, not what is there: to ask the driver for devices would fix which
        # of them the program sees, and keep processes that it forks from using any.
        may_copy = is_measured and torch.backends.cuda.is_built()
        if self.model.transfer.is_needed or may_copy:
            self.model.transfer.install()
        if is_measured or self.model.autocast.is_needed:
            self.model.autocast.install()
        if is_late:
            self._imported.spread()

    @property
    def _acts_at_calls(self) -> bool:
        model = self.model
        return any(s.is_needed for s in (model.forward, model.checkpoint, model.distribution))

    def _join(self) -> None:
        """Have the hubs call what the config needs, or all that any config may need later."""
        listener, hubs = self._listener, self.hubs
        is_measured = listener is not None
        hubs.steps.join(self.steps.optimizer)
        for seam in (self.steps.accumulation, self.steps.scaling):
            if is_measured or seam.is_needed:
                hubs.backward.join(seam)
                hubs.steps.join(seam)
        if is_measured or self.steps.rates.is_needed:
            hubs.steps.join(self.steps.rates)
        # Without a listener too, some seams act only at the first steps. A program without a torch
        # optimizer reaches that moment through this seam alone.
        waiting = (self.model.forward, self.model.checkpoint, self.process)
        waits = self.loader.misses_target or any(seam.is_needed for seam in waiting)
        if not self.steps.by_hand.rests and (is_measured or waits):
            self.steps.by_hand.install(self._listener)
            hubs.backward.join(self.steps.by_hand)
        if listener is not None:
            hubs.iterate.join(self.trainers)
            hubs.backward.join(listener)
            hubs.saving.join(listener)

    def watch(self) -> None:
        """Watch the program's first, untouched steps; call it before the program starts."""
        self.watched.uses.install()
        self.watched.flags.install()

    def remove(self) -> None:
        """Put PyTorch back as it was, whichever seams are installed.

        Seams that replaced the same attribute are removed in the reverse order of installation.
        """
        self.hubs.remove()
        for seam in (
            self._imported,
            self.fence,
            self.model.transfer,
            self.model.autocast,
            self.watched.uses,
            self.watched.flags,
            self.model.checkpoint,
            self.model.forward,
            self.trainers,
            self.steps.accumulation,
            self.steps.by_hand,
            self.model.distribution,
            self.steps.optimizer,
        ):
            seam.remove()

    def _say(self, sentence: str) -> None:
        """Warn a user who trains, once for all ranks; a search reports it with its result."""
        if self._listener is None and self.group.is_first:
            logger.warning("autotune: %s.", sentence)

    def _built(self, optimizer: Optimizer) -> None:
        self.model.distribution.groups_changed()
        self.hubs.steps.see(optimizer)

    def _root_called(self, root: nn.Module) -> None:
        """Do what must be done before a model's first call, which may come late, as in a new fold.

        cuDNN keeps the algorithms of that call, whatever is set later. A process that the program
        forks, such as a worker that calls a model, has settings of its own.
        """
        self.process.settle(in_forks=False)
        if self._listener is None and not self._acts_at_calls:
            self.model.forward.remove()  # at once: a change of the calls makes torch compile again
        if self._steps >= STEPS_UNTIL_ROOTS_ARE_KNOWN:
            self.model.checkpoint.add([root])

    def _about_to_train(self) -> None:
        """Do what has waited for the end of the program's set-up, just before its first step.

        A missing training loader is only warned of in one process, which can train without the
        options of that loader. Several ranks cannot: they would not share out its data.
        """
        self.process.settle()
        self.loader.built.training_begins()
        if self.loader.misses_target and self.group.world_size > 1:
            raise LookupError(self.loader.describe_missing_target())
        if self.loader.misses_target:
            self.steps.rates.feeds_target = False
            logger.warning("autotune: %s", self.loader.describe_missing_target())

    def _stepped(self, optimizer: Optimizer) -> None:
        if not self.steps.by_hand.rests:
            self._watch_no_more_by_hand()
        if self.model.distribution.has_ranks:
            self.model.distribution.stepped(optimizer)
        self._steps += 1
        if self._steps == STEPS_UNTIL_ROOTS_ARE_KNOWN:
            self._roots_are_known()
        if self._listener is not None:
            self._listener.optimizer_stepped(optimizer)
        # Without a listener nobody needs the steps any more, and each hook costs time in each step.
        elif self._steps >= STEPS_UNTIL_ROOTS_ARE_KNOWN and not self.model.distribution.has_ranks:
            self.hubs.steps.leave(self.steps.optimizer)

    def _stepped_by_hand(self) -> None:
        self.steps.optimizer.begin()
        self._steps += 1
        if self._steps == STEPS_UNTIL_ROOTS_ARE_KNOWN:
            self._roots_are_known()
        if self._listener is not None:
            self._listener.stepped_by_hand()
        elif self._steps >= STEPS_UNTIL_ROOTS_ARE_KNOWN:
            self._watch_no_more_by_hand()

    def _watch_no_more_by_hand(self) -> None:
        self.steps.by_hand.rest()
        self.hubs.backward.leave(self.steps.by_hand)

    def _roots_are_known(self) -> None:
        """Remove what watches the first steps, and act on the models that were called by now."""
        self.watched.uses.remove()
        self.watched.flags.remove()
        if self._listener is not None or self._acts_at_calls:
            self.model.forward.narrow()
        roots = self.model.forward.roots
        self.model.checkpoint.act_on(roots)
        devices = {p.device.type for root in roots for p in root.parameters()}
        if not self.model.transfer.is_needed and devices == {"cpu"}:
            self.model.transfer.remove()
