"""Who can reach the ranks of one machine: nobody from outside, and nobody without the run's key."""

import pickle
import socket
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from autotune.measurement.turn import PlannedTurn, Taken
from autotune.program.config import Config
from tests.inside.test_exchange import Bomb
from tests.knobs.strategies.test_faults import applied_of
from tests.made import make_applied
from tests.rigging import never, open_rig

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_starts")]


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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.real_starts
def test_ranks_of_a_machine_listen_on_loopback_and_hear_nobody(tmp_path: Path, way: str) -> None:
    """Two ranks, by our strategy or by the program's own ``init_process_group()``."""
    script, applied = WAYS[way]
    with open_rig(tmp_path, script, "", str(tmp_path), applied=applied) as opened:
        assert opened.rig.pid is not None
        rig = psutil.Process(opened.rig.pid)
        tree = [rig, *rig.children(recursive=True)]
        connections = [c for process in tree for c in process.net_connections("inet")]
        listening = [c.laddr for c in connections if c.status == psutil.CONN_LISTEN]
        (store,) = {p.environ()["MASTER_PORT"] for p in tree if "MASTER_PORT" in p.environ()}
        ports = {place.port for place in listening}
        assert int(store) in ports
        assert len(ports) >= 3, "the store, and each rank's place for collectives"
        assert all(ip_address(place.ip).is_loopback for place in listening)
        for address in _outer_addresses():
            assert not {port for port in ports if _answers(address, port)}
        _write_bombs(int(store), tmp_path / "ran")
        found = opened.rig.take_turns([applied], [PlannedTurn(0, 3)], never, 60.0)
        assert isinstance(found, Taken), found
        assert not (tmp_path / "ran").exists()


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


def _write_bombs(port: int, ran: Path) -> None:
    """Write a pickle wherever the ranks look next, as another user of this machine can."""
    patience = timedelta(seconds=20)
    plain = TCPStore("127.0.0.1", port, is_master=False, timeout=patience)
    store = PrefixStore("autotune", plain)
    bomb = pickle.dumps(Bomb(ran), protocol=0).decode("ascii")
    for number in range(20):
        for kind in ("order/0", "report/1"):
            store.set(f"meeting/{number}/{kind}", bomb)
    store.set("start", bomb)
