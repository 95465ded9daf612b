"""The in_order knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class InOrder(Knob):
    """Batches in the sampler's order; without it a slow batch does not hold up those behind it."""

    name = "in_order"
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both ways for one training loader."""
        return here.profile.without_workers or Domain((True, False))

    def current(self, profile: Profile) -> KnobValue:
        """Return the setting of the (first) training loader."""
        return profile.loaders[0].in_order

    def is_active(self, config: Config) -> bool:
        """One process has one order, and so has one worker."""
        return int(config.get("num_workers", 2)) > 1

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Ask for a loader that keeps the order or does not."""
        seams.set_loader_options(in_order=bool(value))
