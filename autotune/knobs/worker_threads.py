"""The knob ``worker_threads``: PyTorch's intra-op threads in each loader worker.

PyTorch sets them to 1 in every worker (``torch.utils.data._utils.worker``), so that workers do not
compete for cores.
"""

from __future__ import annotations

from autotune.knobs.base import Here, WorkerOption
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile

TORCH_DEFAULT = 1  # torch.utils.data._utils.worker sets it in each worker


class WorkerThreads(WorkerOption):
    """Number of threads that PyTorch operators use in each worker process.

    More threads help where items are transformed by large tensor operations and cores are idle.
    They hurt where the workers already use all cores.
    """

    name = "worker_threads"
    value_type = int
    minimum = 1

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return 1, 2 and 4, up to the number of cores."""
        if refusal := here.profile.without_workers:
            return refusal
        if here.hardware.cpu_quota == 1:
            return NotOffered("there is one core")
        return Domain(tuple(n for n in (1, 2, 4) if n <= here.hardware.cpu_quota))

    def current(self, profile: Profile) -> KnobValue:
        """Return PyTorch's default, 1.

        A ``worker_init_fn`` that sets another number acts inside the workers, where autotune does
        not look.
        """
        return TORCH_DEFAULT
