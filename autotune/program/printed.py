"""The last line that a program printed.

When a program waits for input, this is usually its question, which the message to the user quotes.
"""

from __future__ import annotations

import re

CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# What follows the question in the output: a traceback printed by the rig, or click's message
FAILURE = re.compile(r"Traceback \(most recent call last\):|Aborted!")
MAX_CHARACTERS = 200


def last_line(text: str) -> str:
    """Return the last non-empty line of a program's output, at most its last 200 characters.

    Without control sequences, and without what follows a question: a traceback or "Aborted!".
    """
    before = FAILURE.split(CONTROL.sub("", text), maxsplit=1)[0]
    # Progress bars return to the beginning of their line with \r.
    lines = [line.strip() for line in re.split(r"[\r\n]+", before)]
    return next((line for line in reversed(lines) if line), "")[-MAX_CHARACTERS:]
