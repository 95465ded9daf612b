"""Rigs: makes the rigs of one run, each with a numbered folder, and counts the processes."""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from autotune.hardware import Hardware
from autotune.program import Program
from autotune.rig import Reports, Rig


@dataclass
class Rigs:
    """Makes rigs, whose programs share a directory for temporary files until the end.

    Attributes:
        directory: The run directory.
        reports: Where the rigs tell what happens.
        started: How many rigs were made in this run, earlier sittings included.
    """

    program: Program
    directory: Path
    hardware: Hardware
    reports: Reports = field(default_factory=Reports)
    started: int = 0

    def __post_init__(self) -> None:
        self.started = len(list((self.directory / "rigs").glob("*")))
        self._tmp_dir = Path(tempfile.mkdtemp(prefix="autotune-"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._tmp_dir, ignore_errors=True)

    @property
    def _compile_cache(self) -> Path:
        """Kept with the run, where compilers can handle its path: they get it unquoted."""
        is_plain = re.fullmatch(r"[\w./+-]+", str(self.directory)) is not None
        return (self.directory if is_plain else self._tmp_dir) / "compile-cache"

    def new(self) -> Rig:
        """Return a rig that is not open yet."""
        self.started += 1
        return Rig(
            self.program,
            self.directory / "rigs" / f"{self.started:03d}",
            self._compile_cache,
            [gpu.uuid for gpu in self.hardware.gpus],
            self.reports,
            self._tmp_dir,
        )
