"""What went wrong with a shared study's storage, in one line each, with what to do about it.

A line never quotes SQLAlchemy, which writes statements with their values, nor a password. Before a
connection is made, PostgreSQL's client library tells no code, only a text, which some servers write
in another language; one that is not in the table is told as it is, and may be tried again.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from autotune.errors import AutotuneError, OutOfReachError, SharedStudyError
from autotune.program.sharing_options import VARIABLE
from autotune.sharing.address import Address

REFUSED, REPEAT = SharedStudyError, OutOfReachError
# What psycopg 3.3 and gRPC 1.85 write before the words that matter
BEFORE = re.compile(
    r"(connection (failed|is bad): )?(connection to server [^\n]*? failed: )?(\w+:  )?"
    r"(failed to connect to all addresses; last error: \w+: \S+: )?"
    r"(Failed to connect to remote host: )?"
)
LONGEST = 300  # characters of a text that is told as it is: two or three lines of a terminal


class Fault(NamedTuple):
    """A fault of PostgreSQL.

    Attributes:
        states: How its SQLSTATE begins, once there is a connection:
            https://www.postgresql.org/docs/current/errcodes-appendix.html
        words: Of its text before that, as PostgreSQL 15 to 18 and psycopg 3.3 write them.
        told: Follows the address in a sentence; ``{said}`` is the text.
    """

    kind: type[AutotuneError]
    states: tuple[str, ...]
    words: tuple[str, ...]
    told: str


PASSWORD = (
    f"Put the URL with it into the variable {VARIABLE}, or the password into the file that "
    "PGPASSFILE names."
)
# The first that fits
FAULTS = (
    Fault(
        REPEAT,
        ("53300",),
        ("too many clients", "connection slots are reserved", "too many connections"),
        "has no connection left for another client: each machine takes one. Raise its "
        "max_connections, or start fewer.",
    ),
    Fault(REFUSED, ("28P01",), ("password authentication",), f"refuses the password. {PASSWORD}"),
    Fault(REFUSED, (), ("no password supplied",), f"asks for a password. {PASSWORD}"),
    Fault(
        REFUSED,
        ("28",),
        ("pg_hba.conf", "authentication failed", "not permitted to log in", 'role "'),
        "does not admit this user from this machine ({said}). A line of its pg_hba.conf does: "
        "host DATABASE USER ADDRESS scram-sha-256",
    ),
    Fault(
        REFUSED,
        ("3D000",),
        ('database "',),
        "has no such database ({said}). Make it there, createdb NAME, or name another in the URL: "
        "postgresql://USER@HOST/DATABASE",
    ),
    Fault(
        REFUSED,
        ("42501", "3F000"),
        ("permission denied",),
        "gives this user no right to do that ({said}). As the database's owner: "
        "GRANT CREATE, USAGE ON SCHEMA public TO USER",
    ),
    Fault(
        REFUSED,
        ("25006",),
        ("session is read-only",),
        "is a copy that may only be read: name the primary server, or add "
        "?target_session_attrs=read-write to the URL.",
    ),
    Fault(
        REFUSED,
        (),
        ("SSL", "certificate"),
        "and this machine do not agree on encryption ({said}). In the URL, sslmode and "
        "sslrootcert decide it.",
    ),
    Fault(
        REFUSED,
        (),
        ("unsupported startup parameter",),
        "is a pooler of connections that takes no options ({said}). Name PostgreSQL's own port.",
    ),
    Fault(
        REFUSED,
        ("42P01",),
        (),
        "has lost Optuna's tables: somebody removed them. What this machine measured is in its "
        "own folder; begin a study with another --name.",
    ),
    Fault(
        REFUSED,
        (),
        ("invalid URI", "invalid connection option", " value: ", "missing key"),
        "cannot be asked in this way: {said}. Mend the URL.",
    ),
    Fault(
        REPEAT,
        (),
        ("resolve host", "translate host name"),
        "cannot be found: the host is not known here ({said}). Check it in the URL.",
    ),
    Fault(
        REPEAT,
        (),
        ("refused", "timeout expired", "No route to host", "unreachable", "No such file"),
        "cannot be reached ({said}). Check that it runs, that it listens on that address, and "
        "that no firewall is between.",
    ),
    Fault(REPEAT, ("55P03", "57014", "40"), (), "is held up by another client ({said})."),
    Fault(REPEAT, ("53",), (), "has no room left ({said}). Make room there."),
    Fault(REPEAT, ("08", "57", "58"), (), "has ended the connection ({said})."),
)
OF_THE_LINK = {"OperationalError", "InterfaceError", "TimeoutError"}  # psycopg's, SQLAlchemy's


def postgres_fault(error: BaseException, address: Address) -> AutotuneError:
    """Return what a fault of PostgreSQL, psycopg, SQLAlchemy or Optuna means."""
    cause = _first(error)
    if isinstance(cause, AutotuneError):
        return cause
    said, state = _said(str(cause)), getattr(cause, "sqlstate", None) or ""
    for fault in FAULTS:
        is_it = any(word in said for word in fault.words) and not state
        if is_it or (fault.states and state.startswith(fault.states)):
            return fault.kind(f"PostgreSQL at {address.where} {fault.told.format(said=said)}")
    kind = REPEAT if type(cause).__name__ in OF_THE_LINK else REFUSED
    return kind(f"PostgreSQL at {address.where} does not keep the shared study: {said}.")


def grpc_fault(error: Any, address: Address, call_s: float) -> AutotuneError:
    """Return what a ``grpc.RpcError`` means, of a call with a deadline of *call_s* seconds."""
    code, said = error.code().name, _said(error.details() or "")
    at = f"The gRPC proxy at {address.where}"
    match code:
        case "DEADLINE_EXCEEDED":
            told = (
                f"{at} did not answer within {call_s:g} s: the link is down, or the process that "
                "serves stands still."
            )
        case "UNAVAILABLE":
            told = (
                f"{at} cannot be reached ({said}). Check that the search with --serve runs, on "
                "that address, and that no firewall is between. It ends when the last member has "
                "left; 'autotune show' on each machine tells its result."
            )
        case "UNIMPLEMENTED":
            return REFUSED(
                f"{at} is none of Optuna's, or of another version of Optuna: install the same one "
                "on all machines."
            )
        case "PERMISSION_DENIED" | "UNAUTHENTICATED":
            return REFUSED(f"{at} does not admit this machine: {said}.")
        case "RESOURCE_EXHAUSTED" if "larger than max" in said:
            return REFUSED(f"{at} takes nothing that is as large: {said}.")
        case _:
            told = f"{at} failed ({code}): {said}."
    return REPEAT(told)


def other_tables(address: Address, *, is_older: bool) -> SharedStudyError:
    """Return the error about tables that another version of Optuna made."""
    if is_older:
        mend = "In Python, once: optuna.storages.RDBStorage(URL).upgrade(), or take a new database."
    else:
        mend = "Update Optuna here (pip install -U optuna), or take a database for autotune alone."
    return REFUSED(
        f"The tables in PostgreSQL at {address.where} are of another version of Optuna. {mend}"
    )


def _first(error: BaseException) -> BaseException:
    """Return what an error of SQLAlchemy or Optuna came from."""
    inner = getattr(error, "orig", None) or error.__cause__
    return error if inner is None else _first(inner)


def _said(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return BEFORE.sub("", line, count=1).rstrip(" .")[:LONGEST]
