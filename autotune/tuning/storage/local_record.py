"""Local record: where a search in a folder of a network keeps its record, and the copy there.

SQLite is not safe on network file systems, and a lock that can be taken there proves nothing. So
the record is kept on a disk of this machine, and the file in the search's folder is a copy of it,
which is replaced as a whole: when a search begins, every minute, and when it ends. Other machines
read the copy. Here the local file is read, unless another machine has written the copy since: the
digests of the copies that this machine made last tell. What a machine that dies had measured since
the last copy stays on its disk, and counts when the search goes on there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import RecordError
from autotune.files import access
from autotune.machine.file_systems import network_file_system

LOCK_TEST = ".lock-test"
# fcntl(2), and what file systems without locks answer
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO}
MOST_BYTES = 1 << 32  # of a record, which has some MB
ABANDONED_S = 86_400.0  # local files without a copy: nobody begins a search for a day


@dataclass(frozen=True)
class LocalRecord:
    """A record that is kept on a local disk.

    Attributes:
        copy: The file in the search's folder.
        file: The local file, which SQLite opens.
        why: Why the copy cannot be that file, as a clause.
    """

    copy: Path
    file: Path
    why: str

    @classmethod
    def of(cls, path: Path) -> LocalRecord | None:
        """Return where the record of a path is kept; None if SQLite may open that path itself.

        None also where this machine has no local disk and the folder's locks work.

        Raises:
            RecordError: The folder's locks do not work, and there is no local disk.
        """
        folder = path.parent.resolve()
        kind, fault = network_file_system(folder), _lock_fault(folder)
        if not kind and not fault:
            return None
        place = next(_places(), None)
        if place is not None:
            name = hashlib.sha256(os.fsencode(folder / path.name)).hexdigest()[:32]
            why = (
                f"it is on a network file system ({kind})" if kind else f"it has no locks ({fault})"
            )
            return cls(path, place / f"{name}.db", why)
        if fault:
            raise RecordError(
                f"The folder '{folder}' has no locks ({fault}), and no other folder of this "
                "machine can hold the record of a search. Set TMPDIR to one on a local disk."
            )
        return None

    def __str__(self) -> str:
        return (
            f"The record is kept in '{self.file}' and copied to the search's folder each minute, "
            f"because SQLite's locks do not hold there: {self.why}."
        )

    def fetch(self) -> None:
        """Take over the copy, unless the local file is the one that it was made of.

        Raises:
            OSError: It cannot be read.
        """
        if not self.copy.is_file():
            self.forget()
            return
        made = self._made()
        content = access.read(self.copy, MOST_BYTES)
        digest = _digest(content)
        made += self._made()  # a search of this machine may renew the copy meanwhile
        if not self.file.is_file() or digest not in made:
            self._journal.unlink(missing_ok=True)  # it is of the file that goes
            access.write(self.file, content, private=True)
            self._note([digest])

    def forget(self) -> None:
        """Remove the local file, of a search that is gone."""
        for path in (self.file, self._journal, self._notes):
            path.unlink(missing_ok=True)

    def save(self) -> None:
        """Replace the copy by what the local file holds now.

        Raises:
            OSError: It cannot be written; the old copy is as it was.
            sqlite3.Error: The local file cannot be read.
            RecordError: Another machine has written the copy since.
        """
        content = self._content()
        made, digest = self._made(), _digest(content)
        if self.copy.is_file():
            there = _digest(access.read(self.copy, MOST_BYTES))
            if there == digest:
                return
            if there not in made:
                raise RecordError(
                    f"Another machine has taken this search over: it wrote '{self.copy}' since. "
                    f"What was measured here is in '{self.file}'."
                )
            made = [there]
        self._note([*made[-1:], digest])  # before it is there: to die in between loses nothing
        access.write(self.copy, content, private=True)

    def _content(self) -> bytes:
        with tempfile.TemporaryDirectory(dir=self.file.parent) as folder:
            path = Path(folder) / "copy.db"
            with (
                closing(sqlite3.connect(self.file)) as source,
                closing(sqlite3.connect(path)) as to,
            ):
                source.backup(to)
            return path.read_bytes()

    @property
    def _journal(self) -> Path:
        return self.file.with_name(f"{self.file.name}-journal")

    @property
    def _notes(self) -> Path:
        return self.file.with_suffix(".json")

    def _made(self) -> list[str]:
        """Return the digests of the last copies, the latest at the end."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return [str(one) for one in json.loads(self._notes.read_bytes())["copies"]]
        return []

    def _note(self, digests: list[str]) -> None:
        notes = {"of": os.fsdecode(self.copy.resolve()), "copies": digests}
        access.write(self._notes, json.dumps(notes), private=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _lock_fault(folder: Path) -> str:
    """Return why no file in a folder can be locked; empty if one can, or nothing is written there.

    Another process that tests at the same time holds a lock, which is an answer as well.
    """
    path, flags = folder / LOCK_TEST, os.O_RDWR | os.O_CLOEXEC
    try:
        try:  # a file without a name, so that who only reads changes nothing in the folder
            number = os.open(folder, flags | os.O_TMPFILE, 0o600)
        except OSError:  # NFS has no such files
            number = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return ""
    try:
        fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kind that SQLite takes
    except OSError as error:
        return os.strerror(error.errno) if error.errno in NO_LOCKS else ""
    finally:
        os.close(number)
        with suppress(OSError):
            path.unlink()
    return ""


def _places() -> Iterator[Path]:
    """Yield folders on local disks that only this user enters, the most lasting one first."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for base in (home, Path(tempfile.gettempdir()), Path("/var/tmp")):  # noqa: S108
        place = base / f"autotune-records-{os.geteuid()}"
        with suppress(OSError):
            place.mkdir(0o700, parents=base == home, exist_ok=True)
            found = place.lstat()
            is_private = found.st_uid == os.geteuid() and not found.st_mode & 0o077
            is_folder = stat.S_ISDIR(found.st_mode)
            if (
                is_folder
                and is_private
                and not network_file_system(place)
                and not _lock_fault(place)
            ):
                _sweep(place)
                yield place


def _sweep(place: Path) -> None:
    """Remove local records whose search was removed; one whose folder is not mounted now stays."""
    for notes in place.glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            copy = Path(json.loads(notes.read_bytes())["of"])
            age_s = time.time() - notes.stat().st_mtime
            if copy.parent.parent.is_dir() and not copy.exists() and age_s > ABANDONED_S:
                notes.with_suffix(".db").unlink(missing_ok=True)
                notes.unlink()
