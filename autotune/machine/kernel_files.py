"""Read the small files in which the kernel tells of itself; one that is missing is empty."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path


def text_of(path: Path) -> str:
    """Return a file's text; empty if it cannot be read.

    Names of groups and mount points need not be valid UTF-8. A file of a feature that was switched
    off at boot may exist and refuse to be read.
    """
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def unescaped(text: str) -> str:
    r"""Return a path of /proc/self/mountinfo as it is: a space stands there as ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)


def cpu_list(text: str) -> set[int]:
    """Return the CPUs of a list as the kernel writes it, ``0-3,8``; none of what is no list."""
    with suppress(ValueError):
        ends = (part.partition("-") for part in text.strip().split(",") if part)
        return {cpu for low, _, high in ends for cpu in range(int(low), int(high or low) + 1)}
    return set()
