"""Makes renames work behind overlays, as they do on a plain file system.

Renaming a folder, or a file into another overlay, fails there with EXDEV. For calls from Python it
is done by copying instead, within the trial's view; mv(1) does so by itself.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from typing import Any

from autotune.inside.hubs.patches import Patches, Seam


class OverlaySeam(Seam):
    """Copies what an overlay cannot rename.

    ``FenceSeams.guard_files()`` installs it before the program starts, if overlays are the fence of
    the trial. The patched functions run on any thread, and in forked children of the program.
    """

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self) -> None:
        """Patch ``os.rename`` and ``os.replace``."""
        for name in ("rename", "replace"):
            self._patches.wrap(os, name, _rename)


def _rename(original: Callable[..., None], src: Any, dst: Any, **kwargs: Any) -> None:
    try:
        original(src, dst, **kwargs)
    except OSError as error:
        if error.errno != errno.EXDEV or kwargs:
            raise
        _move(src, dst, original)


def _move(src: Any, dst: Any, rename: Callable[..., None]) -> None:
    """Do by copying what rename(2) does on one file system.

    The copy is made in the target's folder and then renamed to the target, so that readers never
    see an incomplete one. If copying fails, source and target stay as they were.
    """
    parent, name = os.path.split(os.path.abspath(os.fsdecode(dst)))
    part = os.path.join(parent, f".{name}.autotune-{os.getpid()}")
    try:
        if os.path.isdir(src) and not os.path.islink(src):
            shutil.copytree(src, part, symlinks=True)
            if os.path.lexists(dst):
                os.rmdir(dst)
        else:
            shutil.copy2(src, part, follow_symlinks=False)
        rename(part, dst)
    except BaseException:
        _remove(part)
        raise
    _remove(src)


def _remove(path: Any) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
