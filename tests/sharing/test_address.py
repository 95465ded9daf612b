"""Addresses of shared studies: what is read, what is refused, and that no password is shown."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.program.sharing_options import VARIABLE
from autotune.sharing.address import Address, AddressKind, Secret

PASSWORD = "tops3cret"
# What is typed, how it is shown, and where that is
READ = (
    ("postgres://u@db/x", "postgresql://u@db/x", "db"),
    ("postgresql+psycopg://u@db:5433/x", "postgresql://u@db:5433/x", "db:5433"),
    ("postgresql://db/x?sslmode=require", "postgresql://db/x?sslmode=require", "db"),
    ("postgresql:///x?host=/run/pg", "postgresql:///x?host=/run/pg", "this machine"),
    ("postgresql://a,b:5433/x", "postgresql://a,b:5433/x", "a,b:5433"),
    ("postgresql://u@[::1]:5433/x", "postgresql://u@[::1]:5433/x", "[::1]:5433"),
    ("grpc://node7:13000", "grpc://node7:13000", "node7:13000"),
    ("grpc://[::1]:13000/", "grpc://[::1]:13000", "[::1]:13000"),
)
REFUSED = (
    "study.db",
    "sqlite:///study.db",
    f"mysql://u:{PASSWORD}@db/x",
    f"u:{PASSWORD}@db://x",
    "grpc://node7",
    "grpc://node7:123456",
    f"grpc://u:{PASSWORD}@node7:13000",
    *(f"postgresql://u:1{one}{PASSWORD}@db/x" for one in "@/?#"),
    f"postgresql://u:{PASSWORD}",
    f"postgresql://u:{PASSWORD}/x",
)


def test_an_address_is_read_as_it_is_typed() -> None:
    for typed, shown, where in READ:
        address = Address.parse(typed, {})
        assert (address.shown, address.where) == (shown, where), typed
        assert address.kind is AddressKind(shown.partition(":")[0])
        assert Address.parse(address.shown, {}) == address


def test_what_is_no_address_is_refused_without_a_word_of_its_password() -> None:
    for typed in REFUSED:
        with pytest.raises(UsageError) as told:
            Address.parse(typed, {})
        with pytest.raises(UsageError) as told_of_variable:
            Address.of_environment({VARIABLE: typed})
        assert PASSWORD not in f"{told.value} {told_of_variable.value}", typed


def test_a_password_comes_by_the_environment_and_never_by_an_argument() -> None:
    for url in (f"postgresql://u:{PASSWORD}@db/x", f"postgresql://u@db/x?password={PASSWORD}"):
        with pytest.raises(UsageError, match=r"AUTOTUNE_STORAGE.*PGPASSFILE") as refused:
            Address.parse(url, {})
        assert PASSWORD not in str(refused.value)
        address = Address.of_environment({VARIABLE: url})
        assert address is not None
        assert address.shown == "postgresql://u@db/x"
        assert address.secrets["password"].reveal() == PASSWORD
        # What is printed, typed again and put into job files finds it there
        assert Address.parse(address.shown, {VARIABLE: url}).secrets
        assert not Address.parse("postgresql://u@other/x", {VARIABLE: url}).secrets
    assert Address.of_environment({}) is None


def test_every_secret_that_libpq_takes_in_a_url_is_kept_out_of_what_is_shown() -> None:
    psycopg = pytest.importorskip("psycopg")
    known = psycopg.pq.Conninfo.get_defaults()
    hidden = {one.keyword.decode() for one in known if one.dispchar == b"*"}  # by libpq itself
    for name in hidden | {"oauth_client_secret", "scram_client_key", "scram_server_key"}:
        url = f"postgresql://u@db/x?{name}={PASSWORD}"
        address = Address.of_environment({VARIABLE: url})
        assert address is not None
        assert PASSWORD not in address.shown, name
        assert address.secrets[name].reveal() == PASSWORD


def test_a_password_is_written_with_percent_signs() -> None:
    address = Address.of_environment({VARIABLE: "postgresql://u:a%2Fb%40c@db/x"})
    assert address is not None
    assert address.secrets["password"].reveal() == "a/b@c"


def test_no_text_and_no_record_of_an_address_holds_its_password() -> None:
    address = Address.of_environment({VARIABLE: f"postgresql://u:{PASSWORD}@db/x"})
    assert address is not None
    for text in (repr(address), str(address), f"{address}", str(vars(address))):
        assert PASSWORD not in text
    recorders: tuple[Callable[[Any], object], ...] = (pickle.dumps, asdict)
    for recorded in recorders:
        with pytest.raises(TypeError, match="neither copied nor stored"):
            recorded(address)
    assert PASSWORD not in f"{Secret(PASSWORD)} {Secret(PASSWORD)!r}"
