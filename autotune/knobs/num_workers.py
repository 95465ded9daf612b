"""The num_workers knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.machine.hardware import Hardware
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.profile import Profile

CANDIDATES = (0, 1, 2, 4, 8, 12, 16, 24, 32)


class NumWorkers(Knob):
    """Processes that load batches in parallel with the training step."""

    name = "num_workers"
    value_type = int
    flag_names = ("num_workers", "workers", "nworkers", "dataloader_num_workers", "loader_workers")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return 0 up to one and a half times the cores: loading often waits for storage."""
        if refusal := here.profile.without_training_loader:
            return refusal
        if here.profile.loaders[0].iterable:
            return NotOffered("the dataset is iterable: each worker may repeat all its samples")
        if refusal := here.profile.without_workers or here.profile.ahead_of_order:
            return refusal
        candidates = _candidates(here.hardware)
        if (
            here.profile.dataset.set_by_program
        ):  # what its workers do not see, it would see without any
            candidates = candidates[1:]
        return Domain(candidates)

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        """Return the same for a flag that takes a number, unless workers would repeat samples."""
        repeats = any(loader.iterable for loader in here.profile.loaders)
        repeats = repeats or bool(here.profile.dataset.against_workers)
        return None if repeats or flag.number is None else Domain(_candidates(here.hardware))

    def parse_flag(self, flag: Flag) -> KnobValue:
        """Return the workers that the flag asks for."""
        return flag.number or 0

    def current(self, profile: Profile) -> KnobValue:
        """Return the workers of the (first) training loader."""
        return profile.loaders[0].num_workers

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Ask for a loader with that many workers."""
        seams.set_loader_options(num_workers=int(value))


def _candidates(hardware: Hardware) -> tuple[int, ...]:
    most = max(2, hardware.cpu_quota + hardware.cpu_quota // 2)
    return tuple(n for n in CANDIDATES if n <= most)
