"""The knob ``fsdp_shard``: which modules FSDP shards as a unit.

Source: PyTorch documentation, ``torch.distributed.fsdp.fully_shard``.
"""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import in_place_refusal
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class FsdpShard(StrategyOption):
    """Unit in which FSDP gathers weights: one repeated block of the model, or the whole model.

    By blocks, FSDP gathers the next block while one computes, and few blocks are whole at a time
    (unless ``fsdp_reshard_after_forward`` is off). Gathering the whole model at once needs fewer
    messages but memory for all weights.
    """

    name = "fsdp_shard"
    strategies = frozenset({"fsdp"})
    value_type = str
    choices = ("blocks", "whole")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both units for a model with at least two repeated blocks."""
        if reason := in_place_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        if here.profile.model.repeated_blocks < 2:
            return NotOffered("the model does not consist of repeated blocks")
        return Domain(("blocks", "whole"))

    def current(self, profile: Profile) -> KnobValue:
        """Return blocks, which autotune uses where the knob is not searched."""
        return "blocks"
