"""FenceOptions: what the user says about keeping trials away from their files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class FenceKind(StrEnum):
    """What keeps a trial's writes from the user's files, strongest first."""

    OVERLAY = "overlay"
    LANDLOCK = "landlock"
    GUARD = "guard"


@dataclass(frozen=True)
class FenceOptions:
    """What the user says of the fence.

    Attributes:
        kind: The fence to use; None takes the strongest that works here.
        scratch_dir: Where trials' writes go until they are thrown away; None looks for a place.
        max_scratch_bytes: What a trial may write; None allows a tenth of what is free.
        caches: Folders whose files, once prepared before the first step, serve later trials too.
        allow_side_effects: Search also where nothing but Python's own functions is guarded.
    """

    kind: FenceKind | None = None
    scratch_dir: Path | None = None
    max_scratch_bytes: int | None = None
    caches: tuple[Path, ...] = ()
    allow_side_effects: bool = False


STRONGEST = FenceOptions()
