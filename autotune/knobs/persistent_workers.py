"""The persistent_workers knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class PersistentWorkers(Knob):
    """Workers that live on from epoch to epoch instead of being started for each."""

    name = "persistent_workers"
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both ways for one training loader."""
        return here.profile.without_workers or Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return the setting of the (first) training loader."""
        return profile.loaders[0].persistent_workers

    def is_active(self, config: Config) -> bool:
        """Without workers there is nothing to keep."""
        return config.get("num_workers", 1) != 0

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Ask for a loader that keeps its workers or does not."""
        seams.set_loader_options(persistent_workers=bool(value))
