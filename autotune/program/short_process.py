"""Ask a process that answers soon, and wait no longer than that, whatever it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence


def answer_of(
    argv: Sequence[str],
    timeout_s: float,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a command without input until it exits, and return its exit code and what it printed.

    Raises:
        subprocess.TimeoutExpired: when it takes longer; it has been killed with its group.
        OSError: when it cannot be started.
    """
    # Files and no pipes: a process that it leaves behind, as a sitecustomize may start one, would
    # hold a pipe open for as long as it lives
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            pass_fds=tuple(pass_fds),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=complained,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # it is not reaped yet, so the id is still its
            process.wait()
            raise
        texts = []
        for file in (said, complained):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return subprocess.CompletedProcess(argv, code, *texts)
