"""The activation_checkpointing knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.profile import Profile

EVERY = {"off": 0, "half": 2, "all": 1}


class ActivationCheckpointing(Knob):
    """Blocks compute again in the backward pass what they would have kept: slower, less memory."""

    name = "activation_checkpointing"
    value_type = str
    choices = ("off", "half", "all")
    flag_names = ("gradient_checkpointing", "activation_checkpointing", "checkpoint_activations")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return none, every second and all of the model's repeated blocks."""
        if not here.profile.repeated_blocks:
            return NotOffered("the model has no repeated blocks")
        if here.profile.program_checkpointing:
            return NotOffered("the program checkpoints activations itself")
        if here.profile.blocks_change:
            return NotOffered(
                f"a block would change twice what a pass changes ({here.profile.blocks_change})"
            )
        return Domain(self.choices)

    def current(self, profile: Profile) -> KnobValue:
        """Return off: a program that does so itself is not offered the knob."""
        return "off"

    def conflict(self, config: Config) -> str | None:
        """Compiled models decide by themselves what to keep."""
        if config[self.name] != "off" and config.get("compile", "off") != "off":
            return "A compiled model decides itself what it computes again (compile)."
        return None

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        """Return none and all for a switch."""
        return Domain(("off", "all")) if flag.is_truth else None

    def parse_flag(self, flag: Flag) -> KnobValue:
        """Return whether the program does so."""
        return "all" if flag.is_on else "off"

    def format_flag(self, value: KnobValue, flag: Flag) -> str:
        """Return how the program says so."""
        return flag.truth(is_on=value != "off")

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Choose the blocks."""
        seams.checkpoint_blocks(every=EVERY[str(value)])
