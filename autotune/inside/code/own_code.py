"""Tell from the call stack whether the program, a library, or torch made a call."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch

from autotune.inside.code.frames import is_library

TORCH = f"{Path(torch.__file__).parent}/"
AUTOTUNE = f"{Path(__file__).parents[2]}/"
# Other seams handle what torch itself does to parameters and gradients in these places.
TORCHS_WORK = tuple(
    f"{TORCH}{part}" for part in ("optim/", "amp/", "autograd/", "distributed/", "nn/utils/clip_")
)
# Trainers know when an optimizer step is due, and work on gradients and averages only then.
TRAINERS = {"lightning", "pytorch_lightning", "lightning_fabric", "transformers", "accelerate"}
# Progress bars read a length only for display.
PROGRESS_BARS = {"tqdm", "rich", "fastprogress", "progressbar", "alive_progress"}


def place_of_hand_work(frame: FrameType | None) -> str:
    """Return the file and line outside torch that changes tensors by hand.

    Empty if torch's own training code or a trainer library does it.
    """
    for file, line in _calls(frame):
        if file.startswith(TORCHS_WORK):
            return ""
        if not file.startswith((TORCH, AUTOTUNE)):
            return "" if TRAINERS & set(Path(file).parts) else _place(file, line)
    return ""


def place_of_program(frame: FrameType | None) -> str:
    """Return the file and line of the program that makes a call; empty if a library makes it.

    Frames of torch and autotune are skipped.
    """
    for file, line in _calls(frame):
        if not file.startswith((TORCH, AUTOTUNE)):
            return "" if is_library(file) else _place(file, line)
    return ""


def is_shown(frame: FrameType | None) -> bool:
    """Return whether a progress bar makes a call.

    Frames of torch and autotune are skipped; the next one tells.
    """
    callers = (file for file, _ in _calls(frame) if not file.startswith((TORCH, AUTOTUNE)))
    return bool(PROGRESS_BARS & set(Path(next(callers, "")).parts))


def _calls(frame: FrameType | None) -> Iterator[tuple[str, int]]:
    """Yield file and line of a frame and its callers, the innermost first."""
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def _place(file: str, line: int) -> str:
    """Return a short name for a line: the file relative to the import path, or its name alone."""
    folders = [Path(folder or ".").resolve() for folder in sys.path]
    path = Path(file).resolve()
    names = [str(path.relative_to(f)) for f in folders if path.is_relative_to(f)]
    return f"{min(names, key=len, default=path.name)}:{line}"
