"""FenceOptions: how the user wants trials to be kept away from their files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from shlex import quote


class FenceKind(StrEnum):
    """The mechanism that keeps a trial's writes away from the user's files, strongest first."""

    OVERLAY = "overlay"
    LANDLOCK = "landlock"
    GUARD = "guard"


@dataclass(frozen=True)
class FenceOptions:
    """The user's choices about the fence; to name the guard is to consent to what it lets through.

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

    @property
    def words(self) -> tuple[str, ...]:
        """The options, as they are typed, that let a trial change more than it may by default."""
        is_weaker = self.kind not in {None, FenceKind.OVERLAY}
        return (
            *([f"--fence {self.kind}"] if is_weaker else []),
            *(f"--cache-dir {quote(str(folder))}" for folder in self.caches),
        )

    def going_on_from(self, before: FenceOptions) -> FenceOptions:
        """Return these options with those of *before* that they leave open."""
        return replace(
            self,
            kind=self.kind or before.kind,
            scratch_dir=self.scratch_dir or before.scratch_dir,
            max_scratch_bytes=self.max_scratch_bytes or before.max_scratch_bytes,
        )


STRONGEST = FenceOptions()
