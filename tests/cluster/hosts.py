"""Hosts that are namespaces: each has its name, address, processes, /tmp, /dev/shm and clock.

A network is a switch in a network namespace of its own, so the machine that runs the tests notices
nothing. A host shares with that machine its kernel (so the boot id, too), its CPU and its files
other than /tmp and /dev/shm. Whatever runs on a host ends with its first process.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil
import pytest

from tests.cluster.debian import need
from tests.docs.pages import ROOT

SUBNET = "10.77.0"
KINDS = ("--net", "--uts", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")
# The first process: it names the host, gives it a /tmp that has nothing but the folders that are
# needed, says so, and reaps whatever loses its parent.
FIRST = """
set -e
name=$1 disk=$2 names=$3
shift 3
hostname "$name"
mount --bind "$names" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
for kept in "$@"; do
    mkdir -p "$disk$kept"
    mount --bind "$kept" "$disk$kept"
done
mount --rbind "$disk/tmp" /tmp
ip link set lo up
echo up
while :; do sleep 1000 & wait; done
"""

# A process enters a pid namespace by its children. nsenter's own fork stops with its child, which
# then cannot be continued; a shell does not.
IN_THE_SHELL = '"$@"; exit $?'


class Network:
    """A switch, and the hosts at it; ends all of them when it is left.

    Args:
        folder: Gets a folder per host. Users other than the owner must be able to enter it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts: dict[str, Host] = {}
        self.names = folder / "hosts"

    def __enter__(self) -> Self:
        _need_namespaces()
        self.names.write_text("127.0.0.1 localhost\n")
        words = ["unshare", "--net", "--fork", "--kill-child=KILL", "sh", "-c", "echo up; cat"]
        self._switch = _started(words)
        self.on_switch("ip", "link", "add", "switch", "type", "bridge")
        self.on_switch("ip", "link", "set", "switch", "up")
        return self

    def __exit__(self, *_error: object) -> None:
        for host in self.hosts.values():
            host.kill()
        _end(self._switch)

    def host(self, name: str) -> "Host":
        """Plug in a new host and boot it."""
        host = Host(name, f"{SUBNET}.{len(self.hosts) + 1}", self)
        self.hosts[name] = host
        with self.names.open("a") as names:
            names.write(f"{host.address} {name}\n")
        host.boot()
        return host

    def on_switch(self, *words: str) -> None:
        """Run a command on the switch."""
        _checked(["nsenter", f"--target={_inner(self._switch)}", "--net", *words])


