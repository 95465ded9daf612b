"""Own code: where in the program's own files it is, as other libraries' frames lie above."""

from __future__ import annotations

import hashlib
import linecache
import sys
import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import FrameType

import torch

FRAMES = 2  # that tell one place from another: who builds, and who asks for that
LIBRARIES = tuple(
    {
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
        str(Path(torch.__file__).parent),
        str(Path(__file__).parents[1]),
        "<",
    }
)


def line() -> str:
    """Return the file and line at which the program is; empty where none of its code runs."""
    frame = next(_frames(), None)
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def site() -> str:
    """Return what tells this place from others by its text, wherever the text has moved to."""
    told = [
        f"{frame.f_code.co_name}: {linecache.getline(frame.f_code.co_filename, frame.f_lineno)}"
        for frame in islice(_frames(), FRAMES)
    ]
    return hashlib.sha256("".join(told).encode()).hexdigest()[:12] if told else ""


def _frames() -> Iterator[FrameType]:
    """Yield the frames of the program's own code, the innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the stack as it is
    while frame is not None:
        if not frame.f_code.co_filename.startswith(LIBRARIES):
            yield frame
        frame = frame.f_back
