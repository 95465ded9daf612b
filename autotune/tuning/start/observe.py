"""Rigs of commands that keep no record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from autotune.files.scratch import Scratch, short_place
from autotune.machine.hardware import Hardware
from autotune.program.fence_options import STRONGEST, FenceOptions
from autotune.program.program import Program
from autotune.program.sources import Sources
from autotune.rig.fence.caches import cache_roots
from autotune.rig.open_rig import SILENT, Reports
from autotune.rig.rig_factory import RigFactory
from autotune.tuning.surroundings import THIS_MACHINE, Surroundings


@contextmanager
def throwaway_rigs(
    program: Program,
    hardware: Hardware,
    fence: FenceOptions = STRONGEST,
    reports: Reports = SILENT,
    surroundings: Surroundings = THIS_MACHINE,
) -> Iterator[RigFactory]:
    """Make rigs whose logs go to a temporary folder, which is removed at the end.

    Raises:
        FenceError: when nothing keeps the program from changing the user's files.
    """
    sources = Sources(program.files, cache_roots(os.environ))
    with (
        Scratch(short_place()) as scratch,
        surroundings.make_rigs(
            program,
            scratch.path,
            hardware,
            reports=replace(reports, sources=sources),
            options=fence,
            remember=lambda _: None,
            clock=surroundings.clock,
        ) as rigs,
    ):
        yield rigs
