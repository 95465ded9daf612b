"""The fsdp_shard knob."""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import in_place_refusal
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class FsdpShard(StrategyOption):
    """What FSDP gathers at a time: a repeated block of the model, or the whole model."""

    name = "fsdp_shard"
    strategies = frozenset({"fsdp"})
    value_type = str
    choices = ("blocks", "whole")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both, where the model consists of repeated blocks."""
        if reason := in_place_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        if here.profile.repeated_blocks < 2:
            return NotOffered("the model does not consist of repeated blocks")
        return Domain(("blocks", "whole"))

    def current(self, profile: Profile) -> KnobValue:
        """Return that it shards by blocks."""
        return "blocks"
