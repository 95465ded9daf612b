"""Finding: how a search came out, in the words of the console, the report, lists and JSON."""

from __future__ import annotations

from enum import StrEnum

# A speedup that people would still look for: where even the upper bound of what was tried is
# below, more time or a quieter machine changes nothing of use
WORTH_FINDING = 1.2


class Finding(StrEnum):
    """How a search came out.

    - ``FASTER``: a config was confirmed to be faster than the program as written.
    - ``NOTHING_FOUND``: no config is faster, and none could be by ``WORTH_FINDING``.
    - ``TOO_NOISY``: none is confirmed to be faster, but the best one may be by that much.
    - ``UNCONFIRMED``: the search ended before the config that looked faster was confirmed.
    - ``AT_LIMIT``: no config is faster, and none can be: the machine does what it can.
    - ``NOT_MEASURED``: configs could be tried, but only the program as written was measured.
    """

    FASTER = "faster"
    NOTHING_FOUND = "nothing found"
    TOO_NOISY = "too noisy to tell"
    UNCONFIRMED = "not confirmed"
    AT_LIMIT = "at the limit"
    NOT_MEASURED = "nothing measured"
