"""Search directories: ``.autotune/<name>/`` below the current directory, one per search.

A directory holds the record (``study.db``), the logs of all rigs, and best.yaml at the end. Only
its owner enters it, because the logs and the functions of notebooks hold what programs hold. One
that another user has put there, or a link to one, is refused: what lies in it is run.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from shlex import quote
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from autotune.errors import AutotuneError, RunDirectoryError, UsageError, did_you_mean
from autotune.files import access
from autotune.files.access import HOME
from autotune.program.sources import changed, listed
from autotune.tuning.storage.local_record import LocalRecord

if TYPE_CHECKING:
    from autotune.machine.hardware import Hardware
    from autotune.results.record import SearchInfo
    from autotune.tuning.storage.record_storage import RecordStorage
    from autotune.tuning.storage.study import Study

STUDY_NAME = "autotune"
FILE = "study.db"


@dataclass(frozen=True)
class SearchDir:
    """The directory of one search, which may not contain a record yet."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the search, by which ``autotune resume`` finds it."""
        return self.path.name

    @property
    def kept_locally(self) -> LocalRecord | None:
        """Where the record is kept if not in this directory, which then holds a copy."""
        return LocalRecord.of(self.path / FILE)

    @property
    def storage(self) -> RecordStorage:
        """Optuna's storage of the study in this directory."""
        from autotune.tuning.storage.record_storage import RecordStorage

        return RecordStorage(self.path / FILE)

    def create_study(self, head: SearchInfo) -> Study:
        """Start the record and return it; the directory is removed if that fails.

        Raises:
            RecordError: when it cannot be written.
        """
        from autotune.tuning.storage.record_storage import RecordStorage
        from autotune.tuning.storage.study import Study

        # renamed when it is complete, so that another process never reads half of it
        part = self.path / f"{FILE}.part"
        try:
            storage = RecordStorage(part)
            Study.create(storage, STUDY_NAME, head)
            storage.close()
            for path in (part, self.path / FILE):  # the latter, of a search that was removed
                if (kept := LocalRecord.of(path)) is not None:
                    kept.forget()
            part.rename(self.path / FILE)
            access.sync_folder(self.path)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise
        return self.load_study()

    def load_study(self) -> Study:
        """Open the record of an earlier search.

        Raises:
            RunDirectoryError: when there is no record, another user may have written it, or it has
                another format.
            RecordError: when it cannot be read.
        """
        # It loads optuna, and shells complete the names of runs on every Tab
        from autotune.tuning.storage.study import Study

        if not (self.path / FILE).is_file():
            raise RunDirectoryError(
                f"There is no record of a search in '{self.path}'. "
                "'autotune search PROGRAM' starts one."
            )
        if self.path.parent.name == HOME:
            _keep_private(self.path.parent)
        _keep_private(self.path)
        _keep_private(self.path / FILE)
        return Study.load(self.storage, STUDY_NAME)


def new(
    name: str | None, program_name: str, base: Path | None = None, *, is_shared: bool = False
) -> SearchDir:
    """Create and return a new, empty search directory in *base* or the current directory.

    An earlier search is never overwritten. Git ignores everything in ``.autotune``.

    Args:
        is_shared: Whether *name* is that of a study of several machines, which may all work in this
            folder: the directory is then named after the machine, too, and numbered if need be.

    Raises:
        UsageError: when *name* is not one of a folder.
        RunDirectoryError: when *name* is taken, or nothing can be written there.
    """
    if name is not None:
        check_name(name)
    if name is not None and is_shared:
        name, program_name = None, f"{name}-{_host()}"
    with _home(base) as home:
        return SearchDir(_made(home, name, program_name))


def served(name: str, base: Path | None = None) -> Path:
    """Return the folder of a study that is served while its members search elsewhere.

    Raises:
        UsageError: when *name* is not one of a folder.
        RunDirectoryError: when nothing can be written there.
    """
    check_name(name)
    with _home(base) as home:
        (path := home / f"{name}-served").mkdir(0o700, exist_ok=True)
        _keep_private(path)
        return path


@contextmanager
def _home(base: Path | None) -> Iterator[Path]:
    """Provide the folder of all searches in *base* or the current directory, which is made.

    Raises:
        RunDirectoryError: when nothing can be written there.
    """
    home = (base or Path.cwd()) / HOME
    try:
        with suppress(FileExistsError):
            home.mkdir(0o700, parents=True)
        _keep_private(home)
        if not os.path.lexists(home / ".gitignore"):  # a link there is left alone
            access.write(home / ".gitignore", "*\n", private=True)
        yield home
    except OSError as error:
        raise RunDirectoryError(
            f"A search keeps its record in '{home}', which autotune cannot create "
            f"({error.strerror}). Start it in a folder where you may write; the program itself may "
            "lie elsewhere."
        ) from error


def check_name(name: str) -> None:
    """Check that a search may have a name.

    Raises:
        UsageError: It is not one of a folder.
    """
    if Path(name).name != name or name[:1] in {"", ".", "-"}:
        raise UsageError(
            f"'{name}' cannot be the name of a search, which is a folder in {HOME}: choose a "
            "--name without slashes that begins with neither a dot nor a hyphen."
        )
    most = os.pathconf(".", "PC_NAME_MAX")
    if len(os.fsencode(name)) > most:
        raise UsageError(f"A --name has at most {most} bytes, and this one has more: shorten it.")


