"""The worker_start_method knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class WorkerStartMethod(Knob):
    """How worker processes begin: fork copies the program, spawn and forkserver start clean."""

    name = "worker_start_method"
    value_type = str
    choices = ("fork", "forkserver", "spawn")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the ways there are for a program that trains by itself."""
        return here.profile.without_workers or Domain(self.choices)

    def current(self, profile: Profile) -> KnobValue:
        """Return the method of the (first) training loader."""
        return profile.loaders[0].start_method

    def is_active(self, config: Config) -> bool:
        """Without workers there is nothing to start."""
        return config.get("num_workers", 1) != 0

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Ask for a loader whose workers begin that way."""
        seams.set_loader_options(start_method=str(value))
