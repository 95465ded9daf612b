"""The store of a shared study on a real PostgreSQL: each call ends, and the next one goes on."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import psutil

from autotune.program.sharing_options import VARIABLE
from tests.cluster.hosts import Host, Network, send
from tests.cluster.postgres import PASSWORD, Postgres
from tests.rigging import wait_for

CALL_S = 2.0
# Opens the store until that succeeds
OPENS = """
import os, time
from contextlib import suppress
from autotune.errors import OutOfReachError
from autotune.sharing.address import Address
from autotune.sharing.store import open_store
for _ in range(10):
    try:
        store = open_store(Address.of_environment())
        with suppress(KeyError):
            store.get_study_id_from_name("")
        print(store)
        break
    except OutOfReachError as error:
        print(error)
        time.sleep(1.0)
"""
# Makes a trial after the other, and says of each call how it ended and after how many seconds
CALLS = """
import json, sys, time
from contextlib import suppress
from optuna.exceptions import DuplicatedStudyError
from optuna.study import StudyDirection
from autotune.errors import OutOfReachError
from autotune.sharing.address import Address
from autotune.sharing.store import open_store
while True:  # to make the tables takes a busy machine longer than a call may take
    try:
        store = open_store(Address.of_environment(), float(sys.argv[1]))
        with suppress(DuplicatedStudyError):
            store.create_new_study([StudyDirection.MAXIMIZE], "calls")
        study = store.get_study_id_from_name("calls")
        break
    except OutOfReachError:
        time.sleep(0.1)
while True:
    began, said = time.monotonic(), ""
    try:
        store.create_new_trial(study)
    except OutOfReachError as error:
        said = str(error)
    print(json.dumps([time.monotonic() - began, said]), flush=True)
    time.sleep(0.1)
"""


# Begins a transaction as a member would, in which it has the study's row, and goes no further
HOLDS = """
import time
from contextlib import suppress
from autotune.sharing.address import Address
from autotune.sharing.store import open_store
store = open_store(Address.of_environment())
with suppress(KeyError):
    store.get_study_id_from_name("")
store._connection.execute("select * from studies for update")
print("holds", flush=True)
time.sleep(600)
"""


def test_of_many_that_begin_at_once_one_makes_the_tables(place: Path) -> None:
    with Network(place) as network:
        server = Postgres(network.host("db"))
        server.start()
        logs = [place / f"opens-{number}" for number in range(6)]
        hosts = [network.host("one"), network.host("two")] * 3
        secret = {VARIABLE: server.secret_url}
        began = [
            host.start(sys.executable, "-c", OPENS, log=log, env=secret)
            for host, log in zip(hosts, logs, strict=True)
        ]
        assert [one.wait(60) for one in began] == [0] * 6
        said = [log.read_text() for log in logs]
        assert all("PostgresStore('postgresql://autotune@" in text for text in said), said
        assert not [text for text in said if PASSWORD in text]
        for table in ("alembic_version", "version_info"):
            assert server.sql(f"select count(*) from {table}") == [["1"]]


def test_each_call_ends_whatever_happens_to_link_and_server(
    place: Path, tell: Callable[[dict[str, object]], None]
) -> None:
    log = place / "calls"

    def calls() -> list[tuple[float, str]]:
        lines = log.read_text().splitlines(keepends=True)
        return [tuple(json.loads(line)) for line in lines if line.endswith("\n")]

    def ends_a_call(*, well: bool) -> bool:
        before = len(calls())
        return wait_for(lambda: any((not said) is well for _, said in calls()[before:]), 30)

    with Network(place) as network:
        host, server = network.host("one"), Postgres(network.host("db"))
        server.start()
        secret = {VARIABLE: server.secret_url}
        host.start(sys.executable, "-c", CALLS, str(CALL_S), log=log, env=secret)
        assert wait_for(lambda: bool(log.read_text()), 30)
        for fault in (_link_down, _server_killed, _server_stopped, _study_held):
            before = len(calls())
            with fault(host, server):
                assert ends_a_call(well=False), fault
            assert ends_a_call(well=True), log.read_text()[-1000:]
            ended = [said for _, said in calls()[before:] if said]
            tell({"fault": fault.__name__, "calls that failed": len(ended), "said": ended[0][:90]})
        assert max(s for s, _ in calls()) < 2 * CALL_S + 5.0  # the last is to connect anew
        assert PASSWORD not in log.read_text()
        answered = sum(not said for _, said in calls())  # it goes on
        numbers = server.sql("select count(*), count(distinct number), max(number) from trials")
        ((made, distinct, last),) = numbers
        assert made == distinct == str(int(last) + 1)
        assert int(made) >= answered, "what was answered is there"


def test_what_a_stopped_member_holds_is_free_again_while_it_is_stopped(
    place: Path, tell: Callable[[dict[str, object]], None]
) -> None:
    def said(log: Path) -> list[str]:
        return log.read_text().splitlines() if log.exists() else []

    def fault() -> str:
        return str(json.loads(said(calls)[-1])[1])

    calls, held = place / "calls", place / "held"
    with Network(place) as network:
        one, other = network.host("one"), network.host("other")
        server = Postgres(network.host("db"))
        server.start()
        secret = {VARIABLE: server.secret_url}
        one.start(sys.executable, "-c", CALLS, str(CALL_S), log=calls, env=secret)
        assert wait_for(lambda: len(said(calls)) > 1, 30)
        holder = other.start(sys.executable, "-c", HOLDS, log=held, env=secret)
        assert wait_for(lambda: "holds" in said(held), 30), said(held)
        send(holder, signal.SIGSTOP)
        assert wait_for(lambda: bool(fault()), 30), "calls wait for the row"
        began_s = monotonic()
        assert wait_for(lambda: not fault(), 30), fault()
        tell({"fault": "stopped in a transaction", "free after s": round(monotonic() - began_s)})
        open_ones = "select count(*) from pg_stat_activity where application_name = 'autotune'"
        assert server.sql(open_ones) == [["1"]], "the holder's is ended, and each member has one"


@contextmanager
def _link_down(host: Host, server: Postgres) -> Iterator[None]:
    host.cut()
    yield
    host.mend()


@contextmanager
def _server_killed(host: Host, server: Postgres) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def _server_stopped(host: Host, server: Postgres) -> Iterator[None]:
    assert server._process is not None
    processes = psutil.Process(server._process.pid).children(recursive=True)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)
    yield
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)


@contextmanager
def _study_held(host: Host, server: Postgres) -> Iterator[None]:
    """A member that was stopped within a transaction holds the study's row for a while."""
    held = "begin; select * from studies for update; select pg_sleep(6)"
    holds = server.host.start("psql", "-c", held, server.secret_url, log=host.disk / "held")
    yield
    send(holds, signal.SIGKILL)
    sleep(0.5)
