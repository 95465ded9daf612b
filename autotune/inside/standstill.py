"""What the program does while it makes no step: read from the stack of its main thread."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

LOADER = str(Path("torch", "utils", "data", "dataloader.py"))
PROCESSES = f"{os.sep}multiprocessing{os.sep}"  # Python's own, and torch's beside it
WAITED_FOR_PROCESSES = "waited for processes that it had started itself"
OURS = str(Path(__file__).parent.parent) + os.sep
INSTALLED = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def doing() -> str:
    """Return in a few words what the main thread does, empty where that cannot be told."""
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main) if main is not None else None  # noqa: SLF001
    return describe(list(_stack(frame)))


def waits_for_processes() -> bool:
    """Tell whether the main thread does nothing but wait for processes it has started."""
    return doing().startswith(WAITED_FOR_PROCESSES)


def describe(stack: list[tuple[CodeType, int]]) -> str:
    """Return in a few words what a stack does, the innermost call first."""
    files = [code.co_filename for code, _ in stack]
    what = "was busy"
    if any(file.endswith(LOADER) for file in files):
        what = "waited for a batch of its DataLoader"
    elif any(file.startswith(INSTALLED) and PROCESSES in file for file in files):
        what = WAITED_FOR_PROCESSES
    for code, line in stack:
        if not code.co_filename.startswith((OURS, *INSTALLED, "<frozen")):
            place = f"{Path(code.co_filename).name}:{line}"
            is_function = code.co_name != "<module>"
            return f"{what} in {code.co_name} ({place})" if is_function else f"{what} at {place}"
    return ""


def _stack(frame: FrameType | None) -> Iterator[tuple[CodeType, int]]:
    while frame is not None:
        yield frame.f_code, frame.f_lineno
        frame = frame.f_back
