"""The worker_start_method knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import Config, KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class WorkerStartMethod(Knob):
    """How worker processes begin: fork copies the program, spawn and forkserver start clean."""

    name = "worker_start_method"
    value_type = str
    choices = ("fork", "forkserver", "spawn")

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return the ways there are for a program that trains by itself."""
        return profile.without_workers or Domain(self.choices)

    def current(self, profile: Profile) -> KnobValue:
        """Return the method of the (first) training loader."""
        return profile.loaders[0].start_method

    def is_active(self, config: Config) -> bool:
        """Without workers there is nothing to start."""
        return config.get("num_workers", 1) != 0

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Ask for a loader whose workers begin that way."""
        seams.loader.request(start_method=str(value))
