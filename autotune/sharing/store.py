"""Store: Optuna's storage of a shared study, in which each call ends within a deadline.

Nothing is repeated here: a call that fails has had an effect or has not, and who called knows how
to find out. What is refused is Optuna's habit of repeating the creation of a trial up to five
times, because a trial whose answer was lost would exist twice; and more than one connection, of
which a database has few.

Deadlines. Of PostgreSQL: ``connect_timeout`` for each address of the host, TCP's user timeout and
keep-alives for a link that is down, the server's own timeouts for a lock that somebody else holds
and for a member that was stopped within a transaction, and for a server that was stopped, which
answers to none of these, the connection is cut from here. Of the gRPC proxy: each call has one,
which Optuna's client leaves out. Not covered: the search for a host's name, which the system's
resolver ends.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Timer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from autotune.errors import AutotuneError, OutOfReachError, UsageError
from autotune.sharing.address import Address, AddressKind
from autotune.sharing.store_faults import grpc_fault, other_tables, postgres_fault

if TYPE_CHECKING:
    from optuna.storages import GrpcStorageProxy, RDBStorage
    from sqlalchemy.engine import ExceptionContext

CALL_S = 10.0  # one beat: what takes longer is of no use to the next one
CONNECT_S = 5.0  # a fifth of a second to another continent, and a handshake has four of them
# https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS; a link that is
# down is noticed after 5 + 2 * 2 s of silence. A user's own values, in the URL, go before these
LINK = {
    "connect_timeout": f"{CONNECT_S:.0f}",
    "tcp_user_timeout": f"{1000 * CALL_S:.0f}",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "2",
    "application_name": "autotune",
    # of the server, in milliseconds; a lock is given up first, so that it is told as a lock
    "options": f"-c lock_timeout={500 * CALL_S:.0f} -c statement_timeout={1000 * CALL_S:.0f} "
    f"-c idle_in_transaction_session_timeout={1000 * CALL_S:.0f}",
}
MAKING_TABLES = 7_217_046_391  # any number, of PostgreSQL's advisory lock while tables are made


# What has the methods of Optuna's ``BaseStorage`` that a board calls, as all of its storages have.
# As those do, it raises KeyError where there is no such study or trial, DuplicatedStudyError and
# UpdateFinishedTrialError. Its faults are OutOfReachError, after which a call may be repeated and
# may have taken effect, and SharedStudyError. Of two that write an attribute at once, one is kept;
# the numbers of a study's trials grow in the order of commits; trials that are over are read once
Store = Any


def open_store(address: Address, call_s: float = CALL_S) -> Store:
    """Return a shared study's storage, to which the first call connects; it may be away before.

    Its tables are made if they are missing. One thread uses it at a time.

    Args:
        address: Where it is.
        call_s: Deadline of a call, in seconds; to connect anew may take as long again.

    Raises:
        UsageError: The library that talks to it is not installed.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds = {AddressKind.POSTGRESQL: PostgresStore, AddressKind.GRPC: GrpcStore}
    return kinds[address.kind](address, call_s)


class _Store(ABC):
    """Has the methods of Optuna's storage, which have a deadline here and translate faults."""

    def __init__(self, address: Address, call_s: float) -> None:
        self._address, self._call_s = address, call_s

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address.shown!r})"

    def __getattr__(self, name: str) -> Any:
        """Return a method of Optuna's storage."""
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self.call, name)

    @abstractmethod
    def call(self, name: str, *given: Any, **named: Any) -> Any:
        """Call a method of Optuna's storage."""

    @abstractmethod
    def remove_session(self) -> None:
        """Close the connection until the next call."""


