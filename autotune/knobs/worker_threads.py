"""The worker_threads knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile

TORCH_DEFAULT = 1  # torch.utils.data._utils.worker sets it in each worker


class WorkerThreads(Knob):
    """Threads that torch's operators use in each worker."""

    name = "worker_threads"
    value_type = int
    minimum = 1

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return one, two and four, as far as there are cores."""
        if refusal := here.profile.without_workers:
            return refusal
        if here.hardware.cpu_quota == 1:
            return NotOffered("there is one core")
        return Domain(tuple(n for n in (1, 2, 4) if n <= here.hardware.cpu_quota))

    def current(self, profile: Profile) -> KnobValue:
        """Return torch's default: what a worker_init_fn sets cannot be seen from here."""
        return TORCH_DEFAULT

    def is_active(self, config: Config) -> bool:
        """Without workers there are no threads in them."""
        return config.get("num_workers", 1) != 0

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Ask for a loader whose workers set that many threads."""
        seams.set_loader_options(worker_threads=int(value))
