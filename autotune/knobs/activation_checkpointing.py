"""The knob ``activation_checkpointing``: which blocks recompute their activations.

``inside.seams.checkpoint`` finds the blocks by their structure.

Source: PyTorch documentation, ``torch.utils.checkpoint``.
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.profile import Profile

# Every n-th block recomputes; 0 stands for none.
EVERY = {"off": 0, "half": 2, "all": 1}


class ActivationCheckpointing(Knob):
    """Recompute activations in the backward pass instead of storing them: less memory, slower.

    It pays only where the saved memory allows a larger batch or a model that would not fit
    otherwise. "half" recomputes every second block, "all" every block. Each recomputed block costs
    a second forward pass.
    """

    name = "activation_checkpointing"
    value_type = str
    choices = ("off", "half", "all")
    flag_names = ("gradient_checkpointing", "activation_checkpointing", "checkpoint_activations")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return off, half and all for a model that consists of repeated blocks."""
        if not here.profile.model.repeated_blocks:
            return NotOffered("the model has no repeated blocks")
        return Domain(self.choices)

    def current(self, profile: Profile) -> KnobValue:
        """Return off, also for a program that checkpoints activations itself: this adds to it."""
        return "off"

    def conflict(self, config: Config) -> str | None:
        """Refuse the combination with ``compile``.

        ``torch.compile`` decides itself which activations to keep and which to recompute.
        """
        if config[self.name] != "off" and config.get("compile", "off") != "off":
            return (
                "torch.compile itself decides which activations to recompute, so the two knobs "
                "exclude each other."
            )
        return None

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        """Return off and all for an on/off flag; None for flags of another type."""
        return Domain(("off", "all")) if flag.is_truth else None

    def parse_flag(self, flag: Flag) -> KnobValue:
        """Return all if the program's flag is on, off otherwise."""
        return "all" if flag.is_on else "off"

    def format_flag(self, value: KnobValue, flag: Flag) -> str:
        """Return the flag's text for on or off, as the program spells it."""
        return flag.truth(is_on=value != "off")

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Choose the blocks that recompute their activations, from the next step on."""
        seams.checkpoint_blocks(every=EVERY[str(value)])
