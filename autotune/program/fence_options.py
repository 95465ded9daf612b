"""FenceOptions: how the user wants trials to be kept away from their files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class FenceKind(StrEnum):
    """The mechanism that keeps a trial's writes away from the user's files, strongest first."""

    OVERLAY = "overlay"
    LANDLOCK = "landlock"
    GUARD = "guard"


@dataclass(frozen=True)
class FenceOptions:
    """The user's choices about the fence.

    Attributes:
        max_scratch_bytes: The most bytes that a trial may write. None allows a tenth of the free
            space.
        caches: Folders of data that the program prepares before its first step. Later trials reuse
            them.
    """

    kind: FenceKind | None = None
    scratch_dir: Path | None = None
    max_scratch_bytes: int | None = None
    caches: tuple[Path, ...] = ()
    allow_side_effects: bool = False


STRONGEST = FenceOptions()
