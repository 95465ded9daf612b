"""RecordStorage: Optuna's storage of a run in one SQLite file, and the one door to it.

A lock is waited for. Every fault behind the door, of Optuna, SQLAlchemy, SQLite or the content, is
told as a RecordError. The file is opened by its path and not by a URL, because Optuna and
SQLAlchemy read ``{``, ``?`` and ``%`` in one.
"""

from __future__ import annotations

import logging
import math
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Any, TypeVar

import optuna
from pydantic import ValidationError
from sqlalchemy import event, pool, text
from sqlalchemy.engine import ExceptionContext

from autotune.errors import AutotuneError, RecordError
from autotune.tuning.storage.local_record import LocalRecord

Answer = TypeVar("Answer")
logger = logging.getLogger("autotune")

TRY_S = 1.0  # SQLite waits for a lock in C, where no signal is answered
TOLD_AFTER_S = 5.0  # as long as SQLite's users are used to wait: it is sqlite3's own default
PATIENCE_S = 60.0  # a copy of a record takes seconds; who holds it longer does not let go
COPIED_EVERY_S = 60.0  # what a machine that dies may take with it; a copy takes milliseconds
LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
# https://sqlite.org/rescode.html: what the system refuses, whatever the file holds
REFUSED = {
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_IOERR,
}


class _LockedError(RecordError):
    """Another process holds the record's file."""


class RecordStorage:
    """Optuna's storage in a file, which is made if it is missing and which only this user reads.

    It has all methods of an Optuna storage.

    Attributes:
        is_urgent: Whether there is no time to wait for a lock.
        answers: Exceptions of Optuna that are answers and no faults; none in a search's record.

    Raises:
        RecordError: by each access that fails; of a lock, after a minute.
    """

    answers: tuple[type[Exception], ...] = ()

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_urgent: Callable[[], bool] = lambda: False
        self._copying = Lock()
        self._is_copied, self._copied_at = True, math.inf  # who only reads makes no copies
        with faults_told(self):
            self._local = LocalRecord.of(path)
            if self._local is not None:
                self._local.fetch()
                self._path = self._local.file
            with suppress(FileExistsError):  # SQLite would apply the umask
                os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        engine = {"creator": self._connect, "poolclass": pool.QueuePool}
        self._database = self._patiently(
            lambda: optuna.storages.RDBStorage("sqlite://", engine_kwargs=engine)
        )
        # Here a fault ends an access at once: Optuna repeats some of those that fail five times
        event.listen(self._database.engine, "handle_error", self._told)
        self._storage = optuna.storages.get_storage(self._database)

    def __str__(self) -> str:
        return f"'{self._path}'"

    def __getattr__(self, name: str) -> Any:
        """Return what Optuna's storage has by this name; a method waits and translates faults."""
        found = getattr(self._storage, name)
        return partial(self._patiently, found) if callable(found) else found

    def exchange(self, study: int, name: str, change: Callable[[str], str]) -> None:
        """Replace an attribute by what *change* makes of it, of which no other process sees a part.

        Args:
            study: Optuna's number of it.
            name: The attribute, which must have been set before.
            change: Takes and returns JSON, and is called again if another process was faster; what
                it raises leaves the attribute as it is.
        """
        find = text(
            "SELECT value_json FROM study_user_attributes WHERE study_id = :study AND key = :name"
        )
        replace = text(
            "UPDATE study_user_attributes SET value_json = :new "
            "WHERE study_id = :study AND key = :name AND value_json = :old"
        )
        at = {"study": study, "name": name}

        def exchanged() -> bool:
            with self._database.engine.begin() as connection:
                old = connection.execute(find, at).scalar_one()
                values = {**at, "old": old, "new": change(old)}
                return connection.execute(replace, values).rowcount == 1

        while not self._patiently(exchanged):
            pass
        self._copy()  # whose turn it is to write must be seen at once

    def close(self) -> None:
        """Close the file until the next access."""
        self._database.engine.dispose()
        self._copy()

    def _copy(self) -> None:
        """Renew the copy of a record that is kept on a local disk, see ``LocalRecord``.

        Raises:
            RecordError: Another machine has written the copy since.
        """
        if self._local is None:
            return
        is_first_fault, self._is_copied, self._copied_at = self._is_copied, True, monotonic()
        try:
            with self._copying:  # a study that is served has several threads
                self._local.save()
        except (OSError, sqlite3.Error) as error:  # a server that comes back; the record is here
            self._is_copied = False
            if is_first_fault:
                logger.warning(
                    "The record cannot be copied to '%s' (%s): it is in '%s', and copied later",
                    self._local.copy,
                    error,
                    self._local.file,
                )

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=TRY_S, check_same_thread=False)

    def _told(self, context: ExceptionContext) -> BaseException | None:
        fault = context.original_exception
        return None if isinstance(fault, sqlite3.IntegrityError) else _fault(fault, self)

    def _patiently(self, access: Callable[..., Answer], *given: Any, **named: Any) -> Answer:
        """Return the answer to an access, which is one transaction and may be repeated."""
        began, is_told = monotonic(), False
        while True:
            try:
                with faults_told(self, self.answers):
                    answer = access(*given, **named)
            except _LockedError:
                waited_s = monotonic() - began
                if waited_s > PATIENCE_S or self.is_urgent():
                    raise
                sleep(TRY_S / 10)  # of two that wait for each other, SQLite lets neither wait
                if waited_s > TOLD_AFTER_S and not is_told:
                    is_told = True
                    logger.warning(
                        "Another process holds the record %s: waiting, for %.0f s at most",
                        self,
                        PATIENCE_S,
                    )
            else:
                if monotonic() - self._copied_at > COPIED_EVERY_S:
                    self._copy()
                return answer


@contextmanager
def faults_told(place: object, answers: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Let all that fails, but for *answers*, be told as a RecordError about *place*'s record."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (AutotuneError, *answers)):
            raise
        raise _fault(error, place) from error


def _fault(error: BaseException, place: object) -> RecordError:
    cause = _first(error)
    reason = " ".join(str(cause).split())
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # above are details, such as which lock
    if code in LOCKED:
        return _LockedError(
            f"Another process has held the record {place} for {PATIENCE_S:.0f} s: another "
            "autotune, a program that shows or copies databases, or what is left of one on a "
            "network file system. Nothing that is in it is lost. End that process ('fuser -v' and "
            "the path names it), then resume."
        )
    if code in REFUSED or isinstance(cause, OSError):
        return RecordError(
            f"The record {place} cannot be opened or written: {reason}. Nothing that is in it is "
            "lost. Look at the file system's free space and whether you may write there, then "
            "resume, or search again."
        )
    match cause:
        case KeyError():
            reason = "it holds no search"
        case ValidationError():
            fault = cause.errors(include_url=False)[0]
            reason = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
    return RecordError(
        f"The record {place} cannot be read ({reason}): it is damaged, or another version of "
        "autotune wrote it. Start a new search; other searches are as they were."
    )


def _first(error: BaseException) -> BaseException:
    """Return what an error of SQLAlchemy or Optuna came from."""
    inner = getattr(error, "orig", None) or error.__cause__
    return error if inner is None else _first(inner)
