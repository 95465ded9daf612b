"""Processes that a program starts itself under ``autotune run``: the config acts in them too."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from autotune.inside.seams.started import Act, Script, StartedSeam, Starting
from autotune.inside.steering import install
from autotune.program.applied_config import AppliedConfig


class Configured:
    """What such a process runs in place of the program's own function.

    Args:
        act: The program's function.
        setting: The config, with what it takes to apply it.
    """

    def __init__(self, act: Act, setting: AppliedConfig) -> None:
        self._act = act
        self._setting = setting

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the config, and do what the program wants."""
        seams = install(self._setting, is_late=True)
        try:
            return self._act(*args, **kwargs)
        finally:
            # A model that outlives its process group ends the process by SIGABRT (gloo's threads).
            seams.remove()
            seams.forward.roots.clear()
            gc.collect()


class RunChildren:
    """Applies a config to processes that do not begin as copies of one that has it.

    The seam calls it in the program's own thread, where a process is about to start. Workers of
    pools are left as they are.

    Args:
        setting: The config, with what it takes to apply it.
        command: What runs the program's script again, without its arguments.
    """

    def __init__(self, setting: AppliedConfig, command: Sequence[str]) -> None:
        self._setting = setting
        self._command = command
        StartedSeam(self).install()

    def process_starts(self, starting: Starting, act: Act) -> Act | None:
        """Return what runs in a process in place of its target; None leaves it alone."""
        return None if starting.forks or starting.pools else Configured(act, self._setting)

    def process_started(self, starting: Starting, process: BaseProcess, act: Act) -> None:
        """There is nobody to tell."""

    def script_starts(self, starting: Starting, args: Sequence[str]) -> Script:  # noqa: ARG002
        """Return the command of a script that the program starts again as a rank."""
        return Script((sys.executable, *self._command, *args), {})

    def script_started(self, starting: Starting, process: subprocess.Popen[Any]) -> None:
        """There is nobody to tell."""
