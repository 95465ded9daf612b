"""Scratch: a temporary folder that is gone in whatever way its process ends, SIGKILL included.

All temporary folders of autotune's are of this kind, because they may hold gigabytes: what trials
write, a repository at a commit, the compiled code of a measurement.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from autotune.errors import FenceError

PREFIX = "autotune-fence-"
LOCK = "lock"
HERE = Path("{scratch}")  # in the words of a command: the path of the folder
# The remover waits for the end of its input, which comes when the process ends. It tries for 20 s,
# because the rigs of a search that was killed go on writing for some seconds. By SIGUSR1, batch
# systems ask all processes of a job to leave before they are killed.
REMOVE_IN_THE_END = """\
trap '' USR1
read -r _
folder=$1
shift
for _ in $(seq 100); do
    [ -e "$folder" ] || break
    chmod -R u+rwx "$folder"
    rm -rf "$folder"
    sleep 0.2
done
[ $# -eq 0 ] || exec "$@"
"""
REMOVER_S = 1.0
MAX_SOCKET_FOLDER = 60  # a socket's path may have 107 bytes, of which multiprocessing uses up to 40
MAX_DEPTH = 64  # levels of a tree to walk, far more than caches have; each holds an open file


class Scratch:
    """A folder that only this user can enter; a context manager, or to be closed.

    A small shell process waits until this process ends, in whatever way, and then removes the
    folder. If the shell is killed too, as the end of a SLURM job does it, the next command that
    makes one in the same place removes it: the folder holds a locked file,
    and a lock that can be taken shows that nobody uses the folder. Locks also work between
    containers, in which process ids would mean nothing.

    Args:
        place: The folder in which it is made.
        last: A command that is run once the folder is gone, see ``HERE``.

    Raises:
        OSError: when the folder cannot be made.
    """

    def __init__(self, place: Path, last: Sequence[str] = ()) -> None:
        sweep(place)
        self.path, self._lock = _locked(place)
        last = [word.replace(str(HERE), str(self.path)) for word in last]
        self._remover = subprocess.Popen(
            ["/bin/sh", "-c", REMOVE_IN_THE_END, "autotune", str(self.path), *last],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder; the shell process goes on with what cannot be removed at once."""
        remove(self.path)
        with suppress(subprocess.TimeoutExpired):
            self._remover.communicate(b"\n", timeout=REMOVER_S)
        os.close(self._lock)


def _locked(place: Path) -> tuple[Path, int]:
    """Make a folder and lock it; another one, if a sweep takes the first for an abandoned one."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        try:
            lock = os.open(path / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            with suppress(OSError):  # some network file systems have no locks: no sweep there
                fcntl.flock(lock, fcntl.LOCK_EX)
        except FileNotFoundError:
            continue
        except BaseException:  # Ctrl-C
            remove(path)
            raise
        if os.fstat(lock).st_nlink:
            return path, lock
        os.close(lock)


def short_place() -> Path:
    """Return a writable folder for temporary files with a path short enough for sockets in it.

    Raises:
        FenceError: when there is none.
    """
    usual = Path(tempfile.gettempdir())
    for place in (usual, Path("/tmp"), Path("/var/tmp")):  # noqa: S108
        if len(os.fsencode(place)) <= MAX_SOCKET_FOLDER and os.access(place, os.W_OK | os.X_OK):
            return place
    raise FenceError(
        f"The folder for temporary files, {usual}, has too long a path: worker processes make "
        f"sockets there, whose paths the kernel limits. Set TMPDIR to one of at most "
        f"{MAX_SOCKET_FOLDER} characters."
    )


def sweep(place: Path) -> None:
    """Remove the scratch folders in a place that killed searches of this user have left.

    Folders whose search still runs, links, and folders of other users are left alone.
    """
    for folder in place.glob(f"{PREFIX}*"):
        try:
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:  # its removal was cut short, and the lock went first
            with suppress(OSError):
                folder.rmdir()
            continue
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(folder)
        except OSError:
            pass  # its search is running, or the file system has no locks
        finally:
            os.close(lock)


def remove(folder: Path) -> None:
    """Remove a folder and everything in it, whatever the modes of the folders inside are.

    Overlays leave a folder ``work/work`` that its owner may not enter. Entries that vanish
    meanwhile or cannot be removed are skipped. A link is not followed, and not removed.
    """
    if folder.is_symlink():
        return
    for _, inner, _, above in walk(folder):
        for name in inner:
            # Without leave to read it, a folder can be opened as a place only, which has no fchmod
            with suppress(OSError), opened_folder(name, above, os.O_PATH) as place:
                Path(f"/proc/self/fd/{place}").chmod(0o700)
    with suppress(RecursionError):  # the remover takes trees that are as deep as that
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def opened_folder(
    name: str | Path, above: int | None = None, how: int = os.O_RDONLY
) -> Iterator[int]:
    """Open a folder of a tree that trials write; a link is none, wherever it leads.

    Args:
        above: The open folder that it is in, so that no part of the path can be exchanged.
    """
    number = os.open(name, how | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        yield number
    finally:
        os.close(number)


def walk(top: Path) -> Iterator[tuple[Path, list[str], list[str], int]]:
    """Walk a tree that trials write, and follow no link that takes a folder's place meanwhile.

    What cannot be read is left out; so is what lies deeper than ``MAX_DEPTH``.

    Yields:
        Path of a folder, the names of the folders in it, all other names, and the open folder.
    """
    with suppress(OSError):  # there is no such folder
        for path, folders, names, folder in os.fwalk(top):
            if len(Path(path).parts) - len(top.parts) >= MAX_DEPTH:
                folders.clear()
            yield Path(path), folders, names, folder
