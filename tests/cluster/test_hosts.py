"""The hosts and the server that the other tests stand on do what these need."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from time import time

import pytest

from tests.cluster.hosts import Host, Network, send
from tests.cluster.postgres import Postgres
from tests.rigging import wait_for

NOW = [sys.executable, "-c", "import time; print(time.time(), time.monotonic())"]
KNOCK = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), 1.0)
except ConnectionRefusedError:  # whoever refuses was reached
    print("reached")
except OSError as error:
    print(error)
"""


def reaches(one: Host, name: str) -> bool:
    return one.run(sys.executable, "-c", KNOCK, name) == "reached\n"


@pytest.fixture
def network(place: Path) -> Iterator[Network]:
    with Network(place) as switch:
        yield switch


def test_hosts_have_names_addresses_processes_and_clocks_of_their_own(network: Network) -> None:
    one, other = network.host("one"), network.host("other")
    assert one.run("hostname").strip() == "one"
    one.run("touch", "/tmp/of-one", "/dev/shm/of-one")
    assert "of-one" not in other.run("ls", "/tmp", "/dev/shm")
    assert reaches(one, "other")
    assert len(one.run("ps", "-e").splitlines()) < 6
    log = network.folder / "log"
    other.set_clock(-3600)
    other.start(*NOW, log=log).wait(20)
    wall_s, monotonic_s = map(float, log.read_text().split())
    assert abs(time() - 3600 - wall_s) < 20
    assert monotonic_s < wall_s / 2


def test_a_host_may_be_cut_off_stopped_and_killed(network: Network) -> None:
    one, other = network.host("one"), network.host("other")
    one.cut()
    assert not reaches(one, "other")
    one.mend()
    assert wait_for(lambda: reaches(one, "other"))
    counted = network.folder / "counted"
    counts = other.start("sh", "-c", "while :; do echo; sleep 0.05; done", log=counted)
    assert wait_for(lambda: counted.stat().st_size > 3)
    send(counts, signal.SIGSTOP)
    size = counted.stat().st_size
    assert not wait_for(lambda: counted.stat().st_size > size + 1, 0.5)
    send(counts, signal.SIGCONT)
    assert wait_for(lambda: counted.stat().st_size > size + 3)
    other.kill()
    assert counts.poll() is not None
    other.boot()
    assert wait_for(lambda: reaches(one, "other"))


def test_the_server_comes_back_with_all_it_said_it_had(network: Network) -> None:
    server = Postgres(network.host("db"))
    server.start()
    server.sql("create table kept (number int)")
    for number in range(3):
        server.sql(f"insert into kept values ({number})")
        server.kill()
        server.start()
    assert server.sql("select number from kept order by 1") == [["0"], ["1"], ["2"]]
    assert server.sql("show fsync") == [["on"]]
    assert server.sql("show synchronous_commit") == [["on"]]
