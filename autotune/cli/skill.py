"""Command skill: instructions for coding agents that use autotune."""

from __future__ import annotations

import sys
from importlib.resources import files

FILE = "SKILL.md"


def skill() -> None:
    """Print instructions for coding agents: procedure, JSON keys, exit codes, what never to do."""
    sys.stdout.write(text())


def text() -> str:
    """Return the instructions, which are shipped with the package."""
    return files("autotune.cli").joinpath(FILE).read_text(encoding="utf-8")
