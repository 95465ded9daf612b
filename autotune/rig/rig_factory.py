"""RigFactory: makes the rigs of one run, each with a numbered folder, and counts the processes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Self

from autotune.machine.hardware import Hardware
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.run_mode import Epochs, RunMode
from autotune.program.fence_options import FenceOptions
from autotune.program.program import Program
from autotune.rig.fence import raise_fence
from autotune.rig.fence.scratch import Scratch, short_place
from autotune.rig.rig import Reports, Rig


@dataclass
class RigFactory:
    """Makes rigs behind one fence, which is raised when this is made.

    Attributes:
        directory: The run directory.
        reports: Where the rigs tell what happens.
        options: What the user says of the fence.
        started: How many rigs were made in this run, earlier sessions included.
        remember: Told the mode of the program when a rig has shown another one.
        clock: Seconds that never go back; a search counts all its time by it.
    """

    program: Program
    directory: Path
    hardware: Hardware
    reports: Reports = field(default_factory=Reports)
    options: FenceOptions = field(default_factory=FenceOptions)
    started: int = 0
    remember: Callable[[RunMode], None] = lambda _: None
    clock: Callable[[], float] = monotonic
    _causes: dict[Epochs, tuple[str, str]] = field(default_factory=dict, init=False)

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
    def mode(self) -> RunMode:
        """What it takes for the program to train in a rig, as far as rigs have shown it."""
        return self.program.mode

    def take_mode(self, mode: RunMode) -> None:
        """Start all further rigs in this mode."""
        self.program = replace(self.program, mode=mode)
        self.remember(mode)

    def learn(self, ending: Ending, *, as_written: bool = True) -> bool:
        """Take from a failure how the program's epochs must end.

        What fails as it is written where epochs end otherwise, in the same way, was not due to
        them: they end as before from then on. A config that fails so says nothing of the program.

        Args:
            ending: How a process failed.
            as_written: It ran the program's own config.

        Returns:
            Whether what failed is to be tried again, in a new rig.
        """
        mode = self.mode
        if ending.outcome is not Outcome.CRASHED:
            return False
        if self._causes.get(mode.epochs) == ending.way:
            if not as_written:
                return False
            before = Epochs.TRUE if mode.epochs is Epochs.WHOLE else Epochs.ENDLESS
            self.take_mode(replace(mode, epochs=before))
            self.reports.doubt(f"{ending.where}: it fails so there, too. Its epochs end as before.")
            return False
        suspect = ending.suspect
        if suspect is None or suspect is mode.epochs or ending.way in self._causes.values():
            return False
        self._causes[suspect] = ending.way
        self.take_mode(replace(mode, epochs=suspect))
        self.reports.doubt(_said(self.program.file_name, ending, suspect))
        return True

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


def _said(name: str, ending: Ending, epochs: Epochs) -> str:
    """Say what a program cannot bear, and what is done about it."""
    if epochs is Epochs.TRUE:
        return (
            f"{name} cannot go on beyond its own epoch ({ending.where}): its trials run true "
            "epochs."
        )
    return (
        f"{name} cannot do without a part of its other data ({ending.where}): its trials "
        "evaluate on the whole of it."
    )
