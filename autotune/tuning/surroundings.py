"""Surroundings: the clock, the rigs and the machine check that a search uses, as arguments.

Tests pass a clock that advances only when told to and rigs that follow a script. A search of
minutes then takes milliseconds, and a test can interrupt it at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from autotune.machine import preflight
from autotune.machine.hardware import Hardware
from autotune.rig.rig_factory import RigFactory
from autotune.sharing.membership import ALONE, Membership


@dataclass(frozen=True)
class Surroundings:
    """The parts of the outside world that a search depends on, by default the real ones.

    Attributes:
        clock: Returns seconds that never go back; all times of a search come from it.
        make_rigs: Builds the rig factory, with the arguments of ``RigFactory``; once per session.
        look: Returns what currently disturbs this machine (other processes, for example), one
            sentence for the user each.
        sharing: The other machines that share the search.
    """

    clock: Callable[[], float] = monotonic
    make_rigs: Callable[..., RigFactory] = RigFactory
    look: Callable[[Hardware], Sequence[str]] = preflight.warnings
    sharing: Membership = ALONE


THIS_MACHINE = Surroundings()