class PostgresStore(_Store):
    """Optuna's storage in a PostgreSQL database, over one connection."""

    def __init__(self, address: Address, call_s: float) -> None:
        super().__init__(address, call_s)
        try:
            import psycopg
        except ImportError as error:
            raise missing("PostgreSQL", "postgres") from error
        self._driver = psycopg
        self._connection: Any = None  # the one of the pool, and the only one
        self._is_late = False
        self._database: RDBStorage | None = None
        self._storage: Any = None

    def call(self, name: str, *given: Any, **named: Any) -> Any:
        if self._database is None:
            self._open()
        with self._deadline(), self._faults_told():
            return getattr(self._storage, name)(*given, **named)

    def remove_session(self) -> None:
        if self._database is not None:
            self._database.engine.dispose()

    def _open(self) -> None:
        from optuna.storages import get_storage

        try:
            with self._deadline(), self._faults_told():
                self._database = self._opened()
        except AutotuneError:  # it may be kept, and with it the connection
            if self._connection is not None:
                self._connection.close()
            raise
        self._storage = get_storage(self._database)  # it reads trials that are over once

    def _opened(self) -> RDBStorage:
        from sqlalchemy import event, pool

        first = [self._connect()]
        self._make_tables(first[0])
        database = self._database_of(
            creator=lambda: first.pop() if first else self._connect(),
            poolclass=pool.QueuePool,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=True,
            pool_timeout=self._call_s,
        )
        if (found := database.get_current_version()) != database.get_head_version():
            raise other_tables(self._address, is_older=found in database.get_all_versions())
        # Here a fault ends a call at once: Optuna repeats some of those that fail five times
        event.listen(database.engine, "handle_error", self._told)
        return database

    @staticmethod
    def _database_of(*, is_new: bool = False, **engine: Any) -> RDBStorage:
        from optuna.storages import RDBStorage

        return RDBStorage(
            "postgresql+psycopg://",  # the whole URL would hold the password, and is shown
            engine,
            skip_compatibility_check=True,  # it takes a second connection
            skip_table_creation=not is_new,
        )

    def _make_tables(self, connection: Any) -> None:
        """Make Optuna's tables if they are missing; of many that begin at once, one makes them.

        ``CREATE TABLE IF NOT EXISTS`` is not enough for that. Optuna opens one connection within
        another while it does so; both are this one, and the lock is its own.
        """
        from sqlalchemy import pool

        found = "SELECT to_regclass('alembic_version') IS NOT NULL"  # the last that it makes
        if not connection.execute(found).fetchone()[0]:
            connection.execute(f"SELECT pg_advisory_lock({MAKING_TABLES})")
            if not connection.execute(found).fetchone()[0]:
                one = {"creator": lambda: connection, "poolclass": pool.StaticPool}
                self._database_of(is_new=True, **one)
            connection.execute(f"SELECT pg_advisory_unlock({MAKING_TABLES})")
        connection.commit()

    def _connect(self) -> Any:
        """Return a connection to the database, with the password that no other object has."""
        if self._is_late:
            raise OutOfReachError(self._too_late)
        typed = self._address.shown
        options: dict[str, Any] = {
            **{name: value for name, value in LINK.items() if f"{name}=" not in typed},
            **{name: one.reveal() for name, one in self._address.secrets.items()},
        }
        self._connection = self._driver.connect(typed, **options)
        return self._connection

    def _told(self, context: ExceptionContext) -> BaseException | None:
        fault = context.original_exception
        # Of two that make a study or an attribute at once, Optuna answers one; and a connection
        # that does not answer before a call is replaced
        is_answered = isinstance(fault, self._driver.IntegrityError) or context.is_pre_ping
        return None if is_answered else postgres_fault(fault, self._address)

    @contextmanager
    def _faults_told(self) -> Iterator[None]:
        from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError

        try:
            yield
        except (AutotuneError, DuplicatedStudyError, KeyError, UpdateFinishedTrialError) as error:
            if self._is_late:
                raise OutOfReachError(self._too_late) from error
            raise
        except Exception as error:
            if self._is_late:
                raise OutOfReachError(self._too_late) from error
            raise postgres_fault(error, self._address) from error

    @property
    def _too_late(self) -> str:
        return (
            f"PostgreSQL at {self._address.where} did not answer within {self._call_s:g} s: the "
            "link is down, or the server stands still."
        )

    @contextmanager
    def _deadline(self) -> Iterator[None]:
        """Cut the connection when a call takes too long; it then fails."""
        self._is_late = False
        timer = Timer(self._call_s, self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def _cut(self) -> None:
        self._is_late = True
        nothing_to_cut = suppress(OSError, self._driver.Error, AttributeError)
        with nothing_to_cut, socket.socket(fileno=os.dup(self._connection.fileno())) as link:
            link.shutdown(socket.SHUT_RDWR)


class GrpcStore(_Store):
    """Optuna's storage behind its gRPC proxy.

    Optuna's client has no deadlines and no options of a channel, so its method ``_setup`` is
    replaced: that sets its ``_channel``, ``_stub`` and ``_cache``. After a fault the next call
    makes a new channel: an old one waits up to two minutes before it tries to connect again.
    """

    def __init__(self, address: Address, call_s: float) -> None:
        super().__init__(address, call_s)
        try:
            with quiet_grpc():
                import grpc
        except ImportError as error:
            raise missing("The gRPC proxy", "grpc") from error
        self._errors: type[Exception] = grpc.RpcError
        self._proxy: GrpcStorageProxy | None = None

    def call(self, name: str, *given: Any, **named: Any) -> Any:
        if self._proxy is None:
            self._proxy = _proxy(self._address, self._call_s)
        try:
            return getattr(self._proxy, name)(*given, **named)
        except self._errors as error:
            self.remove_session()
            raise grpc_fault(error, self._address, self._call_s) from error

    def remove_session(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
        self._proxy = None


def _proxy(address: Address, call_s: float) -> GrpcStorageProxy:
    """Return Optuna's client of a proxy, whose calls end after *call_s* seconds."""
    import warnings

    import grpc
    from optuna.exceptions import ExperimentalWarning
    from optuna.storages import GrpcStorageProxy
    from optuna.storages._grpc import client
    from optuna.storages._grpc.auto_generated import api_pb2_grpc

    class Proxy(GrpcStorageProxy):
        def _setup(self) -> None:
            options = [
                ("grpc.max_receive_message_length", -1),  # as Optuna's
                ("grpc.enable_http_proxy", 0),  # of a cluster: it leads to the outside
                ("grpc.use_local_subchannel_pool", 1),  # a new channel connects anew
            ]
            self._channel = grpc.insecure_channel(address.where, options)
            stub = api_pb2_grpc.StorageServiceStub(self._channel)
            timed = {name: partial(call, timeout=call_s) for name, call in vars(stub).items()}
            self._stub = cast("Any", SimpleNamespace(**timed))
            self._cache = client.GrpcClientCache(self._stub)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return Proxy()


@contextmanager
def quiet_grpc() -> Iterator[None]:
    """Let gRPC begin without lines on the terminal: its library in C writes them past Python.

    It reads these variables when it begins. The program that is measured shall not see them.
    """
    names = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: value for name, value in names.items() if before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


def missing(what: str, extra: str) -> UsageError:
    """Return the error about an extra that is not installed."""
    return UsageError(
        f"{what} needs a library that is not installed here: pip install 'autotune-torch[{extra}]'"
    )
