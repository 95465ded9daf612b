"""PostgreSQL from Debian on a host, run by an ordinary user with its default durability."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.cluster.debian import need
from tests.cluster.hosts import SUBNET, Host, send
from tests.rigging import wait_for

USER = "nobody"  # PostgreSQL refuses root
PASSWORD = "only-in-the-variable"


class Postgres:
    """A server on a host, which may be killed and started again.

    Attributes:
        url: What members are told: the address without the password.
        secret_url: The same with the password, for AUTOTUNE_STORAGE.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.folder = host.disk / "postgres"
        self.url = f"postgresql://autotune@{host.address}/postgres"
        self.secret_url = self.url.replace("@", f":{PASSWORD}@")
        self._programs = _programs()
        self._process: subprocess.Popen[bytes] | None = None
        self._make()

    def start(self) -> None:
        """Start the server, and return when it answers."""
        server = (self._programs / "postgres", "-D", self.folder / "data")
        self._process = self.host.start(*_as_user(*server), log=self.host.disk / "postgres.log")
        ready = [str(self._programs / "pg_isready"), "-q", "-h", self.host.address]

        def answers() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.said()
            return self.host.start(*ready, log=self.host.disk / "ready.log").wait(30) == 0

        assert wait_for(answers, 60), self.said()

    def kill(self) -> None:
        """End each process of the server with SIGKILL, at once: its pid file stays."""
        assert self._process is not None
        processes = psutil.Process(self._process.pid).children(recursive=True)
        for signalled in (signal.SIGSTOP, signal.SIGKILL):  # none sees another one end
            send(self._process, signalled)
        self._process.wait(20)
        psutil.wait_procs(processes, 20)
        assert (self.folder / "data" / "postmaster.pid").exists()

    def sql(self, query: str) -> list[list[str]]:
        """Return the rows that psql prints."""
        psql = ["psql", "-X", "-At", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-c", query, self.url]
        said = self.host.run(*psql, env={"PGPASSWORD": PASSWORD})
        return [line.split("\t") for line in said.splitlines()]

    def said(self) -> str:
        """Return the end of the server's log."""
        return (self.host.disk / "postgres.log").read_text()[-2000:]

    def password_file(self, host: Host) -> Path:
        """Return a file on another host for PGPASSFILE."""
        path = host.disk / "pgpass"
        path.write_text(f"{self.host.address}:*:*:autotune:{PASSWORD}\n")
        path.chmod(0o600)
        return path

    def _make(self) -> None:
        self.folder.mkdir()
        secret = self.folder / "secret"
        secret.write_text(PASSWORD)
        if os.geteuid() == 0:
            for path in (self.folder, secret):
                shutil.chown(path, USER)
        data = self.folder / "data"
        scram = ("--username=autotune", "--auth=scram-sha-256", f"--pwfile={secret}")
        self.host.run(*_as_user(self._programs / "initdb", "-D", data, *scram))
        with (data / "postgresql.conf").open("a") as settings:
            settings.write(f"listen_addresses = '{self.host.address}'\n")
            settings.write(f"unix_socket_directories = '{self.folder}'\n")
        with (data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {SUBNET}.0/24 scram-sha-256\n")


def _as_user(*words: str | Path) -> list[str]:
    """Return a line that runs another one as an ordinary user."""
    line = [str(word) for word in words]
    if os.geteuid() != 0:
        return line
    return ["setpriv", f"--reuid={USER}", "--regid=nogroup", "--clear-groups", *line]


def _programs() -> Path:
    """Return the folder of the server's programs, which Debian keeps out of PATH."""
    need("postgresql", "psql")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders:
        pytest.skip("needs a PostgreSQL server of Debian's package postgresql")
    return folders[-1]
