"""The options of the training loader's worker processes: ``workers`` and its hidden refinements.

Sources: PyTorch documentation, ``torch.utils.data``; Python documentation, ``multiprocessing``
("Contexts and start methods").
"""

from __future__ import annotations

from typing import ClassVar

from autotune.knobs.base import Here, Knob
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.may_change import MayChange
from autotune.program.profile import Profile

CANDIDATES = (0, 1, 2, 4, 8, 12, 16, 24, 32)
PREFETCH_DEFAULT = 2  # of torch.utils.data.DataLoader with workers; without workers it is None
DEPTHS = (PREFETCH_DEFAULT, 4, 8)
MAX_SHARE_OF_EPOCH = 1 / 8  # seen: 16 of 23 batches took 5 s to settle and gained nothing


class Workers(Knob):
    """Processes that load batches in parallel with the training step, kept between epochs.

    Workers help where loading takes longer than a training step; they cost CPU cores and memory,
    since each holds a copy of the dataset object. 0 loads in the training process, which is fastest
    for cheap datasets. The program's own number keeps its workers or not as the program does.
    """

    name = "workers"
    changes = MayChange.NOTHING
    value_type = int
    flag_names = ("num_workers", "workers", "nworkers", "dataloader_num_workers", "loader_workers")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return candidates from 0 up to one and a half times the cores of a rank.

        More workers than cores can pay because loading often waits for storage.
        """
        if refusal := here.profile.without_training_loader:
            return refusal
        # Only the dataset's code could divide the samples among workers (get_worker_info()).
        if here.profile.loaders[0].iterable:
            return NotOffered("the dataset is iterable: each worker may repeat all its samples")
        return here.profile.without_workers or Domain(_candidates(here))

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        repeats = any(loader.iterable for loader in here.profile.loaders)
        return None if repeats or flag.number is None else Domain(_candidates(here))

    def current(self, profile: Profile) -> KnobValue:
        return profile.loaders[0].num_workers


def _candidates(here: Here) -> tuple[int, ...]:
    # Even on one core a worker can wait for storage while the program computes.
    cores = here.hardware.cpu_quota // here.profile.ranks.world_size
    most = max(2, cores + cores // 2)
    return tuple(n for n in CANDIDATES if n <= most)


class WorkerOption(Knob):
    """An option of the training loader that acts only where worker processes load.

    Attributes:
        option: Its name among the options of the loader seam; empty for the knob's name.
        needed: The least number of workers with which it acts.
        values: Those worth trying, where the knob does not say it otherwise.
    """

    is_hidden = True
    option: ClassVar[str] = ""
    needed: ClassVar[int] = 1
    values: ClassVar[tuple[KnobValue, ...]]

    def domain(self, here: Here) -> Domain | NotOffered:
        return here.profile.without_workers or Domain(self.values)

    def current(self, profile: Profile) -> KnobValue:
        value: KnobValue = getattr(profile.loaders[0], self.option or self.name)
        return value

    def is_active(self, config: Config) -> bool:
        return int(config.get("workers", self.needed)) >= self.needed


class PrefetchFactor(WorkerOption):
    """Number of batches that each worker loads ahead of the training step.

    A deeper buffer evens out batches whose loading time varies. It does not help where workers are
    slower than the training step on average, and it costs host memory.
    """

    name = "prefetch_factor"
    changes = MayChange.NOTHING
    value_type = int
    minimum = 1

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return PyTorch's default of 2 and two deeper buffers.

        Buffers are refilled in each epoch, so that of one worker is at most an eighth of it.
        """
        if refusal := here.profile.without_workers:
            return refusal
        loader = here.profile.loaders[0]
        if not loader.dataset_len or not loader.batch_size:
            return Domain(DEPTHS)
        most = loader.dataset_len / loader.batch_size * MAX_SHARE_OF_EPOCH
        fitting = tuple(depth for depth in DEPTHS if depth == PREFETCH_DEFAULT or depth <= most)
        alone = "" if len(fitting) > 1 else "a deeper buffer would hold much of an epoch"
        return Domain(fitting, alone)

    def current(self, profile: Profile) -> KnobValue:
        return profile.loaders[0].prefetch_factor or PREFETCH_DEFAULT


class InOrder(WorkerOption):
    """Whether batches arrive in the sampler's order; false lets ready batches pass a slow one.

    False helps where the loading time differs much between batches. The model then sees the batches
    of an epoch in an order that varies from run to run.
    """

    name = "in_order"
    changes = MayChange.BATCH  # the samples of a step are others, each time
    value_type = bool
    needed = 2  # fewer always deliver in order
    values = (True, False)


class WorkerThreads(WorkerOption):
    """Number of threads that PyTorch operators use in each worker process.

    More threads help where items are transformed by large tensor operations and cores are idle.
    They hurt where the workers already use all cores.
    """

    name = "worker_threads"
    changes = MayChange.ROUNDING
    value_type = int
    minimum = 1

    def domain(self, here: Here) -> Domain | NotOffered:
        if refusal := here.profile.without_workers:
            return refusal
        if here.hardware.cpu_quota == 1:
            return NotOffered("there is one core")
        return Domain(tuple(n for n in (1, 2, 4) if n <= here.hardware.cpu_quota))

    def current(self, profile: Profile) -> KnobValue:
        return 1  # as torch.utils.data._utils.worker sets it in each worker


class WorkerStartMethod(WorkerOption):
    """How worker processes start: fork copies the program, spawn and forkserver start fresh.

    fork starts fastest. spawn and forkserver import the program again and pickle the dataset, which
    takes longer, but their workers do not share the memory and the locks of the training process.
    """

    name = "worker_start_method"
    changes = MayChange.NOTHING
    option = "start_method"
    value_type = str
    choices = values = ("fork", "forkserver", "spawn")


class Pinning(Knob):
    """Load batches into page-locked memory, and copy them to the GPU while Python goes on.

    It helps where the copy to the GPU takes a noticeable part of a step. It costs an extra copy in
    host memory, with workers by a thread of the training process. Only batches that a DataLoader
    pinned are copied without blocking: PyTorch does not reuse their memory before the copy ends,
    whereas the program might refill a buffer that it pinned itself.
    """

    name = "pinning"
    changes = MayChange.NOTHING
    value_type = str
    choices = ("off", "blocking", "non-blocking")
    flag_names = ("pin_memory", "pin_mem", "dataloader_pin_memory")
    flag_states = ("off", "non-blocking")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return off and non-blocking where batches are copied to a device.

        Pinning can also slow a program down, so a program that already pins is tried without it.
        """
        if here.profile.device == "cpu":
            return NotOffered("the model is on the CPU: nothing is copied to a device")
        refusal = here.profile.without_training_loader or here.profile.loads_on_device
        return refusal or Domain(("off", "non-blocking"))

    def current(self, profile: Profile) -> KnobValue:
        if not profile.loaders[0].pin_memory:
            return "off"
        return "non-blocking" if profile.loop.copies_without_blocking else "blocking"

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        return None if here.profile.device == "cpu" else super().flag_domain(flag, here)
