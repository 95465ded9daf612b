"""The prefetch_factor knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile

TORCH_DEFAULT = 2  # torch.utils.data.DataLoader, with workers


class PrefetchFactor(Knob):
    """Batches that each worker holds ready."""

    name = "prefetch_factor"
    value_type = int
    minimum = 1

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the default and two deeper buffers, which even out batches of uneven cost."""
        return here.profile.without_workers or here.profile.ahead_of_order or Domain((2, 4, 8))

    def current(self, profile: Profile) -> KnobValue:
        """Return the loader's own depth; without workers, the one it would get with them."""
        return profile.loaders[0].prefetch_factor or TORCH_DEFAULT

    def is_active(self, config: Config) -> bool:
        """Without workers there is nothing to prefetch."""
        return config.get("num_workers", 1) != 0

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Ask for a loader with that depth."""
        seams.set_loader_options(prefetch_factor=int(value))
