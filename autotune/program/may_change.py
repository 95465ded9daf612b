"""MayChange: how much of a training a search may change to make it faster."""

from __future__ import annotations

from enum import StrEnum


class MayChange(StrEnum):
    """What of a training may change; each level allows what those before it allow.

    A setting declares the level that its values need; a user says which level is allowed.

    Attributes:
        NOTHING: All losses stay equal, bit for bit.
        ROUNDING: The same samples and step size; sums may round otherwise, and random draws be
            others.
        BATCH: Other samples in a step, once they were seen to teach as much.
        ANY: Whatever it does, unchecked.
    """

    NOTHING = "nothing"
    ROUNDING = "rounding"
    BATCH = "batch"
    ANY = "any"

    def allows(self, level: MayChange) -> bool:
        """Return whether changes of a level may be made."""
        levels = [*MayChange]
        return levels.index(level) <= levels.index(self)
