"""The files that a program is made of: its script, and what it imports of the user's.

An edit during a search makes two programs of one, so what each process imports is compared.

Covered: Python and extension modules, wherever they lie but in the standard library and in
site-packages. Not covered: data, Python that is run and not imported, libraries loaded by path.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.errors import ProgramError
from autotune.files import access

MOST_BYTES = 256 << 20  # torch's largest extension module in Python, of CUDA kernels, has as much
MOST_NAMED = 3  # in one sentence
Files = Mapping[str, str]  # SHA-256 of each file's content, by its absolute path


def digest_of(path: str | Path) -> str:
    """Return the SHA-256 of a file; empty if it cannot be read, is no file, or is too large."""
    try:
        # The path may come from somebody else: opening a device alone may have an effect
        file = Path(path)
        if not file.is_file() or file.stat().st_size > MOST_BYTES:
            return ""
        with access.opened(file) as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except (OSError, ValueError):  # ValueError: a path with a zero byte
        return ""


def changed(files: Files) -> list[str]:
    """Return the names, as users know them, of files that are gone or have another content now."""
    return [shown(path) for path, digest in files.items() if digest_of(path) != digest]


def listed(names: Sequence[str]) -> str:
    """Return names of files with commas between them; of many, the first ones and how many more."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def shown(path: str) -> str:
    """Return a path relative to the present directory, if it lies below."""
    return path if (near := os.path.relpath(path)).startswith(os.pardir) else near


class Sources:
    """What the processes of a search were seen to import.

    Args:
        known: What was seen before.
        apart: Folders of caches: what libraries download or compile there is not the user's.

    Attributes:
        known: The user's files; what a trial has made behind its fence is none of them.
    """

    def __init__(self, known: Files, apart: Sequence[Path] = ()) -> None:
        self.known = dict(known)
        self._apart = apart
        self._made: dict[str, str] = {}

    def saw(self, path: str, digest: str, changed_ns: int) -> None:
        """Note that a process has imported a file with this content.

        Args:
            changed_ns: When it was changed; the disk may have an equal copy of what a trial made.

        Raises:
            ProgramError: when another one has imported it with another content.
        """
        known = self.known.get(path)
        if known == digest:
            return
        first, today = known or self._made.setdefault(path, digest), digest_of(path)
        if known is None:
            is_apart = any(Path(path).resolve().is_relative_to(one) for one in self._apart)
            is_its_own = today != digest or Path(path).stat().st_mtime_ns != changed_ns
            is_users = not (is_apart or is_its_own)
        else:
            is_users = today != known  # else a trial has written its own over it, behind its fence
        if is_users and first != digest:
            raise ProgramError(f"{shown(path)} has changed since the search began.")
        if is_users:
            self.known[path] = digest
