"""Who can reach the ranks of one machine: nobody from outside, and nobody without the run's key."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from autotune.measurement.turn import PlannedTurn, Taken
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.rig.rig import Rig
from tests.inside.test_exchange import Bomb
from tests.knobs.strategies.test_faults import applied_of
from tests.made import make_applied
from tests.rigging import never, open_rig

pytestmark = pytest.mark.usefixtures("warm_starts")


@dataclass(frozen=True)
class Standing:
    """Ranks that train, where their processes listen, and the port of their store."""

    rig: Rig
    applied: AppliedConfig
    listening: list[tuple[str, int]]
    port: int


OWN = Config({"devices": "own-1", "threads": 1})
WAYS = {
    "ours": ("rank_fails.py", applied_of("ddp")),
    "own": (
        "own_ddp.py",
        make_applied(
            OWN.replace(devices="own-2"), baseline=OWN, loader=None, distributes_itself="DDP"
        ),
    ),
}


@contextmanager
def standing(tmp_path: Path, way: str) -> Iterator[Standing]:
    """Train in two ranks, by our strategy or by the program's own ``init_process_group()``."""
    script, applied = WAYS[way]
    with open_rig(tmp_path, script, "", str(tmp_path), applied=applied) as opened:
        assert opened.rig.pid is not None
        rig = psutil.Process(opened.rig.pid)
        tree = [rig, *rig.children(recursive=True)]
        listening = [
            (connection.laddr.ip, connection.laddr.port)
            for process in tree
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        ports = {p.environ()["MASTER_PORT"] for p in tree if "MASTER_PORT" in p.environ()}
        yield Standing(opened.rig, applied, listening, int(*ports))


@pytest.mark.parametrize("way", ["ours", "own"])
@pytest.mark.real_starts
def test_ranks_of_a_machine_listen_on_loopback_and_hear_nobody(tmp_path: Path, way: str) -> None:
    with standing(tmp_path, way) as ranks:
        ports = {port for _, port in ranks.listening}
        assert ranks.port in ports
        assert len(ports) >= 3, "the store, and each rank's place for collectives"
        assert all(ip_address(address).is_loopback for address, _ in ranks.listening)
        for address in _outer_addresses():
            assert not {port for port in ports if _answers(address, port)}
        _speaks_in_vain(ranks, tmp_path / "ran")


def _outer_addresses() -> set[str]:
    """This machine's addresses by which others reach it."""
    every = {a.address for of in psutil.net_if_addrs().values() for a in of if a.family == 2}
    return {address for address in every if not ip_address(address).is_loopback}


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 5).close()
    except OSError:
        return False
    return True


def _speaks_in_vain(ranks: Standing, ran: Path) -> None:
    """Write a pickle wherever the ranks look next, as another user of this machine can."""
    store = PrefixStore(
        "autotune",
        TCPStore("127.0.0.1", ranks.port, is_master=False, timeout=timedelta(seconds=20)),
    )
    bomb = pickle.dumps(Bomb(ran), protocol=0).decode("ascii")
    for number in range(20):
        for kind in ("order/0", "report/1"):
            store.set(f"meeting/{number}/{kind}", bomb)
    store.set("start", bomb)
    found = ranks.rig.take_turns([ranks.applied], [PlannedTurn(0, 3)], never, 60.0)
    assert isinstance(found, Taken), found
    assert not ran.exists()
