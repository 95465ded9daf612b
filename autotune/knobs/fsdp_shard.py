"""The fsdp_shard knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import Config, KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob, Scope
from autotune.profile import Profile
from autotune.strategies import fsdp_refusal

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class FsdpShard(Knob):
    """What FSDP gathers at a time: a repeated block of the model, or the whole model."""

    name = "fsdp_shard"
    scope = Scope.RESTART
    value_type = str
    choices = ("blocks", "whole")

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return both, where the model consists of repeated blocks."""
        if reason := fsdp_refusal(hardware, profile):
            return NotOffered(reason)
        if profile.repeated_blocks < 2:
            return NotOffered("the model does not consist of repeated blocks")
        return Domain(("blocks", "whole"))

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return that it shards by blocks."""
        return "blocks"

    def is_active(self, config: Config) -> bool:
        """Tell whether the strategy is fsdp."""
        return config.get("strategy") == "fsdp"

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Pass it to the strategy."""
        seams.distribution.request(fsdp_shard=str(value))