@dataclass
class Host:
    """A machine of a network.

    Attributes:
        address: Its IPv4 address.
        clock_s: By how many seconds its wall clock is wrong, for what is started from now on.
        core: The only CPU of what is started from now on; None for all of them.
    """

    name: str
    address: str
    network: Network
    clock_s: float = 0.0
    core: int | None = None
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def disk(self) -> Path:
        """The folder that is the host's own: what it has in /tmp is below, as is its work."""
        return self.network.folder / self.name

    @property
    def work(self) -> Path:
        """The folder in which commands start."""
        return self.disk / "work"

    def boot(self) -> None:
        """Start the host: with a new first process and the disk that it had."""
        for folder in (self.work, self.disk / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        (self.disk / "tmp").chmod(0o1777)
        kept = [str(folder) for folder in _needed() | {self.network.folder}]
        below = [folder for folder in kept if folder.startswith("/tmp/")]
        places = [self.name, str(self.disk), str(self.network.names)]
        self._first = _started(["unshare", *KINDS, "sh", "-c", FIRST, "sh", *places, *below])
        pid, port = str(_inner(self._first)), f"to-{self.name}"
        card = f"02:00:00:00:00:{int(self.address.rpartition('.')[2]):02x}"  # the same next time
        peer = ("peer", "name", "eth0", "address", card, "netns", pid)
        self.network.on_switch("ip", "link", "add", port, "type", "veth", *peer)
        self.network.on_switch("ip", "link", "set", port, "master", "switch", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def kill(self) -> None:
        """End the host and all that runs on it with SIGKILL, as a power failure would."""
        _end(self._first)
        with suppress(AssertionError):  # gone with the host already; else later than it boots
            self.network.on_switch("ip", "link", "delete", f"to-{self.name}")
        for process in self.started:
            process.wait(20)
        self.started.clear()

    def start(
        self, *words: str, log: Path, env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command in the host's folder; what it says is appended to *log*."""
        variables = {**os.environ, "TMPDIR": "/tmp", **self._clock(), **(env or {})}
        with log.open("ab") as said:
            process = subprocess.Popen(
                self._entered(words), env=variables, stdin=subprocess.DEVNULL, stdout=said,
                stderr=said, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def run(self, *words: str, env: dict[str, str] | None = None) -> str:
        """Run a command, insist that it works, and return what it prints."""
        return _checked(self._entered(words), {**os.environ, **(env or {})})

    def cut(self) -> None:
        """Pull the plug of the network."""
        self.network.on_switch("ip", "link", "set", f"to-{self.name}", "down")

    def mend(self) -> None:
        """Plug the network in again."""
        self.network.on_switch("ip", "link", "set", f"to-{self.name}", "up")

    def set_clock(self, wrong_by_s: float) -> None:
        """Set the wall clock of what runs here, and of what will be started."""
        self.clock_s = wrong_by_s
        part = self.disk / "clock.part"
        part.write_text(f"{wrong_by_s:+.0f}\n")
        part.replace(self.disk / "clock")

    def _clock(self) -> dict[str, str]:
        """The variables that make a program read this host's wall clock.

        Monotonic clocks stay the kernel's, as those of a machine whose wall clock is set do.
        """
        if not (self.disk / "clock").exists():
            return {}
        need("faketime", "faketime")
        library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self.disk / "clock"),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # the name of it before libfaketime 0.9.10
        }

    def _entered(self, words: Sequence[str]) -> list[str]:
        spaces = ("--net", "--uts", "--mount", "--pid", f"--wd={self.work}")
        enter = ["nsenter", f"--target={_inner(self._first)}", "--no-fork", *spaces]
        core = () if self.core is None else ("taskset", "--cpu-list", str(self.core))
        return [*enter, *core, "sh", "-c", IN_THE_SHELL, "sh", *words]


def send(process: subprocess.Popen[bytes], signalled: signal.Signals) -> None:
    """Send a signal to a command on a host and to all that it has started."""
    with suppress(psutil.NoSuchProcess):
        for one in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signalled)


def _needed() -> set[Path]:
    """Return the folders that a Python process reads programs and packages from."""
    found = {Path(entry) for entry in (*sys.path, sys.prefix, sys.base_prefix) if entry}
    return {ROOT, *(folder for folder in found if folder.is_dir())}


def _need_namespaces() -> None:
    need("iproute2", "ip")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare to make namespaces")
    tried = subprocess.run(
        ["unshare", *KINDS, "true"], capture_output=True, text=True, timeout=30, check=False
    )
    if tried.returncode:
        pytest.skip(f"needs namespaces: {tried.stderr.strip()}")


def _started(words: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a first process and wait until it says that it is up."""
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n", f"{words} is not up"
    return process


def _inner(first: subprocess.Popen[bytes]) -> int:
    """Return the first process itself, a child of unshare's."""
    return psutil.Process(first.pid).children()[0].pid


def _end(first: subprocess.Popen[bytes]) -> None:
    with suppress(psutil.NoSuchProcess, IndexError):
        psutil.Process(_inner(first)).kill()
    first.kill()
    first.communicate()


def _checked(words: Sequence[str], env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert not done.returncode, f"{' '.join(words)}: {done.stderr or done.stdout}"
    return done.stdout
