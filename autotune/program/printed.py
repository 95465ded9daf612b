"""What a program printed last: the line that stood on its screen when it asked for something."""

from __future__ import annotations

import re

CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# Printed after a question: by the rig for an exception, and by click
FAILURE = re.compile(r"Traceback \(most recent call last\):|Aborted!")
MAX_CHARACTERS = 200


def last_line(text: str) -> str:
    """Return the last line that is not empty and no word of a failure; empty without one."""
    before = FAILURE.split(CONTROL.sub("", text), maxsplit=1)[0]
    lines = [line.strip() for line in re.split(r"[\r\n]+", before)]
    return next((line for line in reversed(lines) if line), "")[-MAX_CHARACTERS:]
