"""Own code: where in the program a call comes from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch

from autotune.inside.code.frames import is_library

TORCH = f"{Path(torch.__file__).parent}/"
AUTOTUNE = f"{Path(__file__).parents[2]}/"
# What torch does to parameters and gradients in there, the seams know
TORCHS_WORK = tuple(
    f"{TORCH}{part}" for part in ("optim/", "amp/", "autograd/", "distributed/", "nn/utils/clip_")
)
# These know what a step is, and do at a step what belongs there
TRAINERS = {"lightning", "pytorch_lightning", "lightning_fabric", "transformers", "accelerate"}
# These ask how long something is to show how far it is
PROGRESS_BARS = {"tqdm", "rich", "fastprogress", "progressbar", "alive_progress"}


def place_of_hand_work(frame: FrameType | None) -> str:
    """Return the file and line that has something done to tensors, empty if torch or a trainer."""
    for file, line in _calls(frame):
        if file.startswith(TORCHS_WORK):
            return ""
        if not file.startswith((TORCH, AUTOTUNE)):
            return "" if TRAINERS & set(Path(file).parts) else _place(file, line)
    return ""


def place_of_program(frame: FrameType | None) -> str:
    """Return the file and line of a call by the program itself, empty if a library makes it."""
    for file, line in _calls(frame):
        if not file.startswith((TORCH, AUTOTUNE)):
            return "" if is_library(file) else _place(file, line)
    return ""


def is_shown(frame: FrameType | None) -> bool:
    """Tell whether a call comes from a progress bar."""
    callers = (file for file, _ in _calls(frame) if not file.startswith((TORCH, AUTOTUNE)))
    return bool(PROGRESS_BARS & set(Path(next(callers, "")).parts))


def _calls(frame: FrameType | None) -> Iterator[tuple[str, int]]:
    """Files and lines, the innermost call first."""
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def _place(file: str, line: int) -> str:
    """A short name: as the file would be imported, or without its folders."""
    folders = [Path(folder or ".").resolve() for folder in sys.path]
    path = Path(file).resolve()
    names = [str(path.relative_to(f)) for f in folders if path.is_relative_to(f)]
    return f"{min(names, key=len, default=path.name)}:{line}"
