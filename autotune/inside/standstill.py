"""What the program does while it makes no step: read from the stack of its main thread."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import CodeType

from autotune.inside.code.frames import INSTALLED, is_programs, stack

LOADER = str(Path("torch", "utils", "data", "dataloader.py"))
PROCESSES = f"{os.sep}multiprocessing{os.sep}"  # Python's own, and torch's beside it
WAITED_FOR_PROCESSES = "waited for processes that it had started itself"


def doing() -> str:
    """Return in a few words what the main thread does, empty where that cannot be told."""
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main) if main is not None else None  # noqa: SLF001
    return describe([(f.f_code, f.f_lineno) for f in stack(frame)])


def waits_for_processes() -> bool:
    """Tell whether the main thread does nothing but wait for processes it has started."""
    return doing().startswith(WAITED_FOR_PROCESSES)


def describe(calls: list[tuple[CodeType, int]]) -> str:
    """Return in a few words what a stack does, the innermost call first."""
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
