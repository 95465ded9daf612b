"""Address: where a shared study is, as a user types it; the password is in memory only.

The password of a database is never part of a text that is shown, recorded, logged or handed to
another process: whatever is printed of an address is ``shown``. Arguments of commands can be read
by every user of a machine, so a password that is typed there is refused. It comes with the whole
URL from the variable AUTOTUNE_STORAGE, or from where PostgreSQL's own clients take it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NoReturn, Self
from urllib.parse import unquote

from autotune.errors import UsageError
from autotune.program.sharing_options import VARIABLE

FORMS = "postgresql://USER@HOST/DATABASE or grpc://HOST:PORT"
POSTGRESQL = {"postgres", "postgresql", "postgresql+psycopg"}  # as people type it
# Parameters of libpq 18 that hold one, or a key with which to pass for a user
SECRETS = {
    "password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key",
}  # fmt: skip
HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s@:/?#\[\],]+)"
HOST_AND_PORT = re.compile(HOST + r":\d{1,5}")
# Of https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-URIS; stricter, so
# that no part of a password with a raw '/' or '@' is taken for a host or a database
URL = re.compile(
    r"(?:(?P<login>[^\s@/?#]*)@)?"
    rf"(?P<hosts>(?:{HOST}?(?::\d{{1,5}})?)(?:,{HOST}?(?::\d{{1,5}})?)*)"
    r"(?P<database>/[^\s@:/?#]*)?"
    r"(?:\?(?P<query>[a-z_]+=[^\s#@&]*(?:&[a-z_]+=[^\s#@&]*)*))?"
)


class AddressKind(StrEnum):
    """What keeps a shared study."""

    POSTGRESQL = "postgresql"
    GRPC = "grpc"


class Secret:
    """A password, which no text, pickle or record of it shows."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the password, for the library that sends it."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a password is neither copied nor stored")


@dataclass(frozen=True)
class Address:
    """Where a shared study is.

    Attributes:
        shown: The URL without its password, as it may be printed, recorded, and typed again.
        where: The host with the port, as messages name it.
        secrets: Passwords by the names that libpq gives them; empty if the URL holds none.
    """

    kind: AddressKind
    shown: str
    where: str
    secrets: Mapping[str, Secret] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def parse(cls, text: str, environ: Mapping[str, str] | None = None) -> Self:
        """Return the address that a user typed.

        It takes its password from the variable AUTOTUNE_STORAGE if that is of the same address.

        Args:
            text: A URL of PostgreSQL, or of Optuna's gRPC proxy: ``grpc://HOST:PORT``.
            environ: The environment; by default this process's.

        Raises:
            UsageError: It is neither, or holds a password.
        """
        typed = cls._read(text, "--storage")
        if typed.secrets:
            raise UsageError(
                "The URL of --storage holds a password, and every user of this machine can read "
                f"the arguments of a command. Put the whole URL into the variable {VARIABLE}, or "
                "the password into the file that PGPASSFILE names, and type the URL without it."
            )
        kept = cls.of_environment(environ)
        return kept if kept == typed else typed

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] | None = None) -> Self | None:
        """Return the address in the variable AUTOTUNE_STORAGE; None if it is not set.

        Raises:
            UsageError: It holds no address.
        """
        text = (os.environ if environ is None else environ).get(VARIABLE, "")
        return cls._read(text, VARIABLE) if text else None

    @classmethod
    def _read(cls, text: str, source: str) -> Self:
        """Read a URL; what is wrong is told without its text, which may hold a password."""
        scheme, separator, rest = text.strip().partition("://")
        if not separator or not scheme.replace("+", "").isalnum():
            raise UsageError(f"{source} is the URL of a shared study: {FORMS}.")
        if scheme in POSTGRESQL:
            return cls._of_postgresql(rest, source)
        if scheme == AddressKind.GRPC:
            return cls._of_grpc(rest, source)
        raise UsageError(
            f"{source} cannot be a URL of {scheme!r}: a study of several machines is shared by "
            f"{FORMS}."
        )

    @classmethod
    def _of_postgresql(cls, rest: str, source: str) -> Self:
        part = URL.fullmatch(rest)
        if part is None:
            raise UsageError(
                f"{source} is no URL of PostgreSQL: {FORMS}. In a user's name and a password, "
                "write @ : / ? # % as %40 %3A %2F %3F %23 %25."
            )
        user, _, password = (part["login"] or "").partition(":")
        query = [one for one in (part["query"] or "").split("&") if one]
        open_query = [one for one in query if one.partition("=")[0] not in SECRETS]
        texts = dict(one.split("=", 1) for one in query if one not in open_query)
        if password:
            texts["password"] = password
        shown = "".join(
            (
                f"postgresql://{user}@" if user else "postgresql://",
                part["hosts"],
                part["database"] or "",
                f"?{'&'.join(open_query)}" if open_query else "",
            )
        )
        secrets = {name: Secret(unquote(value)) for name, value in texts.items()}
        return cls(AddressKind.POSTGRESQL, shown, part["hosts"] or "this machine", secrets)

    @classmethod
    def _of_grpc(cls, rest: str, source: str) -> Self:
        part = HOST_AND_PORT.fullmatch(rest.removesuffix("/"))
        if part is None:
            raise UsageError(
                f"{source} of a gRPC proxy is grpc://HOST:PORT, without user or password: it knows "
                "neither."
            )
        return cls(AddressKind.GRPC, f"grpc://{part[0]}", part[0])
