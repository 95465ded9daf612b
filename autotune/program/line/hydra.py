"""Hydra applications: several runs in one start are refused.

Only ``hydra.main`` reads the command line; a program that composes its config has its own ``-m``.
"""

from __future__ import annotations

import re

from autotune.errors import UsageError
from autotune.program.program import Program

MAIN = re.compile(
    rb"\bhydra\.main\b|^\s*import\s+hydra\s+as\b"
    rb"|^\s*from\s+hydra(\.main)?\s+import\s*(\([^)]*|[^\n]*)\bmain\b",
    re.MULTILINE,
)
MULTIRUN = frozenset({"-m", "--multirun", "hydra.mode=MULTIRUN", "hydra/mode=MULTIRUN"})


def refuse_multirun(program: Program, source: bytes) -> None:
    """Refuse a sweep.

    Raises:
        UsageError: where a Hydra application is told to run many times.
    """
    asked = [word for word in program.args if word in MULTIRUN]
    if not asked or not MAIN.search(source):
        return
    raise UsageError(
        f"{asked[0]} has Hydra train several times in one start, and a search needs one training. "
        "Leave it out, with one value for each override."
    )
