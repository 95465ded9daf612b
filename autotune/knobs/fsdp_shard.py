"""The fsdp_shard knob."""

from __future__ import annotations

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import StrategyOption
from autotune.profile import Profile
from autotune.strategies import in_place_refusal


class FsdpShard(StrategyOption):
    """What FSDP gathers at a time: a repeated block of the model, or the whole model."""

    name = "fsdp_shard"
    strategies = frozenset({"fsdp"})
    value_type = str
    choices = ("blocks", "whole")

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return both, where the model consists of repeated blocks."""
        if reason := in_place_refusal(hardware, profile):
            return NotOffered(reason)
        if profile.repeated_blocks < 2:
            return NotOffered("the model does not consist of repeated blocks")
        return Domain(("blocks", "whole"))

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return that it shards by blocks."""
        return "blocks"
