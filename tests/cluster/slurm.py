"""A small cluster of Slurm on this machine: a controller and two nodes, from Debian's packages.

The nodes are daemons of this machine with ports of their own (``slurmd -N``), or each runs on a
host of its own (hosts.py); each believes to have two cores. Nothing is read from or written to
/etc: the configuration is named by SLURM_CONF. Processes are followed by their parents
(``proctrack/linuxproc``), so no cgroups are needed.
"""

import os
import secrets
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Self

import pytest

from tests.cluster.debian import need
from tests.cluster.hosts import Network

LOGIN, NODES = "login", ("n1", "n2")
CORES = 2  # that each node has, whatever the machine has
START_S = 60.0
CONF = """\
ClusterName=tests
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=30
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} CPUs=2 State=UNKNOWN\n"


@dataclass
class Slurm:
    """The cluster; it runs while it is entered.

    Attributes:
        folder: Gets the daemons' files; below the network's, where there is one.
        network: Gets a host for the controller, ``login``, and one for each node.
    """

    folder: Path
    network: Network | None = None
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def variables(self) -> Mapping[str, str]:
        """What the commands of Slurm need in their environment."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            pytest.skip("only root starts the daemons of Slurm for jobs of other users")
        munged, controller = need("munge", "munged"), need("slurm-wlm", "slurmctld")
        node = need("slurm-wlm", "slurmd")
        self._configure()
        own = {
            "socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid",
            "log-file": "munged.log", "seed-file": "munged.seed",
        }  # fmt: skip
        options = [f"--{name}={self.folder / file}" for name, file in own.items()]
        self._start("munged", "", munged, "--foreground", "--force", *options)
        until((self.folder / "munge.socket").exists, "sockets of munged")
        self._start("slurmctld", LOGIN, controller, "-D")
        for name in NODES:
            self._start(name, name, node, "-D", "-N", name)
        until(lambda: self.said("sinfo", "-h", "-t", "idle", "-o", "%D") == "2", "two idle nodes")
        return self

    def __exit__(self, *_error: object) -> None:
        self.said("scancel", "--user=root")
        until(lambda: not self.said("squeue", "-h"), "no jobs")
        for daemon in reversed(self.daemons):
            daemon.terminate()
            daemon.wait(START_S)

    def said(self, *words: str) -> str:
        """Return what a command of Slurm prints; of one that fails, what it complains of."""
        if self.network is not None:
            return self.network.hosts[LOGIN].run(*words, env=dict(self.variables)).strip()
        done = subprocess.run(
            words, capture_output=True, text=True, env={**os.environ, **self.variables},
            timeout=START_S, check=False,
        )  # fmt: skip
        return (done.stdout or done.stderr).strip()

    def _configure(self) -> None:
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        controller, *nodes = (self._place(name, port) for name, port in _ports().items())
        text = CONF.format(folder=self.folder, **controller)
        (self.folder / "slurm.conf").write_text(text + "".join(NODE.format(**one) for one in nodes))

    def _place(self, name: str, port: int) -> Mapping[str, object]:
        if self.network is None:
            host, address = socket.gethostname(), "127.0.0.1"
        else:
            host, address = name, self.network.host(name).address
        return {"name": name, "host": host, "address": address, "port": port}

    def _start(self, name: str, host: str, *words: str) -> None:
        log = self.folder / f"{name}.out"
        if self.network is not None and host:
            self.network.hosts[host].start(*words, log=log, env=dict(self.variables))
            return
        with log.open("wb") as said:
            daemon = subprocess.Popen(
                words, stdout=said, stderr=said, env={**os.environ, **self.variables},
                start_new_session=True,
            )  # fmt: skip
        self.daemons.append(daemon)


def until(holds: Callable[[], object], what: str, patience_s: float = START_S) -> None:
    """Wait until something holds, and say what did not."""
    end = monotonic() + patience_s
    while not holds():
        assert monotonic() < end, f"there are never {what}"
        sleep(0.2)


def _ports() -> Mapping[str, int]:
    """Return a free port of this machine for each daemon."""
    with ExitStack() as held:
        servers = {
            name: held.enter_context(socket.create_server(("127.0.0.1", 0)))
            for name in (LOGIN, *NODES)
        }
        return {name: server.getsockname()[1] for name, server in servers.items()}
