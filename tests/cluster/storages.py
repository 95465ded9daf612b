"""Where members of a test keep their study: on a server of PostgreSQL, or with one of them."""

import subprocess
from time import sleep

from tests.cluster.debian import need
from tests.cluster.hosts import Host
from tests.cluster.postgres import Postgres
from tests.cluster.searches import Searches


class OnPostgres:
    """A study in PostgreSQL, whose password every second host has in a file."""

    kind = "PostgreSQL"

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self.sql = server.sql

    def words(self, host: Host) -> tuple[str, ...]:
        return ("--storage", self.server.url) if self._has_file(host) else ()

    def env(self, host: Host) -> dict[str, str]:
        if self._has_file(host):
            return {"PGPASSFILE": str(self.server.password_file(host))}
        return {"AUTOTUNE_STORAGE": self.server.secret_url}

    @staticmethod
    def _has_file(host: Host) -> bool:
        return host.address[-1] in "02468"

    def must_return(self, host: Host) -> bool:
        return False

    def restart(self, searches: Searches, away_s: float) -> None:
        self.server.kill()
        sleep(away_s)
        self.server.start()


class OnProxy:
    """A study in a file that the first member serves to the others."""

    kind = "gRPC proxy"
    port = 7000

    def __init__(self, host: Host) -> None:
        self.host = host
        self.port = OnProxy.port = OnProxy.port + 1

    def words(self, host: Host) -> tuple[str, ...]:
        where = f"{self.host.address}:{self.port}"
        return ("--serve", where) if host is self.host else ("--storage", f"grpc://{where}")

    def env(self, host: Host) -> dict[str, str]:
        return {}

    def must_return(self, host: Host) -> bool:
        return host is self.host

    def restart(self, searches: Searches, away_s: float) -> None:
        searches.kill(self.host)
        sleep(away_s)
        searches.start(self.host)

    def sql(self, query: str) -> list[list[str]]:
        program = need("sqlite3", "sqlite3")
        file = max((self.host.work / ".autotune").glob("*/shared.db"))
        done = subprocess.run(
            [program, "-separator", "\t", str(file), query],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return [line.split("\t") for line in done.stdout.splitlines()]
