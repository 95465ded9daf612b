"""The in_order knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import Config, KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class InOrder(Knob):
    """Batches in the sampler's order; without it a slow batch does not hold up those behind it."""

    name = "in_order"
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return both ways for one training loader."""
        return profile.without_workers or Domain((True, False))

    def current(self, profile: Profile) -> KnobValue:
        """Return the setting of the (first) training loader."""
        return profile.loaders[0].in_order

    def is_active(self, config: Config) -> bool:
        """One process has one order, and so has one worker."""
        return int(config.get("num_workers", 2)) > 1

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Ask for a loader that keeps the order or does not."""
        seams.loader.request(in_order=bool(value))
