"""Tell which calls on the stack belong to the program, and where they are in its files."""

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
PROGRAM_PLACES: list[str] = []  # packages of an installed program; filled before it starts
SITE_FRAMES = 2  # program frames that identify a site: the one that builds, and its caller


@dataclass(frozen=True)
class Place:
    """A line of a file; its text is the file's name and the line, such as ``train.py:12``."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def stack(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers, the innermost first; nothing for None."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_programs(code: CodeType) -> bool:
    """Return whether code belongs to the program: neither to autotune nor installed with Python.

    Code without a file, as ``exec`` makes it, does not belong to the program.
    """
    return is_programs_file(code.co_filename)


def is_programs_file(file: str) -> bool:
    """Return whether a file belongs to the program; one of ``exec`` has no path and does not."""
    if file.startswith(tuple(PROGRAM_PLACES)):
        return True
    return not is_library(file) and not file.startswith((OURS, *INSTALLED, "<frozen", "<string>"))


def is_library(file: str) -> bool:
    """Return whether a file is installed in any environment, except as part of the program.

    The folders ``site-packages`` and ``dist-packages`` tell, also those of other environments.
    """
    is_installed = any(folder in file for folder in LIBRARIES)
    return is_installed and not file.startswith(tuple(PROGRAM_PLACES))


def note_program(source: str) -> None:
    """Make the package of the program's file count as the program, even if it is installed.

    Console scripts and ``python -m`` run programs that are installed like libraries.
    """
    folder = next((folder for folder in LIBRARIES if folder in source), None)
    if folder is not None:
        root, _, below = source.partition(folder)
        top, separator, _ = below.partition(os.sep)
        PROGRAM_PLACES.append(f"{root}{folder}{top}{separator}")


def own_place() -> Place | None:
    """Return the innermost line of the program on the stack; None if there is none."""
    own = (f for f in stack(sys._getframe(1)) if is_programs(f.f_code))  # noqa: SLF001
    frame = next(own, None)
    return None if frame is None else Place(frame.f_code.co_filename, frame.f_lineno)


def site() -> str:
    """Return a hash that identifies the calling place of the program by its source text.

    It stays the same if the text moves to other lines, so it holds from one run to the next. Empty
    if the program is not on the stack.
    """
    own = (f for f in stack(sys._getframe(1)) if is_programs(f.f_code))  # noqa: SLF001
    told = [
        f"{frame.f_code.co_name}: {linecache.getline(frame.f_code.co_filename, frame.f_lineno)}"
        for frame in islice(own, SITE_FRAMES)
    ]
    return hashlib.sha256("".join(told).encode()).hexdigest()[:12] if told else ""
