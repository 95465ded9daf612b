"""How long Python takes to end: a second or more once torch is loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

# Without the current directory, which may hold a file called torch.py
COMMAND = (sys.executable, "-P", "-c", "import torch; print(flush=True)")
MOST_S = 10.0


def python_exit_s(clock: Callable[[], float]) -> float | None:
    """Return the seconds that a process takes to end which has loaded torch and done nothing.

    None if it fails, or does not end within ``MOST_S``.

    Args:
        clock: Monotonic seconds.
    """
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None, "it is a pipe"
        has_loaded = bool(process.stdout.readline())
        began_s = clock()
        try:
            has_failed = bool(process.wait(MOST_S))
        except subprocess.TimeoutExpired:
            process.kill()
            return None
        return clock() - began_s if has_loaded and not has_failed else None
