"""All seams of one process: which of them are installed, in which order, and what connects them.

The seams and the hubs are the only places where autotune changes PyTorch in the program's process.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.optim import Optimizer

from autotune.inside.hubs import Hubs
from autotune.inside.listener import Listener
from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.autocast import AutocastSeam
from autotune.inside.seams.by_hand import ByHandSeam
from autotune.inside.seams.call_detection import CallDetectionSeam
from autotune.inside.seams.checkpoint import CheckpointSeam
from autotune.inside.seams.clearing import ClearingSeam
from autotune.inside.seams.distribution import DistributionSeam
from autotune.inside.seams.downloads import DownloadsSeam
from autotune.inside.seams.flags import FlagsSeam
from autotune.inside.seams.forward import ForwardSeam
from autotune.inside.seams.guard import GuardSeam
from autotune.inside.seams.imported import ImportedSeam
from autotune.inside.seams.loader import LoaderSeam
from autotune.inside.seams.optimizer import OptimizerSeam
from autotune.inside.seams.overlay import OverlaySeam
from autotune.inside.seams.rank_files import RankFilesSeam, mute_output
from autotune.inside.seams.rates import RatesSeam
from autotune.inside.seams.scaling import ScalingSeam
from autotune.inside.seams.scheduler import SchedulerSeam
from autotune.inside.seams.torch_settings import TorchSettingsSeam
from autotune.inside.seams.trackers import TrackersSeam
from autotune.inside.seams.trainers import TrainersSeam
from autotune.inside.seams.transfer import TransferSeam
from autotune.program.fence_options import FenceKind
from autotune.program.profile import LoaderFacts
from autotune.rig.wire import Start

logger = logging.getLogger("autotune")
# After this many steps the seams that only watch the first steps are removed, and module calls are
# intercepted only for the classes of the roots (the outermost modules) that were called by then.
STEPS_UNTIL_ROOTS_ARE_KNOWN = 3


class SeamSet:
    """All seams of one process; ``Steering`` acts through its members.

    The listener that measures the program, or ``steering.install()``, makes one before the program
    starts and calls ``install()`` on the main thread. Afterwards the program's own calls of PyTorch
    run the seams, so their callbacks run on the threads on which the program makes these calls.

    Args:
        listener: Is told of batches, calls and steps while it measures. None for a plain run under
            a config: there iteration and the loss are left alone, and counting of steps stops as
            soon as the model is known.
        target: The training loader as the search saw it; None while it is not known.
        program_knobs: Knobs of the loader that the program sets itself, so that its loader may
            differ from ``target`` in them.
        group: The processes that train together.
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
        self.optimizer = OptimizerSeam(self._about_to_train, self._stepped, self._built)
        self.accumulation = AccumulationSeam(self._living)
        self.scaling = ScalingSeam(self._living)
        self.clearing = ClearingSeam(self.accumulation)
        self.rates = RatesSeam(self._say)
        self.trainers = TrainersSeam(
            endless=listener is not None and listener.is_endless,
            rehearsal=listener.rehearsal if listener is not None else None,
        )
        self.loader = LoaderSeam(
            hubs.iterate, listener, self.accumulation, target, program_knobs, self.rates.fed
        )
        self.distribution = DistributionSeam(group, self._living, self.accumulation, hubs.backward)
        self.forward = ForwardSeam(listener, self._living, self.distribution.route)
        self.by_hand = ByHandSeam(self.optimizer, self.forward, self._stepped_by_hand)
        self.checkpoint = CheckpointSeam()
        self.process = TorchSettingsSeam()
        self.transfer = TransferSeam()
        self.scheduler = SchedulerSeam(self.accumulation)
        self.autocast = AutocastSeam()
        self.uses = CallDetectionSeam()
        self.flags = FlagsSeam()
        self.downloads = DownloadsSeam()
        self._trackers: TrackersSeam | None = None
        self._files: OverlaySeam | GuardSeam | None = None
        self._output: RankFilesSeam | None = None
        self._imported = ImportedSeam()
        # The order of the listeners, the outermost first: what changes the gradients with which a
        # pass begins comes before what looks at the pass, and gradients are averaged before they
        # are unscaled.
        measuring = () if listener is None else (listener,)
        hubs.backward.order = (
            *measuring,
            self.accumulation,
            self.scaling,
            self.by_hand,
            self.distribution.averaging,
        )
        hubs.steps.order = (
            self.accumulation,
            self.scaling,
            self.optimizer,
            self.rates,
        )
        hubs.saving.order = measuring
        hubs.iterate.order = (self.loader, self.loader.passes, self.trainers)

    def _living(self) -> list[Optimizer]:
        return self.optimizer.optimizers

    def install(self) -> None:
        """Install what watches or changes the program.

        With a listener nearly everything is installed, because a later config may need any of it.
        Without one, the config is final and only what it needs is installed.
        """
        self._steps = 0
        is_measured = self._listener is not None
        self.loader.install()
        self.optimizer.install(watches=is_measured)
        if is_measured or self.accumulation.is_needed:
            self.clearing.install()
        self.distribution.install()
        at_calls = (self.forward, self.checkpoint, self.distribution)
        if is_measured or any(seam.is_needed for seam in at_calls):
            self.forward.install()
        self._join()
        if is_measured or self.accumulation.is_needed:
            self.accumulation.install()
            self.scheduler.install()
        # What torch was built for, not what is there: to ask the driver for devices would fix which
        # of them the program sees, and keep processes that it forks from using any.
        may_copy = is_measured and torch.accelerator.current_accelerator() is not None
        if self.transfer.is_needed or may_copy:
            self.transfer.install()
        if is_measured or self.autocast.is_needed:
            self.autocast.install()

    def _join(self) -> None:
        """Have the hubs call what the config needs, or all that any config may need later."""
        listener, hubs = self._listener, self.hubs
        is_measured = listener is not None
        hubs.steps.join(self.optimizer)
        for seam in (self.accumulation, self.scaling):
            if is_measured or seam.is_needed:
                hubs.backward.join(seam)
                hubs.steps.join(seam)
        if is_measured or self.rates.is_needed:
            hubs.steps.join(self.rates)
        # Without a listener too, some seams act only at the first steps. A program without a torch
        # optimizer reaches that moment through this seam alone.
        waiting = (self.forward, self.checkpoint, self.process)
        waits = self.loader.misses_target or any(seam.is_needed for seam in waiting)
        if not self.by_hand.rests and (is_measured or waits):
            self.by_hand.install()
            hubs.backward.join(self.by_hand)
        if listener is not None:
            hubs.iterate.join(self.trainers)
            hubs.backward.join(listener)
            hubs.saving.join(listener)

    def install_late(self) -> None:
        """Install the seams in a program that may have imported torch's functions by name already.

        ``autotune.apply()`` needs it, and so do processes that the program has started for ranks.
        """
        self._imported.note()
        self.install()
        self._imported.spread()

    def watch(self) -> None:
        """Watch what the program uses and does in its first, untouched steps.

        Call it before the program starts, in a process that observes the program for its profile.
        Most of these seams are removed again after ``STEPS_UNTIL_ROOTS_ARE_KNOWN`` steps.
        """
        self.uses.install()
        self.flags.install()

    def guard_files(self, start: Start) -> None:
        """Keep a trial from changing the user's files, and from reporting to experiment trackers.

        Call it before ``install()``, which wraps functions that are redirected here.
        """
        shadow_dir = Path(start.shadow_dir)
        self._trackers = TrackersSeam(shadow_dir)
        self._trackers.install()
        if not start.bare:  # a bare run is not to be changed more than the fence requires
            self.downloads.install()
        if start.fence is FenceKind.OVERLAY:
            self._files = OverlaySeam()
        else:
            places = [*map(Path, start.open_places)]
            self._files = GuardSeam(shadow_dir, places, is_shared=bool(self.group.started_by))
            self.hubs.saving.join(self._files, within=True)
        self._files.install()

    def silence(self, shadow_dir: Path, open_places: Sequence[Path] = ()) -> None:
        """Let only the first of several ranks print and write the program's files."""
        if self.group.is_first:
            return
        mute_output()
        if self._trackers is None:  # a guarded rank has them already
            self._trackers = TrackersSeam(shadow_dir)
            self._trackers.install()
        unguarded = [Path.home() / ".cache", Path(tempfile.gettempdir()), *open_places]
        self._output = RankFilesSeam(shadow_dir, unguarded)
        self._output.install()
        self.hubs.saving.join(self._output, within=True)

    def remove(self) -> None:
        """Put PyTorch back as it was, whichever seams are installed.

        Seams that replaced the same attribute are removed in the reverse order of installation.
        """
        self.hubs.remove()
        for seam in (
            self._imported,
            self._output,
            self._files,
            self._trackers,
            self.downloads,
            self.transfer,
            self.autocast,
            self.uses,
            self.flags,
            self.checkpoint,
            self.forward,
            self.trainers,
            self.scheduler,
            self.accumulation,
            self.by_hand,
            self.distribution,
            self.clearing,
            self.optimizer,
        ):
            if seam is not None:
                seam.remove()

    def _say(self, sentence: str) -> None:
        """Warn a user who trains, once for all ranks; a search reports it with its result."""
        if self._listener is None and self.group.is_first:
            logger.warning("autotune: %s.", sentence)

    def _built(self, optimizer: Optimizer) -> None:
        """Set the process's settings again, because the program's set-up may have changed them.

        Models are called later, and cuDNN keeps the algorithms of their first call.
        """
        self.process.settle()
        self.distribution.groups_changed()
        self.hubs.steps.see(optimizer)

    def _about_to_train(self) -> None:
        """Do what has waited for the end of the program's set-up, just before its first step.

        A missing training loader is only warned of in one process, which can train without the
        options of that loader. Several ranks cannot: they would not share out its data.

        Raises:
            LookupError: if several ranks train and no loader is the one that was tuned.
        """
        self.process.settle()
        self.loader.built.training_begins()
        if self.loader.misses_target and self.group.world_size > 1:
            raise LookupError(self.loader.describe_missing_target())
        if self.loader.misses_target:
            self.rates.feeds_target = False
            logger.warning("autotune: %s", self.loader.describe_missing_target())

    def _stepped(self, optimizer: Optimizer) -> None:
        if not self.by_hand.rests:
            self._watch_no_more_by_hand()
        if self.distribution.is_settling:
            self.distribution.stepped(optimizer)
        self._steps += 1
        if self._steps == STEPS_UNTIL_ROOTS_ARE_KNOWN:
            self._roots_are_known()
        if self._listener is not None:
            self._listener.optimizer_stepped(optimizer)
        # Without a listener nobody needs the steps any more, and each hook costs time in each step.
        elif self._steps >= STEPS_UNTIL_ROOTS_ARE_KNOWN and not self.distribution.is_settling:
            self.hubs.steps.leave(self.optimizer)

    def _stepped_by_hand(self) -> None:
        self.optimizer.begin()
        self._steps += 1
        if self._steps == STEPS_UNTIL_ROOTS_ARE_KNOWN:
            self._roots_are_known()
        if self._listener is not None:
            self._listener.stepped_by_hand()
        elif self._steps >= STEPS_UNTIL_ROOTS_ARE_KNOWN:
            self._watch_no_more_by_hand()

    def _watch_no_more_by_hand(self) -> None:
        self.by_hand.rest()
        self.hubs.backward.leave(self.by_hand)

    def _roots_are_known(self) -> None:
        """Remove what watches the first steps, and act on the models that were called by now."""
        self.uses.remove()
        self.flags.remove()
        self.forward.narrow()
        roots = self.forward.roots
        self.checkpoint.act_on(roots)
        devices = {p.device.type for root in roots for p in root.parameters()}
        if not self.transfer.is_needed and devices == {"cpu"}:
            self.transfer.remove()
