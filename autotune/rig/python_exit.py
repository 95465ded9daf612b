"""How long Python takes to end: a second or more once torch is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from threading import Timer

WORD = b"autotune: loaded\n"
CODE = f"import sys, torch; print(); print({WORD.decode().strip()!r}, flush=True)"
# Without the current directory, which may hold a file called torch.py
COMMAND = (sys.executable, "-P", "-c", CODE)


def python_exit_s(
    clock: Callable[[], float], most_s: float, env: Mapping[str, str]
) -> float | None:
    """Return the seconds that a process takes to end which has loaded torch and done nothing else.

    None if it fails, or has not ended in time.

    Args:
        clock: Monotonic seconds.
        most_s: Seconds after which it is ended.
        env: Environment variables that the user's command line sets.
    """
    with subprocess.Popen(
        COMMAND,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **env},
    ) as process:
        assert process.stdout is not None, "it is a pipe"
        patience = Timer(most_s, process.kill)
        patience.start()
        try:
            has_loaded = any(line == WORD for line in process.stdout)
            began_s = clock()
            has_failed = bool(process.wait())
            return clock() - began_s if has_loaded and not has_failed else None
        finally:
            patience.cancel()
            patience.join()
