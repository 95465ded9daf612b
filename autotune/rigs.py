"""Rigs: makes the rigs of one run, each with a numbered folder, and counts the processes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from autotune.fence import FenceOptions, raise_fence
from autotune.fence.scratch import Scratch, short_place
from autotune.hardware import Hardware
from autotune.program import Program
from autotune.rig import Reports, Rig


@dataclass
class Rigs:
    """Makes rigs behind one fence, which is raised when this is made.

    Attributes:
        directory: The run directory.
        reports: Where the rigs tell what happens.
        options: What the user says of the fence.
        started: How many rigs were made in this run, earlier sittings included.
    """

    program: Program
    directory: Path
    hardware: Hardware
    reports: Reports = field(default_factory=Reports)
    options: FenceOptions = field(default_factory=FenceOptions)
    started: int = 0

    def __post_init__(self) -> None:
        self.started = len(list((self.directory / "rigs").glob("*")))
        self.fence = raise_fence(self.options, self.directory)
        self._plainly_named = Scratch(short_place())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.fence.close()
        self._plainly_named.close()

    @property
    def _compile_cache(self) -> Path:
        """Kept with the run, where compilers can handle its path: they get it unquoted."""
        is_plain = re.fullmatch(r"[\w./+-]+", str(self.directory)) is not None
        return (self.directory if is_plain else self._plainly_named.path) / "compile-cache"

    def new(self) -> Rig:
        """Return a rig that is not open yet."""
        self.started += 1
        return Rig(
            self.program,
            self.directory / "rigs" / f"{self.started:03d}",
            self._compile_cache,
            self.fence,
            [gpu.uuid for gpu in self.hardware.gpus],
            self.reports,
        )
