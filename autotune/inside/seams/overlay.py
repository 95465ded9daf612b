"""Makes up for differences between an overlay and a plain file system.

A trial sees the user's files through overlays, so that it cannot change them. Covered:

- Renames: renaming a folder, or a file into another overlay, fails with EXDEV where it would work
  on the real files. Here it is done by copying, within the trial's view.
- Large files: an overlay copies a file completely when it is first opened for change. A file larger
  than trials may write is refused before that.
- Hard links: a trial changes one link, and the others keep the old content. The user is told.

Only calls from Python are covered. C libraries and subprocesses get EXDEV, which mv(1) handles.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from typing import Any

from autotune.inside.hubs.patches import Patches, Seam

LARGE_BYTES = 1 << 30  # copying takes seconds; the user is told why the start is slow
WRITING = os.O_WRONLY | os.O_RDWR


class OverlaySeam(Seam):
    """Makes renames work in an overlay, and checks files that are opened for change.

    ``SeamSet.guard_files()`` installs it before the program starts, if overlays are the fence of
    the trial. The patched functions run on any thread, and in forked children of the program.

    Args:
        devices: Device numbers of the real files, by the folders that overlays cover.
        max_bytes: How much the program may write; None for no limit.
        tell: Called with sentences for the user, once each and only in the process in which the
            seam was made.
    """

    def __init__(
        self, devices: Mapping[str, int], max_bytes: int | None, tell: Callable[[str], None]
    ) -> None:
        # the innermost folder that covers a path decides
        self._devices = sorted(devices.items(), key=lambda item: len(item[0]), reverse=True)
        self._max_bytes = max_bytes
        self._tell = tell
        self._process = os.getpid()
        self._told: set[str] = set()
        self._patches = Patches()

    def install(self) -> None:
        """Patch ``os.rename``, ``os.replace``, ``open`` and ``os.open``."""
        for name in ("rename", "replace"):
            self._patches.replace(os, name, self._renaming(getattr(os, name)))
        original = builtins.open
        seam = self

        def checked_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            # "w" and "x" begin with an empty file: nothing of it would be copied
            if "a" in mode or ("+" in mode and "r" in mode):
                seam._opened(file)
            return original(file, mode, *args, **kwargs)

        for module in (builtins, io):  # pathlib opens by io.open
            self._patches.replace(module, "open", checked_open)
        original_os_open = os.open

        def checked_os_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            # A file that is truncated is not copied. A path relative to dir_fd is not checked.
            if flags & WRITING and not flags & os.O_TRUNC and not kwargs:
                seam._opened(path)
            return original_os_open(path, flags, *args, **kwargs)

        self._patches.replace(os, "open", checked_os_open)

    def _renaming(self, original: Callable[..., None]) -> Callable[..., None]:
        seam = self

        def rename(src: Any, dst: Any, **kwargs: Any) -> None:
            try:
                original(src, dst, **kwargs)
            except OSError as error:
                if error.errno != errno.EXDEV or kwargs or not seam._was_one_device(src, dst):
                    raise
                _move(src, dst, original)

        return rename

    def _was_one_device(self, src: Any, dst: Any) -> bool:
        """Tell whether the real files lie on one file system, so that renaming would work.

        Otherwise EXDEV is the true answer, which the program would get without an overlay, too.
        """
        ours, theirs = self._device(src), self._device(dst)
        return ours is not None and ours == theirs

    def _device(self, path: Any) -> int | None:
        parent = os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path))))
        for covered, device in self._devices:
            if parent == covered or parent.startswith(f"{covered.rstrip('/')}/"):
                return device
        return None

    def _opened(self, file: Any) -> None:
        """Check a file that is about to be opened for change, which makes the overlay copy it.

        Raises:
            OSError: with ENOSPC, if the file is larger than the trial may write.
        """
        if not isinstance(file, (str, bytes, os.PathLike)):
            return
        try:
            status = os.stat(file)
        except OSError:
            return
        if not stat.S_ISREG(status.st_mode):  # such as a folder, opened for an O_TMPFILE file
            return
        name = os.fsdecode(file)
        if self._max_bytes is not None and status.st_size > self._max_bytes:
            raise OSError(
                errno.ENOSPC,
                f"autotune: to change this file, a trial would copy its "
                f"{status.st_size / 2**20:,.0f} MiB, but may write only "
                f"{self._max_bytes / 2**20:,.0f} MiB. Open it read-only (mode 'r'), or search with "
                "a larger --max-scratch",
                name,
            )
        if status.st_size > LARGE_BYTES:
            self._say(
                f"{name} is opened for change: each process of the search copies its "
                f"{status.st_size / 2**20:,.0f} MiB first. Open it read-only to avoid the copy."
            )
        if status.st_nlink > 1:
            self._say(
                f"{name} has {status.st_nlink} hard links and is opened for change: in a trial "
                "the other links do not see what is written."
            )

    def _say(self, sentence: str) -> None:
        if os.getpid() == self._process and sentence not in self._told:
            self._told.add(sentence)
            self._tell(sentence)


def _move(src: Any, dst: Any, rename: Callable[..., None]) -> None:
    """Do by copying what rename(2) does on one file system.

    The copy is made in the target's folder and then renamed to the target, so that readers never
    see an incomplete one. If copying fails, source and target stay as they were.
    """
    is_folder = os.path.isdir(src) and not os.path.islink(src)
    parent, name = os.path.split(os.path.abspath(os.fsdecode(dst)))
    part = os.path.join(parent, f".{name}.autotune-{os.getpid()}")
    try:
        if is_folder:
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
    """Remove a file, a link or a folder, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
