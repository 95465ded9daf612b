"""Stores of shared studies: each call ends, and each fault is one line with what to do."""

from __future__ import annotations

import logging
import socket
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from autotune.errors import AutotuneError, OutOfReachError, SharedStudyError, UsageError
from autotune.program.sharing_options import VARIABLE
from autotune.sharing.address import Address
from autotune.sharing.proxy import serve, warning
from autotune.sharing.store import Store, open_store
from autotune.sharing.store_faults import postgres_fault
from autotune.tuning.storage.record_storage import ServedStorage
from tests.sharing.postgres_fake import postgres

PASSWORD = "tops3cret"
CALL_S = 0.5
# What PostgreSQL 15 says before a client is admitted, by SQLSTATE, with what to do about it
REFUSALS = (
    ("28P01", 'password authentication failed for user "u"', SharedStudyError, VARIABLE),
    ("28000", 'no pg_hba.conf entry for host "10.1.1.2", user "u", no encryption',
     SharedStudyError, "pg_hba.conf does"),
    ("3D000", 'database "x" does not exist', SharedStudyError, "createdb"),
    ("42501", 'permission denied for database "x"', SharedStudyError, "has no such|no right"),
    ("53300", "sorry, too many clients already", OutOfReachError, "max_connections"),
    ("53300", "remaining connection slots are reserved for roles with the SUPERUSER attribute",
     OutOfReachError, "max_connections"),
    ("08P01", "unsupported startup parameter: options", SharedStudyError, "own port"),
    ("57P03", "the database system is starting up", OutOfReachError, "starting up"),
    ("28P01", "Passwort-Authentifizierung fehlgeschlagen", OutOfReachError, "Passwort"),
)  # fmt: skip


def _address(port: int) -> Address:
    address = Address.of_environment({VARIABLE: f"postgresql://u:{PASSWORD}@127.0.0.1:{port}/x"})
    assert address is not None
    return address


def _proxied(port: int, call_s: float = 10.0) -> Store:
    return open_store(Address.parse(f"grpc://127.0.0.1:{port}", {}), call_s)


def reached(store: Store) -> None:
    with pytest.raises(KeyError):  # there is no such study
        store.get_study_id_from_name("nobody's")


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Store]:
    """A store behind a real gRPC proxy over a file."""
    with serve(ServedStorage(tmp_path / "shared.db")) as port:
        store = _proxied(port)
        yield store
        store.remove_session()


def test_each_refusal_of_postgresql_is_one_line_that_says_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("psycopg")
    caplog.set_level(logging.DEBUG)
    for state, text, kind, mend in REFUSALS:
        with postgres((state, text)) as port, pytest.raises(AutotuneError, match=mend) as told:
            reached(open_store(_address(port), CALL_S))
        assert type(told.value) is kind, text
        assert "\n" not in str(told.value)
        assert PASSWORD not in "".join(traceback.format_exception(told.value)), text
    assert PASSWORD not in caplog.text


def test_a_server_that_is_gone_may_be_tried_again() -> None:
    pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    with pytest.raises(OutOfReachError, match=r"cannot be reached .*refused"):
        reached(open_store(_address(port)))
    with pytest.raises(OutOfReachError, match="is not known here"):
        reached(open_store(Address.parse("postgresql://nowhere.invalid/x", {})))
    with pytest.raises(SharedStudyError, match="Mend the URL"):
        reached(open_store(Address.parse("postgresql://127.0.0.1/x?sslmode=strange", {})))


def test_a_server_that_stands_still_ends_no_call_but_by_its_deadline() -> None:
    pytest.importorskip("psycopg")
    with postgres(None) as port, pytest.raises(OutOfReachError, match=r"within 0\.5 s") as told:
        reached(open_store(_address(port), CALL_S))
    assert PASSWORD not in "".join(traceback.format_exception(told.value))


def test_one_connection_is_made_and_it_names_its_deadlines_unless_the_url_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    psycopg = pytest.importorskip("psycopg")
    made, connect = list[dict[str, str]](), psycopg.connect

    def noted(*given: Any, **named: Any) -> Any:
        connection = connect(*given, **named)
        made.append(connection.info.get_parameters())
        return connection

    monkeypatch.setattr(psycopg, "connect", noted)
    for typed, connects_s in (("", "5"), ("?connect_timeout=3", "3")):
        with postgres(None) as port:
            where = f"postgresql://u@127.0.0.1:{port}/x{typed}"
            with pytest.raises(OutOfReachError):
                reached(open_store(Address.parse(where, {}), CALL_S))
        (named,) = made
        assert named["connect_timeout"] == connects_s
        assert named["tcp_user_timeout"] == "10000"
        for what, ms in (
            ("idle_in_transaction_session", 10_000), ("statement", 10_000), ("lock", 5000),
        ):  # fmt: skip
            assert f"-c {what}_timeout={ms}" in named["options"]
        made.clear()


