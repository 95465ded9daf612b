"""The activation_checkpointing knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import Config, KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams

EVERY = {"off": 0, "half": 2, "all": 1}


class ActivationCheckpointing(Knob):
    """Blocks compute again in the backward pass what they would have kept: slower, less memory."""

    name = "activation_checkpointing"
    value_type = str
    choices = ("off", "half", "all")

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return none, every second and all of the model's repeated blocks."""
        if not profile.repeated_blocks:
            return NotOffered("the model has no repeated blocks")
        if profile.own_checkpointing:
            return NotOffered("the program checkpoints activations itself")
        return Domain(self.choices)

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return off: a program that does so itself is not offered the knob."""
        return "off"

    def conflict(self, config: Config) -> str | None:
        """Compiled models decide by themselves what to keep."""
        if config[self.name] != "off" and config.get("compile", "off") != "off":
            return "A compiled model decides itself what it computes again (compile)."
        return None

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Choose the blocks."""
        seams.checkpoint.choose(EVERY[str(value)])
        seams.checkpoint.act_on(seams.forward.roots)
