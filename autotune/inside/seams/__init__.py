"""The seams: the only places where autotune changes PyTorch; each a file, installed and removed."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.optim import Optimizer

from autotune.inside.data.carried import CarriedState
from autotune.inside.listener import Listener
from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.autocast import AutocastSeam
from autotune.inside.seams.backward import BackwardSeam
from autotune.inside.seams.by_hand import ByHandSeam
from autotune.inside.seams.call_detection import CallDetectionSeam
from autotune.inside.seams.checkpoint import CheckpointSeam
from autotune.inside.seams.clearing import ClearingSeam
from autotune.inside.seams.distribution import DistributionSeam
from autotune.inside.seams.downloads import DownloadsSeam
from autotune.inside.seams.flags import FlagsSeam
from autotune.inside.seams.foreign_loaders import ForeignLoaders
from autotune.inside.seams.forward import ForwardSeam
from autotune.inside.seams.guard import GuardSeam
from autotune.inside.seams.imported import ImportedSeam
from autotune.inside.seams.loader import LoaderSeam
from autotune.inside.seams.loop_watch import LoopWatchSeam
from autotune.inside.seams.losses import LossesSeam
from autotune.inside.seams.optimizer import OptimizerSeam
from autotune.inside.seams.overlay import OverlaySeam
from autotune.inside.seams.rank_output import RankOutputSeam, TellSavesSeam, mute_output
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
STEPS_UNTIL_ROOTS_ARE_KNOWN = 3


def _has_device() -> bool:
    """Tell whether there is anything to copy to."""
    return torch.accelerator.is_available()


def _unguarded() -> list[Path]:
    """Where a program may do as it likes."""
    return [Path.home() / ".cache", Path(tempfile.gettempdir())]


class SeamSet:
    """All seams of one process; ``Steering`` acts through its members.

    Args:
        listener: Who measures; None for a plain run under a config, where iteration and the loss
            are left alone and counting stops as soon as the model is known.
        target: The training loader, when it is known.
        program_knobs: Knobs that the program sets itself.
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
        self._group = group
        self._steps = 0
        self.accumulation = AccumulationSeam()
        self.scaling = ScalingSeam()
        self.clearing = ClearingSeam(self.accumulation)
        self.trainers = TrainersSeam(
            endless=listener is not None and listener.is_endless,
            rehearsal=listener.rehearsal if listener is not None else None,
        )
        adopt = self.trainers.adopt if listener is not None else lambda: None
        self.rates = RatesSeam(self._say)
        self.loader = LoaderSeam(
            listener, self.accumulation, target, program_knobs, adopt, self.rates.fed
        )
        self.optimizer = OptimizerSeam(
            self.accumulation,
            self.scaling,
            self.rates,
            self._about_to_train,
            self._stepped,
            self._groups_changed,
        )
        self.distribution = DistributionSeam(
            group, lambda: self.optimizer.optimizers, self.accumulation
        )
        self.forward = ForwardSeam(
            listener, lambda: self.optimizer.optimizers, self.distribution.route
        )
        self.by_hand = ByHandSeam(
            lambda: self.optimizer.optimizers,
            lambda: self.forward.roots,
            self._stepped_by_hand,
            lambda: self.optimizer.is_stepping,
        )
        self.checkpoint = CheckpointSeam()
        self.carried = CarriedState()
        self.process = TorchSettingsSeam()
        self.transfer = TransferSeam()
        self.scheduler = SchedulerSeam(self.accumulation)
        self.autocast = AutocastSeam()
        self.uses = CallDetectionSeam()
        self.loop_watch = LoopWatchSeam(
            lambda: self.optimizer.optimizers, lambda: self.scheduler.schedulers
        )
        self.losses = LossesSeam()
        self.foreign_loaders = ForeignLoaders()
        self.flags = FlagsSeam()
        self._backward = BackwardSeam(listener) if listener is not None else None
        self.downloads = DownloadsSeam()
        self._trackers: TrackersSeam | None = None
        self._files: OverlaySeam | GuardSeam | RankOutputSeam | None = None
        self._telling: TellSavesSeam | None = None
        self._imported = ImportedSeam()
        self._watches_loop = False

    def install(self) -> None:
        """Install the seams; without a listener, only those that the applied setting needs."""
        self._steps = 0
        self.loader.install()
        self.optimizer.install(watches=self._listener is not None)
        self.clearing.install(watches=self._listener is not None)
        self.distribution.install()
        if (
            self._listener is not None
            or self.forward.is_needed
            or self.checkpoint.is_needed
            or self.distribution.is_needed
        ):
            self.forward.install()
        if self._listener is not None or self._acts_on_first_steps:
            self.by_hand.install()
        if self._backward is not None:
            self._backward.install()
        if self._listener is not None or self.scaling.is_needed:
            self.scaling.install()
        if self._listener is not None or self.accumulation.steps > 1:
            self.accumulation.install()
        if self._listener is not None or self.accumulation.steps > 1:
            self.scheduler.install()
        if self.transfer.is_needed or (self._listener is not None and _has_device()):
            self.transfer.install()
        if self._listener is not None or self.autocast.is_needed:
            self.autocast.install()

    @property
    def _acts_on_first_steps(self) -> bool:
        """Something waits until the models are known, or until the program trains."""
        seams = (self.forward, self.checkpoint, self.process)
        return self.loader.misses_target or any(seam.is_needed for seam in seams)

    @property
    def group(self) -> Group:
        """The processes that train together."""
        return self._group

    def _say(self, sentence: str) -> None:
        """Tell a user who trains; a search says it with its result."""
        if self._listener is None and self._group.is_first:
            logger.warning("autotune: %s.", sentence)

    def watch(self) -> None:
        """Watch, while the first steps run, what the program uses and takes by itself."""
        self.uses.install()
        self.flags.install()
        self.forward.watch(self.checkpoint.watch, self.carried)
        self.loop_watch.install()
        self._watches_loop = True
        self.losses.install()
        self.forward.returned = self.losses.returned
        self.by_hand.note_transforms()
        self.foreign_loaders.install()

    def guard_files(self, start: Start, tell: Callable[[str], None] = lambda _: None) -> None:
        """Keep a trial from changing the user's files, and from reporting to experiment trackers.

        Args:
            start: Says which fence is around this process.
            tell: Told what the user should know of the program's files.
        """
        shadow_dir = Path(start.shadow_dir)
        self._trackers = TrackersSeam(shadow_dir)
        self._trackers.install()
        if not start.bare:
            self.downloads.install()
        if start.fence is FenceKind.OVERLAY:
            self._files = OverlaySeam(start.devices, start.max_scratch_bytes, tell)
        else:
            places = [*map(Path, start.open_places)]
            self._files = GuardSeam(shadow_dir, places, is_shared=bool(self._group.started_by))
        self._files.install()

    def silence(self, shadow_dir: Path, open_places: Sequence[Path] = ()) -> None:
        """Let the first of several ranks alone print and write files.

        Args:
            shadow_dir: Where another rank's files go.
            open_places: Folders in which every rank writes, besides those for temporary files.
        """
        if self._group.is_first:
            place_of = self._files.place_of if isinstance(self._files, GuardSeam) else str
            self._telling = TellSavesSeam(self._group, place_of)
            self._telling.install()
        else:
            mute_output()
            if self._trackers is None:
                self._trackers = TrackersSeam(shadow_dir)
                self._trackers.install()
            self._files = RankOutputSeam(shadow_dir, [*_unguarded(), *open_places], self._group)
            self._files.install()

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        seams = (self.transfer, self.autocast, self.uses, self.flags, self.checkpoint, self.forward)
        files = (self._telling, self._files, self._trackers, self.downloads)
        self._end_loop_watch()
        self._imported.remove()
        for seam in (*files, self._backward, *seams, self.process):
            if seam is not None:
                seam.remove()
        self._leave_losses()
        self.trainers.remove()
        self.scheduler.remove()
        self.accumulation.remove()
        self.scaling.remove()
        self.by_hand.remove()
        self.foreign_loaders.remove()
        self.distribution.remove()
        self.clearing.remove()
        self.optimizer.remove()
        self.loader.remove()

    def _about_to_train(self) -> None:
        """The program's own set-up is over, its first step comes now."""
        self.process.settle()
        self.loader.training_begins()
        if self.loader.misses_target and self._group.world_size > 1:
            raise LookupError(self.loader.describe_missing_target())
        if self.loader.misses_target:
            self.rates.misses_target()
            logger.warning("autotune: %s", self.loader.describe_missing_target())

    def install_late(self) -> None:
        """Install the seams in a program that has imported by name what they replace."""
        self._imported.note()
        self.install()
        self._imported.spread()

    def _watch_loop(self) -> None:
        """Watch what the program does by its own hand from the first step to the third."""
        if self._steps == 1:
            self.loop_watch.begin()
            self.optimizer.watch(self.loop_watch.before_step, self.loop_watch.after_step)
        elif self._steps == STEPS_UNTIL_ROOTS_ARE_KNOWN:
            self._end_loop_watch()

    def _end_loop_watch(self) -> None:
        if self._watches_loop:
            self._watches_loop = False
            self.loop_watch.remove()
            self.optimizer.unwatch()

    def _leave_losses(self) -> None:
        self.forward.returned = None
        self.losses.remove()

    def _groups_changed(self) -> None:
        self.distribution.groups_changed()

    def _stepped(self, optimizer: Optimizer) -> None:
        self.by_hand.rest()
        if self.distribution.is_settling:
            self.distribution.stepped(optimizer)
        self._count_step()
        if self._listener is not None:
            self._listener.optimizer_stepped(optimizer)
        elif self._steps >= STEPS_UNTIL_ROOTS_ARE_KNOWN and not self.distribution.is_settling:
            self.optimizer.stop_listening()

    def _stepped_by_hand(self) -> None:
        self.optimizer.begin()
        self._count_step()
        if self._listener is not None:
            self._listener.stepped_by_hand()
        elif self._steps >= STEPS_UNTIL_ROOTS_ARE_KNOWN:
            self.by_hand.rest()

    def _count_step(self) -> None:
        self._steps += 1
        if self._watches_loop:
            self._watch_loop()
        if self._steps == STEPS_UNTIL_ROOTS_ARE_KNOWN:
            self.uses.remove()
            self.flags.remove()
            self._leave_losses()
            self.foreign_loaders.remove()
            self.forward.narrow()
            self.checkpoint.act_on(self.forward.roots)
