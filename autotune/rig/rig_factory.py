"""RigFactory: makes the rigs of one run, each with a numbered folder, behind one fence.

It also keeps the run mode, which is what earlier rigs showed about how to run the program.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Self

from autotune.machine.hardware import Hardware
from autotune.measurement.outcome import Ending, Epochs, Outcome, RunMode
from autotune.program.fence_options import FenceOptions
from autotune.program.program import Program
from autotune.rig.fence import Fence, raise_fence
from autotune.rig.open_rig import OpenRig, Reports
from autotune.rig.rig import Rig


@dataclass
class RigFactory:
    """Makes the rigs of a run; use it as a context manager, which removes the fence at the end.

    Making the factory sets the fence up and tries it out, which starts short processes.

    Attributes:
        program: The program, in the mode in which the next rigs run it.
        hardware: The machine; once the program was observed, with the GPUs that it sees.
        started: Number of rigs made in this run, those of earlier sessions included.
        remember: Called with the new run mode whenever it changes, so that it can be saved.
        clock: Monotonic seconds; tests replace it to run searches in virtual time.

    Raises:
        FenceError: when no fence works here.
    """

    program: Program
    directory: Path
    hardware: Hardware
    reports: Reports = field(default_factory=Reports)
    options: FenceOptions = field(default_factory=FenceOptions)
    started: int = 0
    remember: Callable[[RunMode], None] = lambda _: None
    clock: Callable[[], float] = monotonic
    _later: ExitStack = field(default_factory=ExitStack, init=False)
    _causes: dict[Epochs, tuple[str, str]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.started = len(list((self.directory / "rigs").glob("*")))
        self.fence = raise_fence(self.options, self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.fence:
            self._later.close()

    @property
    def log(self) -> Path:
        """Where what the newest rig's program prints is written."""
        return self._folder / "log.txt"

    @property
    def _folder(self) -> Path:
        return self.directory / "rigs" / f"{self.started:03d}"

    def take_mode(self, mode: RunMode) -> None:
        """Run the program in this mode from the next rig on, and have it remembered."""
        self.program = replace(self.program, mode=mode)
        self.remember(mode)

    def learn(self, ending: Ending, *, as_written: bool = True) -> bool:
        """Change how epochs end if a failure shows that the program needs it.

        By default epochs never end in a rig, and some programs fail beyond their own epoch. An
        ending names the mode that would avoid it (``Ending.suspect``), and that mode is tried. If
        the program then fails in the same way under its own config, epochs were not the cause, and
        the mode goes back. The same failure under another config changes nothing, because it may
        be due to that config.

        Returns:
            Whether the same config should be tried again in a new rig.
        """
        mode = self.program.mode
        if ending.outcome is not Outcome.CRASHED:
            return False
        if self._causes.get(mode.epochs) == ending.way:
            if not as_written:
                return False
            self.take_mode(replace(mode, epochs=Epochs.ENDLESS))
            self.reports.warning(
                f"{ending.where}: the program fails there in this mode too, so its epochs end "
                "again as they did before."
            )
            return False
        suspect = ending.suspect
        if suspect is None or suspect is mode.epochs or ending.way in self._causes.values():
            return False
        self._causes[suspect] = ending.way
        self.take_mode(replace(mode, epochs=suspect))
        self.reports.warning(
            f"{self.program.file_name} fails if autotune prolongs its epoch ({ending.where}): in "
            "trials, its epochs now end as the program expects."
        )
        return True

    def _end(self, live: OpenRig) -> None:
        # What is urgent is to write the result: what runs yet is ended when the factory is left
        if not live.close_unless_urgent():
            self._later.callback(live.close)

    def _raise_again(self) -> Fence:
        # The mounts that it is made for may have changed
        self._later.callback(self.fence.close)
        options = replace(self.options, kind=self.fence.kind)
        self.fence = raise_fence(options, self.directory)
        return self.fence

    def new(self) -> Rig:
        """Return a rig with the next number, which is not started yet; the caller closes it."""
        self.started += 1
        # Compilers are given the path of torch.compile's cache without quotes, so a run directory
        # with spaces or quotes in its path cannot hold it; a folder of the fence goes with it
        is_plain = re.fullmatch(r"[\w./+-]+", str(self.directory)) is not None
        cache = self.directory if is_plain else self.fence.folders[0]
        rig = Rig(
            self.program,
            self._folder,
            cache / "compile-cache",
            self.fence,
            tuple(gpu.uuid for gpu in self.hardware.gpus),
            self.reports,
        )
        rig.end, rig.raise_again = self._end, self._raise_again
        return rig
