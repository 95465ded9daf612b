"""Copy a dataset for worker processes, without the files that its items opened in this process.

Many datasets open their file when the first item is read. Workers must not share such a file or
connection with each other or with this process, so the copy they get is as if it had never been
opened.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from autotune.inside.data.datasets import Kind, Path, Picture, Step, look


def lasting_handles(dataset: Any, built: Picture | None) -> dict[Path, str]:
    """Return the open files and connections that workers would share, with their kinds.

    Args:
        dataset: The program's own.
        built: A picture of the dataset before any item was read; None if there is none. Handles
            that it does not show as open can be undone, and are left out of the result.
    """
    handles = look(dataset=dataset).of(Kind.HANDLE)
    return {p: str(h.value) for p, h in handles.items() if not _can_go_back(p, built)}


def without_handles(dataset: Any, built: Picture) -> Any:
    """Return the dataset in the state that workers of a fresh process would get.

    What the items opened on first use is unset again, so that each worker opens it for itself. Only
    the objects that lead to such handles are copied; everything else is shared with the original.

    Args:
        dataset: The program's own; returned itself if its items have opened nothing.
        built: A picture of the dataset before any item was read.
    """
    handles = look(dataset=dataset).of(Kind.HANDLE)
    back = [path for path in handles if _can_go_back(path, built)]
    return _without(dataset, [path[1:] for path in back], back[0][:1], built) if back else dataset


def _can_go_back(path: Path, built: Picture | None) -> bool:
    """Return whether a handle can be unset: the dataset had nothing, or None, in its place before.

    Handles that are reached by a global, a closure or a class attribute stay, since a copy of the
    dataset would not change them.
    """
    if built is None or any(step.how not in ("root", "attr", "item") for step in path):
        return False
    was = built.parts.get(path)
    return was is None or was.value is None


def _without(part: Any, paths: Sequence[Path], place: Path, built: Picture) -> Any:
    """Return a copy of an object in which the handles at *paths* are unset.

    Args:
        part: The object.
        paths: Of the handles, from this object on.
        place: Path of the object in the picture.
        built: A picture of the dataset before any item was read.
    """
    below: dict[Step, list[Path]] = defaultdict(list)
    for path in paths:
        below[path[0]].append(path[1:])
    new = _shallow(part)
    for step, rest in below.items():
        holder = vars(new) if step.how == "attr" else new
        here = (*place, step)
        if rest != [()]:
            holder[step.key] = _without(holder[step.key], rest, here, built)
        # it was None before, or it is an entry of a list, whose length must stay
        elif here in built.parts or isinstance(holder, list):
            holder[step.key] = None
        else:
            del holder[step.key]
    return type(part)(new) if isinstance(part, tuple) else new


def _shallow(part: Any) -> Any:
    """Return a shallow copy without calling any code of the object's class; tuples become lists."""
    if isinstance(part, tuple):
        return list(part)
    if isinstance(part, (list, dict)):
        return copy.copy(part)
    new = object.__new__(type(part))
    vars(new).update(vars(part))
    return new
