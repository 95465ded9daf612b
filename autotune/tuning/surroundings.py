"""Surroundings: all that a search gets from the machine it runs on, as arguments.

A test hands in a clock that goes only when it is told to, and rigs that follow a script; then a
search of minutes takes milliseconds, and every moment of it can be interrupted.
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
from autotune.rig.rig import Reports
from autotune.rig.rig_factory import RigFactory


class MakeRigs(Protocol):
    """Makes what opens the rigs of one session; ``RigFactory`` is the real one."""

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
        """Raise the fence and return the factory.

        Raises:
            FenceError: when nothing keeps the program from changing the user's files.
        """
        ...


@dataclass(frozen=True)
class Surroundings:
    """What a search runs on.

    Attributes:
        clock: Seconds that never go back.
        make_rigs: Called once per session.
        look: Returns who disturbs this machine now, as sentences for the user.
    """

    clock: Callable[[], float] = monotonic
    make_rigs: MakeRigs = RigFactory
    look: Callable[[Hardware], Sequence[str]] = preflight.doubts


THIS_MACHINE = Surroundings()
