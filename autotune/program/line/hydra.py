"""Refuse Hydra multi-runs, because they train several times in one start.

Only a program that uses ``hydra.main`` lets Hydra read its command line. In any other program, even
one that composes a Hydra config, ``-m`` is the program's own option and is left alone.
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
    """Raise an error if a Hydra application is told to run a sweep.

    Args:
        program: The program with its arguments.
        source: The program's source, which is searched for ``hydra.main``.

    Raises:
        UsageError: The arguments request a multi-run of a Hydra application.
    """
    asked = [word for word in program.args if word in MULTIRUN]
    if not asked or not MAIN.search(source):
        return
    raise UsageError(
        f"{asked[0]} has Hydra train several times in one start, and a search needs one training. "
        "Leave it out, with one value for each override."
    )
