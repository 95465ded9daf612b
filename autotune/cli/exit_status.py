"""Exit statuses: how a command of autotune ended, as shells and scripts read it."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class ExitStatus(IntEnum):
    """Every status with which a command ends, and what it means.

    ``autotune run`` becomes the training, so that its status is the training's.

    Those from 129 on are 128 and the number of the signal, as shells report it.

    Attributes:
        meaning: A sentence for the guide.
    """

    meaning: str

    DONE = 0, "It did what it says. A search that found nothing ends like this, too."
    SLOWER = 1, "Of compare --fail-if-slower: slower by more than that, or it trains otherwise."
    REFUSED = 2, "It is refused or impossible; stderr says what is wrong and how to mend it."
    NOTHING_MEASURED = 3, "Of a search: nothing but the program as written could be measured."
    UNDECIDED = 4, "Of compare --fail-if-slower: it cannot be told; a longer --budget decides."
    DEFECT = 70, "A defect of autotune; its traceback is on stderr. Please report it."
    HUNG_UP = 129, "Ended by SIGHUP. A search still writes and prints what it has measured."
    INTERRUPTED = 130, "Aborted by Ctrl-C before there was a result."
    TERMINATED = 143, "Ended by SIGTERM. A search still writes and prints what it has measured."

    def __new__(cls, status: int, meaning: str) -> Self:
        """Make a member, which is the number that a process ends with."""
        member = int.__new__(cls, status)
        member._value_ = status
        member.meaning = meaning
        return member
