"""Processes that a program starts under ``autotune run``: the config is applied in them too.

Forked processes begin as copies of one that has the config. Spawned processes and scripts begin
without it. Workers of pools do not train, and are left as they are.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

from autotune.inside.seams.started import Act, Host, Script, StartedSeam, Starting
from autotune.inside.steering import install
from autotune.program.applied_config import AppliedConfig


class Configured:
    """Runs in a spawned process instead of the program's function: apply the config, then train."""

    def __init__(self, act: Act, applied: AppliedConfig) -> None:
        self._act = act
        self._applied = applied

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the config, run the program's function and return what it returns."""
        seams = install(self._applied, is_late=True)
        try:
            return self._act(*args, **kwargs)
        finally:
            # A model that outlives its process group ends the process by SIGABRT (gloo's threads).
            seams.remove()
            seams.model.forward.roots.clear()
            gc.collect()


class RunChildren(Host):
    """Applies a config to processes that do not begin as copies of a process that has it.

    ``StartedSeam`` calls it on the program's own thread when a process is about to start.
    """

    def __init__(self, applied: AppliedConfig, command: Sequence[str]) -> None:
        self._applied = applied
        self._command = command
        StartedSeam(self).install()

    def process_starts(self, starting: Starting, act: Act) -> Act | None:
        """Return what a process runs in place of its target; None leaves it as it is."""
        return None if starting.forks or starting.pools else Configured(act, self._applied)

    def script_starts(self, starting: Starting, args: Sequence[str]) -> Script:  # noqa: ARG002
        """Return the command that starts the script again as a rank, under the config."""
        return Script((sys.executable, *self._command, *args), {})
