"""Describe what the program does while it makes no step, from the stack of its main thread."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import CodeType

from autotune.inside.code.frames import INSTALLED, is_programs, stack

LOADER = str(Path("torch", "utils", "data", "dataloader.py"))
PROCESSES = f"{os.sep}multiprocessing{os.sep}"  # in the paths of Python's package and of torch's
WAITED_FOR_PROCESSES = "waited for processes that it had started itself"


def doing() -> str:
    """Return in a few words what the main thread does; empty if that cannot be told.

    ``Reporter`` calls it in a background thread while it waits for the first steps, and sends the
    text to the parent.
    """
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main) if main is not None else None  # noqa: SLF001
    return describe([(f.f_code, f.f_lineno) for f in stack(frame)])


def waits_for_processes() -> bool:
    """Return whether the main thread is waiting for processes that the program has started.

    Such a program probably trains in those processes instead of this one.
    """
    return doing().startswith(WAITED_FOR_PROCESSES)


def describe(calls: list[tuple[CodeType, int]]) -> str:
    """Return in a few words what a stack does, with the function and line of the program's code.

    Args:
        calls: Code and line number of each call, the innermost first.

    Returns:
        A clause such as ``waited for a batch of its DataLoader in main (train.py:7)``; empty if no
        call is the program's own. The parent looks for words of these clauses to suggest a remedy.
    """
    files = [code.co_filename for code, _ in calls]
    what = "was busy"
    if any(file.endswith(LOADER) for file in files):
        what = "waited for a batch of its DataLoader"
    elif any(file.startswith(INSTALLED) and PROCESSES in file for file in files):
        what = WAITED_FOR_PROCESSES
    for code, line in calls:
        if is_programs(code):
            place = f"{Path(code.co_filename).name}:{line}"
            is_function = code.co_name != "<module>"
            return f"{what} in {code.co_name} ({place})" if is_function else f"{what} at {place}"
    return ""
