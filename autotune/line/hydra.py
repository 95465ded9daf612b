"""Hydra applications: several runs in one start are refused."""

from __future__ import annotations

import re

from autotune.errors import UsageError
from autotune.program import Program

IMPORTED = re.compile(rb"^\s*(import|from)\s+hydra\b|\bhydra\.main\b", re.MULTILINE)
MULTIRUN = frozenset({"-m", "--multirun", "hydra.mode=MULTIRUN", "hydra/mode=MULTIRUN"})


def refuse_multirun(program: Program, source: bytes) -> None:
    """Refuse a sweep.

    Raises:
        UsageError: where a Hydra application is told to run many times.
    """
    asked = [word for word in program.args if word in MULTIRUN]
    if not asked or not IMPORTED.search(source):
        return
    raise UsageError(
        f"{asked[0]} has Hydra train several times in one start, and a search needs one training. "
        "Leave it out, with one value for each override."
    )