def _host() -> str:
    """Return this machine's name without its domain, as a part of a folder's name."""
    return re.sub(r"[^\w-]", "-", socket.gethostname().partition(".")[0])


def _made(home: Path, name: str | None, program_name: str) -> Path:
    """Make the folder of a search, with a number behind the program's name if that is taken."""
    for number in count(1):
        path = home / (name or (program_name if number == 1 else f"{program_name}-{number}"))
        try:
            path.mkdir(0o700)
        except FileExistsError:
            if name is not None:
                raise RunDirectoryError(_taken(SearchDir(path))) from None
        else:
            return path
    raise AssertionError("there is always a next number")


def _keep_private(path: Path) -> None:
    """Check that a folder or record is the user's, and let nobody else enter a folder from now on.

    Raises:
        RunDirectoryError: when it is a link or another user's, or a record that others may write.
    """
    found, user = path.lstat(), os.geteuid()
    if stat.S_ISLNK(found.st_mode):
        raise RunDirectoryError(
            f"'{path}' is a symbolic link, which autotune does not follow. Remove the link, or "
            "search in the folder that it leads to."
        )
    if found.st_uid not in _owners(path):
        raise RunDirectoryError(
            f"'{path}' belongs to the user with the number {found.st_uid}, and you are {user}: "
            "what lies there could run as you. Search as that user, or in a folder of yours; or, "
            "if you know that a container or sudo of yours made it: "
            f"sudo chown -R {user} {quote(str(path))}"
        )
    if stat.S_ISDIR(found.st_mode):
        if found.st_mode & 0o077:  # as earlier versions made it
            with suppress(OSError):  # the file system is read-only
                path.chmod(0o700)
    elif found.st_mode & 0o022 and (new := _made_in(path.parent)) and not new.st_mode & 0o022:
        raise RunDirectoryError(
            f"Others may write '{path}', so what it holds could be theirs, and run as you. If you "
            f"know that it is yours: chmod go-w {quote(str(path))}"
        )


def _owners(path: Path) -> Iterator[int]:
    """Yield the numbers of the users to whom a folder or record of this user's may belong."""
    yield (user := os.geteuid())
    if user == 0 and path.name == HOME:
        # As in a container with a mounted project: who owns the project decides what runs there
        yield path.parent.stat().st_uid
    if (new := _made_in(path.parent)) is not None:
        yield new.st_uid


def _made_in(folder: Path) -> os.stat_result | None:
    """Return what the system shows of a new file that only this user may read; None without one.

    Some file systems show one owner or one mode of all files, and some servers know no root.
    """
    with suppress(OSError), TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno())
    return None


def every(base: Path | None = None) -> list[SearchDir]:
    """Return the searches in a folder, the one whose record changed last first."""
    found = ((base or Path.cwd()) / HOME).glob(f"*/{FILE}")
    records = (path for path in found if path.is_file())  # as find() takes them
    newest_first = sorted(records, key=lambda path: path.stat().st_mtime, reverse=True)
    return [SearchDir(path.parent) for path in newest_first]


def find(name: str | None, base: Path | None = None) -> SearchDir:
    """Return the directory of an existing search.

    Raises:
        RunDirectoryError: when there is no such search; it lists those that exist. Or when the
            folder of all searches here is a link, or another user's.
    """
    home, runs = (base or Path.cwd()) / HOME, every(base)
    if os.path.lexists(home):
        _keep_private(home)
    if name is None:
        if not runs:
            raise RunDirectoryError(
                f"There is no search in {home}. 'autotune search PROGRAM' starts one."
            )
        return runs[0]
    for path in (home / name, Path(name).resolve()):
        if (path / FILE).is_file():
            return SearchDir(path)
    names = [run.name for run in runs]
    raise RunDirectoryError(
        f"There is no search '{name}' in {home}.{did_you_mean(name, names)} "
        f"Searches here: {', '.join(names) or 'none'}."
    )


def check_unchanged(study: Study, hardware: Hardware) -> None:
    """Check that earlier measurements still describe the program and the machine of today.

    Raises:
        RunDirectoryError: when a file that it imported, the hardware, Python or torch has changed.
    """
    names = changed(study.files)
    changes = study.head.hardware.differences(hardware)
    if names:
        verb = "has" if len(names) == 1 else "have"
        changes.insert(0, f"{listed(names)} {verb} changed since the search began")
    if changes:
        raise RunDirectoryError(
            f"This search cannot go on: {'; '.join(changes)}. Its measurements no longer count; "
            "start a new search."
        )


def _taken(run: SearchDir) -> str:
    if not (run.path / FILE).is_file():
        return (
            f"The folder '{run.path}' exists without the record of a search: one begins there now, "
            "or died when it began. If none runs, remove the folder, or choose another --name."
        )
    try:
        owner = f" It is a search of: {run.load_study().head.program}."
    except AutotuneError:
        owner = ""
    return (
        f"The folder '{run.path}' exists.{owner} Continue it with "
        f"'autotune resume {quote(run.name)}', or choose another --name."
    )
