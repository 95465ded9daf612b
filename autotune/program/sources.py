"""The files that a program is made of: its script, and what it imports of the user's.

A search measures one program. A file that is edited meanwhile makes two of it, so what each process
imports is compared with what the first ones did.

Covered: Python and extension modules, wherever they lie but in the standard library and in
site-packages. Not covered: data and configuration files, Python that is run and not imported
(``runpy``, ``exec``), libraries that are loaded by their path.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


class Sources:
    """What the processes of a search were seen to import.

    Args:
        known: What was seen before.
        apart: Folders of caches: what libraries download or compile there is not the user's.

    Attributes:
        known: The user's files. What a trial has made behind its fence is none: the disk has it
            not, or otherwise.
    """

    def __init__(self, known: Files, apart: Sequence[Path] = ()) -> None:
        self.known = dict(known)
        self._apart = apart
        self._made: dict[str, str] = {}

    def saw(self, path: str, digest: str, changed_ns: int) -> None:
        """Note that a process has imported a file with this content.

        Args:
            changed_ns: When the file that it saw was last changed. Of what it has made behind the
                fence, the disk may have an older copy with the same content.

        Raises:
            ProgramError: when another one has imported it with another content.
        """
        known = self.known.get(path)
        if known == digest:
            return
        first, today = known or self._made.setdefault(path, digest), digest_of(path)
        if known is None:
            is_apart = any(Path(os.path.realpath(path)).is_relative_to(one) for one in self._apart)
            is_users = not is_apart and today == digest and _changed_ns(path) == changed_ns
        else:
            is_users = today != known  # else a trial has written its own over it, behind its fence
        if is_users and first != digest:
            raise ProgramError(f"{shown(path)} has changed since the search began.")
        if is_users:
            self.known[path] = digest


def _changed_ns(path: str) -> int | None:
    with suppress(OSError):
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - a str, as it was imported
    return None