def test_statements_and_values_of_sqlalchemy_are_not_told() -> None:
    psycopg = pytest.importorskip("psycopg")
    from sqlalchemy.exc import ProgrammingError

    for state, kind, mend in (
        ("42501", SharedStudyError, "GRANT CREATE"),
        ("42P01", SharedStudyError, "another --name"),
        ("55P03", OutOfReachError, "held up"),
        ("57P01", OutOfReachError, "ended the connection"),
        ("53100", OutOfReachError, "no room"),
        ("22021", SharedStudyError, "does not keep"),
    ):
        cause = psycopg.errors.lookup(state)("what the server says\nLINE 1: INSERT")
        fault = postgres_fault(ProgrammingError("INSERT", {"value": PASSWORD}, cause), _address(1))
        assert type(fault) is kind, state
        assert mend in str(fault)
        assert PASSWORD not in str(fault)


def test_a_library_that_is_missing_is_one_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    for library, url, extra in (
        ("psycopg", "postgresql://db/x", "postgres"),
        ("grpc", "grpc://db:1", "grpc"),
    ):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(UsageError, match=rf"pip install 'autotune-torch\[{extra}\]'"):
            open_store(Address.parse(url, {}))


def test_a_proxied_study_answers_as_optunas_storages_do(proxied: Store) -> None:
    study = proxied.create_new_study([StudyDirection.MAXIMIZE], "x")
    with pytest.raises(DuplicatedStudyError):
        proxied.create_new_study([StudyDirection.MAXIMIZE], "x")
    with pytest.raises(KeyError):
        proxied.get_study_id_from_name("y")
    proxied.set_study_user_attr(study, "agreement", {"a": 1})
    assert proxied.get_study_user_attrs(study) == {"agreement": {"a": 1}}
    trial = proxied.create_new_trial(study, create_trial(state=TrialState.RUNNING))
    proxied.set_trial_user_attr(trial, "void", value=True)
    assert proxied.set_trial_state_values(trial, TrialState.FAIL)
    with pytest.raises(UpdateFinishedTrialError):
        proxied.set_trial_state_values(trial, TrialState.FAIL)
    (kept,) = proxied.get_all_trials(study)
    assert (kept.state, kept.user_attrs) == (TrialState.FAIL, {"void": True})


def test_numbers_of_trials_are_unique_however_many_ask_at_once(tmp_path: Path) -> None:
    with serve(ServedStorage(tmp_path / "shared.db")) as port, ThreadPoolExecutor(8) as threads:
        study = _proxied(port).create_new_study([StudyDirection.MAXIMIZE], "x")
        stores = [_proxied(port) for _ in range(8)]
        asked = [threads.submit(one.create_new_trial, study) for one in stores for _ in range(3)]
        assert len({one.result() for one in asked}) == 24
        numbers = [trial.number for trial in stores[0].get_all_trials(study)]
        assert numbers == list(range(24))
        for store in stores:
            store.remove_session()


def test_a_proxy_that_goes_and_comes_back_is_found_again(tmp_path: Path) -> None:
    with serve(ServedStorage(tmp_path / "shared.db")) as port:
        store = _proxied(port)
        study = store.create_new_study([StudyDirection.MAXIMIZE], "x")
    with pytest.raises(OutOfReachError, match=r"cannot be reached .*--serve runs"):
        store.get_study_user_attrs(study)
    with serve(ServedStorage(tmp_path / "shared.db"), port=port):
        assert store.get_study_user_attrs(study) == {}
        with pytest.raises(SharedStudyError, match="as large"):
            store.set_study_user_attr(study, "large", "x" * 5_000_000)
        store.remove_session()


def test_a_call_to_what_is_no_proxy_ends_by_its_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        with pytest.raises(OutOfReachError, match=r"within 0\.5 s"):
            reached(_proxied(port, CALL_S))


def test_a_port_is_served_by_one_alone_and_others_are_warned_of(tmp_path: Path) -> None:
    with (
        serve(ServedStorage(tmp_path / "a.db")) as port,
        pytest.raises(UsageError, match="port is in use"),
        serve(ServedStorage(tmp_path / "b.db"), port=port),
    ):
        pass
    for host, is_open in (
        ("127.0.0.1", False), ("::1", False), ("localhost", False),
        ("0.0.0.0", True), ("10.1.1.1", True), ("node7", True),
    ):  # fmt: skip
        assert bool(warning(host)) is is_open, host
    assert warning("node7").startswith("Anyone who reaches this port can write to the study")
