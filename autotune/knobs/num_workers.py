"""The knob ``num_workers``: worker processes of the training loader.

Source: PyTorch documentation, ``torch.utils.data`` ("Single- and Multi-process Data Loading").
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.machine.hardware import Hardware
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.profile import Profile

CANDIDATES = (0, 1, 2, 4, 8, 12, 16, 24, 32)


class NumWorkers(Knob):
    """Number of processes that load batches in parallel with the training step.

    Workers help where loading takes longer than a training step; they cost CPU cores and memory,
    since each holds a copy of the dataset object. 0 loads in the training process, which is fastest
    for cheap datasets.
    """

    name = "num_workers"
    value_type = int
    flag_names = ("num_workers", "workers", "nworkers", "dataloader_num_workers", "loader_workers")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return candidates from 0 up to one and a half times the cores.

        More workers than cores can pay because loading often waits for storage.
        """
        if refusal := here.profile.without_training_loader:
            return refusal
        # Only the dataset's own code could divide the samples among workers (get_worker_info()).
        if here.profile.loaders[0].iterable:
            return NotOffered("the dataset is iterable: each worker may repeat all its samples")
        return here.profile.without_workers or Domain(_candidates(here.hardware))

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        """Return the same candidates for a numeric flag; None if workers would repeat samples."""
        repeats = any(loader.iterable for loader in here.profile.loaders)
        return None if repeats or flag.number is None else Domain(_candidates(here.hardware))

    def parse_flag(self, flag: Flag) -> KnobValue:
        """Return the number of workers that the flag sets; 0 where its value is not a number."""
        return flag.number or 0

    def current(self, profile: Profile) -> KnobValue:
        """Return the number of workers of the (first) training loader."""
        return profile.loaders[0].num_workers

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Rebuild the training loader with this number of workers."""
        seams.set_loader_options(num_workers=int(value))


def _candidates(hardware: Hardware) -> tuple[int, ...]:
    # Even on one core a worker can wait for storage while the program computes.
    most = max(2, hardware.cpu_quota + hardware.cpu_quota // 2)
    return tuple(n for n in CANDIDATES if n <= most)
