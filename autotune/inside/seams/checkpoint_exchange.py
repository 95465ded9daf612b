"""The seam by which the first rank tells the others where it saved each checkpoint.

The others load it from there: ``rank_output`` asks ``told_place()`` for the n-th checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.hubs.saving import Save, SaveListener
from autotune.inside.ranks.group import Group


class TellSavesSeam(Seam, SaveListener):
    """Tells the other ranks where the first rank saves, renames and copies checkpoints.

    ``SeamSet.silence()`` installs it on the first rank before the program starts. The patched
    functions run on the thread that saves, and write the path into the group's store, from which
    ``RankOutputSeam`` reads it.

    Args:
        group: The processes that train together.
        place_of: Returns the real path of a file by the name under which it was saved. A guard may
            have redirected it.
    """

    def __init__(self, group: Group, place_of: Callable[[str], str]) -> None:
        self._group = group
        self._place_of = place_of
        self._turns = 0
        self._turn_of: dict[str, int] = {}
        self._places: dict[int, list[str]] = {}
        self._patches = Patches()

    def install(self) -> None:
        """Patch ``os.replace``, ``os.rename`` and ``shutil.copyfile``."""
        for name in ("replace", "rename"):
            self._pass_on(os, name, absolute)
        self._pass_on(shutil, "copyfile", os.path.realpath)

    def after_save(self, save: Save) -> None:
        """Tell where a checkpoint was saved."""
        if save.is_to_path:
            self._turns += 1
            self._tell(os.path.realpath(save.file), self._turns)

    def _pass_on(self, owner: Any, name: str, place_of: Callable[[Any], str]) -> None:
        original = getattr(owner, name)
        seam = self

        def call(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            source, target = place_of(src), place_of(dst)
            done = original(src, dst, *args, **kwargs)
            if source in seam._turn_of:
                seam._tell(target, seam._turn_of[source])
            return done

        self._patches.replace(owner, name, call)

    def _tell(self, real: str, turn: int) -> None:
        self._turn_of[real] = turn
        self._places.setdefault(turn, []).append(self._place_of(real))
        self._group.store.set(_turn_key(turn), self._places[turn])


def told_place(group: Group, turn: int) -> str | None:
    """Return the path at which the first rank has a checkpoint; None until it exists.

    Args:
        group: The processes that train together.
        turn: The checkpoint's number, from 1, in the order of saving.

    Returns:
        The latest of its known paths that still exists.
    """
    places: list[str] = group.store.look(_turn_key(turn)) or []
    return next((place for place in reversed(places) if os.path.exists(place)), None)


def absolute(path: str | os.PathLike[str]) -> str:
    """Return the real path of a file, or of a link itself: renaming does not follow links."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def linked_to(path: str | os.PathLike[str], link: str | os.PathLike[str]) -> str:
    """Return the real path of a link's target; a relative one starts at the link's folder."""
    return os.path.realpath(os.path.join(os.path.dirname(link), path))


def _turn_key(turn: int) -> str:
    return f"checkpoint/{turn}"
