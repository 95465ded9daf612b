"""Frames: which calls on the stack are the program's own, and where they stand in its files."""

from __future__ import annotations

import hashlib
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType

OURS = str(Path(__file__).parents[2]) + os.sep
INSTALLED = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
PROGRAM_PLACES: list[str] = []  # of a program that is itself installed; filled before it starts
SITE_FRAMES = 2  # that tell one place from another: who builds, and who asks for that


@dataclass(frozen=True)
class Place:
    """A line of a file, as people name it."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def stack(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that called it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_programs(code: CodeType) -> bool:
    """Tell whether code is neither ours nor installed with Python."""
    file = code.co_filename
    if file.startswith(tuple(PROGRAM_PLACES)):
        return True
    return not is_library(file) and not file.startswith((OURS, *INSTALLED, "<frozen", "<string>"))


def is_library(file: str) -> bool:
    """Tell whether a file is installed, in this environment, another one or a user's own."""
    is_installed = any(folder in file for folder in LIBRARIES)
    return is_installed and not file.startswith(tuple(PROGRAM_PLACES))


def note_program(source: str) -> None:
    """Have the package of a program's file count as the program, wherever it lies.

    ``launch`` calls it once, before the program starts: console scripts and ``python -m`` run
    programs that are installed like libraries.
    """
    folder = next((folder for folder in LIBRARIES if folder in source), None)
    if folder is not None:
        root, _, below = source.partition(folder)
        top, separator, _ = below.partition(os.sep)
        PROGRAM_PLACES.append(f"{root}{folder}{top}{separator}")


def callers() -> list[FrameType]:
    """Return the frames from our caller's caller outwards, up to the program's first."""
    frames = [f for f in stack(sys._getframe(2)) if not f.f_code.co_filename.startswith(OURS)]  # noqa: SLF001
    own = [number for number, f in enumerate(frames) if is_programs(f.f_code)]
    return frames[: own[-1] + 1] if own else []


def own_place() -> Place | None:
    """Return the line of the program that is being executed, None outside of it."""
    own = (f for f in stack(sys._getframe(1)) if is_programs(f.f_code))  # noqa: SLF001
    frame = next(own, None)
    return None if frame is None else Place(frame.f_code.co_filename, frame.f_lineno)


def site() -> str:
    """Return what tells this place from others by its text, wherever the text has moved to."""
    own = (f for f in stack(sys._getframe(1)) if is_programs(f.f_code))  # noqa: SLF001
    told = [
        f"{frame.f_code.co_name}: {linecache.getline(frame.f_code.co_filename, frame.f_lineno)}"
        for frame in islice(own, SITE_FRAMES)
    ]
    return hashlib.sha256("".join(told).encode()).hexdigest()[:12] if told else ""
