"""Surroundings: the clock, the rigs and the machine check that a search uses, as arguments.

Tests pass a clock that advances only when told to and rigs that follow a script. A search of
minutes then takes milliseconds, and a test can interrupt it at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Protocol

from autotune.machine import preflight
from autotune.machine.hardware import Hardware
from autotune.measurement.run_mode import RunMode
from autotune.program.fence_options import FenceOptions
from autotune.program.program import Program
from autotune.rig.open_rig import Reports
from autotune.rig.rig_factory import RigFactory


class MakeRigs(Protocol):
    """Signature of the callable that builds a session's rig factory.

    ``RigFactory`` is the real one. Tests pass a scripted factory, so this lists exactly the
    arguments that a search passes.
    """

    def __call__(
        self,
        program: Program,
        directory: Path,
        hardware: Hardware,
        *,
        reports: Reports,
        options: FenceOptions,
        remember: Callable[[RunMode], None],
        clock: Callable[[], float],
    ) -> RigFactory:
        """Set up the fence and return the factory.

        Args:
            program: The program, with the run mode that earlier sessions found.
            directory: Run directory; each rig gets a folder below it.
            hardware: The machine that the rigs run on.
            reports: Called by the rigs with progress, warnings and notes.
            options: What the user requested of the fence.
            remember: Called with the new run mode when a rig finds that the program needs another
                one.
            clock: Seconds that never go back.

        Raises:
            FenceError: when nothing keeps the program from changing the user's files.
        """
        ...


@dataclass(frozen=True)
class Surroundings:
    """The parts of the outside world that a search depends on.

    The defaults are the real ones; ``THIS_MACHINE`` holds them.

    Attributes:
        clock: Returns seconds that never go back; all times of a search come from it.
        make_rigs: Builds the rig factory; called once per session.
        look: Returns what currently disturbs this machine (other processes, for example), one
            sentence for the user each.
    """

    clock: Callable[[], float] = monotonic
    make_rigs: MakeRigs = RigFactory
    look: Callable[[Hardware], Sequence[str]] = preflight.warnings


THIS_MACHINE = Surroundings()
