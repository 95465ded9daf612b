"""Copies of a dataset for workers, without the files that its items have opened in this process."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from autotune.inside.data.datasets import Kind, Path, Picture, Step, look


def lasting_handles(dataset: Any, built: Picture | None) -> dict[Path, str]:
    """Return what every worker would share, each with what it is.

    Args:
        dataset: The program's own.
        built: What it held before its items were asked for, None where that is not known.
    """
    handles = look(dataset=dataset).of(Kind.HANDLE)
    return {p: str(h.value) for p, h in handles.items() if not _can_go_back(p, built)}


def without_handles(dataset: Any, built: Picture) -> Any:
    """Return a dataset as workers of a fresh process would get it.

    What items open when the first of them is asked for, each worker opens for itself then. Only
    the objects on the way to such handles are copied, and nothing below them.

    Args:
        dataset: The program's own; returned itself where its items have opened nothing.
        built: What it held before its items were asked for.
    """
    handles = look(dataset=dataset).of(Kind.HANDLE)
    back = [path for path in handles if _can_go_back(path, built)]
    return _without(dataset, [path[1:] for path in back], back[0][:1], built) if back else dataset


def _can_go_back(path: Path, built: Picture | None) -> bool:
    """Tell whether there was nothing where the handle is now, in the dataset itself."""
    if built is None or any(step.how not in ("root", "attr", "item") for step in path):
        return False
    was = built.parts.get(path)
    return was is None or was.value is None


def _without(part: Any, paths: Sequence[Path], place: Path, built: Picture) -> Any:
    below: dict[Step, list[Path]] = defaultdict(list)
    for path in paths:
        below[path[0]].append(path[1:])
    new = _shallow(part)
    for step, rest in below.items():
        holder = vars(new) if step.how == "attr" else new
        here = (*place, step)
        if rest != [()]:
            holder[step.key] = _without(holder[step.key], rest, here, built)
        elif here in built.parts or isinstance(holder, list):
            holder[step.key] = None
        else:
            del holder[step.key]
    return type(part)(new) if isinstance(part, tuple) else new


def _shallow(part: Any) -> Any:
    if isinstance(part, tuple):
        return list(part)
    if isinstance(part, (list, dict)):
        return copy.copy(part)
    new = object.__new__(type(part))
    vars(new).update(vars(part))
    return new
