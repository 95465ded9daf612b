"""The knob ``fsdp_reshard_after_forward``: whether FSDP frees weights between forward and backward.

Source: PyTorch documentation, ``torch.distributed.fsdp.fully_shard`` (``reshard_after_forward``).
"""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import in_place_refusal
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class FsdpReshardAfterForward(StrategyOption):
    """Drop gathered weights after forward and gather them again for backward: saves memory.

    False keeps them, which saves one gathering per step and costs memory for the whole weights.
    Between forward and backward the model then shows its gathered parameters, which have no
    gradients. A script that clears or changes gradients through the model would miss the sharded
    ones.
    """

    name = "fsdp_reshard_after_forward"
    strategies = frozenset({"fsdp"})
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values where several ranks can train the program."""
        if reason := in_place_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        return Domain((True, False))

    def current(self, profile: Profile) -> KnobValue:
        """Return True: autotune's FSDP drops gathered weights, also of the outermost module."""
        return True
