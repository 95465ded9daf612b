"""The persistent_workers knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import Config, KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class PersistentWorkers(Knob):
    """Workers that live on from epoch to epoch instead of being started for each."""

    name = "persistent_workers"
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return both ways for one training loader."""
        return profile.without_workers or Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return the setting of the (first) training loader."""
        return profile.loaders[0].persistent_workers

    def is_active(self, config: Config) -> bool:
        """Without workers there is nothing to keep."""
        return config.get("num_workers", 1) != 0

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Ask for a loader that keeps its workers or does not."""
        seams.loader.request(persistent_workers=bool(value))
