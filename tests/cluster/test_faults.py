"""Whatever fails at whatever moment, a shared study has one truth and each member an answer.

Four members search on hosts of their own, with the real command, on one server. What fails, when
and where is drawn at random from a seed that is printed. Afterwards SQL is asked what the study
holds. In most searches the members' seconds pass faster (tests/cluster/scripted_cli.py), and so do
those of the faults: a link that is down for 60 s is down for 6 at ten times.
"""

import random
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.cluster.conftest import Tell
from tests.cluster.debian import need
from tests.cluster.hosts import Host, Network, send
from tests.cluster.postgres import PASSWORD, Postgres
from tests.cluster.searches import Searches, Storage, moments
from tests.cluster.study_facts import facts

MEMBERS = ("ada", "bob", "cyd", "dee")
SPEED, BUDGET_S = 12.0, 420.0
HOUR_S = 3600.0
DOWN_S, STOPPED_S = 60.0, 90.0  # of members' seconds
AWAY_S = 30.0  # for which a server or a member is gone, at most


@dataclass
class Faults:
    """Lets things fail while members search.

    Attributes:
        said: What was done, and when, in seconds since the search began.
        for_good: Hosts whose member was killed and not started again.
    """

    searches: Searches
    network: Network
    dice: random.Random
    began_s: float = field(default_factory=monotonic)
    said: list[str] = field(default_factory=list)
    for_good: set[str] = field(default_factory=set)
    later: list[threading.Thread] = field(default_factory=list)

    def member(self) -> bool:
        """Kill a member, or its whole host; most are started again."""
        running = self.searches.running
        if len(running) < 2:
            return False
        host = self.dice.choice(running)
        is_host, resumes = self.dice.random() < 0.25, self.dice.random() < 0.5
        is_needed = len(self.for_good) + 2 >= len(MEMBERS)  # two claim for a third machine
        is_needed |= self.searches.storage.must_return(host)
        comes_back = is_needed or self.dice.random() < 0.8
        self.tell(f"kill {'host' if is_host else 'member'} {host.name}", comes_back, resumes)
        if is_host:
            host.kill()
        else:
            self.searches.kill(host)
        if not comes_back:
            self.for_good.add(host.name)
            return True
        away_s = self.scaled(self.dice.uniform(0, AWAY_S))

        def come_back() -> None:
            sleep(away_s)
            if is_host:
                host.boot()
            self.searches.start(host, resumes=resumes)

        self.after(come_back)
        return True

    def server_killed(self) -> bool:
        """Kill each process of the server; it comes back."""
        away_s = self.scaled(self.dice.uniform(0, AWAY_S))
        self.tell("kill the server", f"{away_s:.1f} s")
        self.searches.storage.restart(self.searches, away_s)
        return True

    def link(self) -> bool:
        """Pull the plug of a member, or of the server."""
        hosts = [*self.network.hosts.values()]
        host = self.dice.choice(hosts)
        self.tell("link down", host.name)
        host.cut()
        down_s = self.scaled(DOWN_S)

        def mend() -> None:
            sleep(down_s)
            host.mend()

        self.after(mend)
        return True

    def stopped(self) -> bool:
        """Stop a member's process, and continue it."""
        running = self.searches.running
        if not running:
            return False
        host = self.dice.choice(running)
        process = self.searches.processes[host.name]
        self.tell("stop", host.name)
        send(process, signal.SIGSTOP)
        stopped_s = self.scaled(STOPPED_S)

        def go_on() -> None:
            sleep(stopped_s)
            send(process, signal.SIGCONT)

        self.after(go_on)
        return True

    def clock(self) -> bool:
        """Set the wall clock of a host an hour back or ahead."""
        host = self.dice.choice(self.searches.hosts)
        wrong_s = self.dice.choice([one for one in (-HOUR_S, 0.0, HOUR_S) if one != host.clock_s])
        self.tell("clock", host.name, f"{wrong_s:+.0f} s")
        host.set_clock(wrong_s)
        return True

    def scaled(self, seconds: float) -> float:
        """Return members' seconds as real ones."""
        return seconds / self.searches.speed

    def tell(self, *what: object) -> None:
        """Keep what is done, for whoever reads why a test failed."""
        self.said.append(f"{monotonic() - self.began_s:5.1f} s  {' '.join(map(str, what))}")

    def after(self, act: Callable[[], None]) -> None:
        """Do something beside the search."""
        thread = threading.Thread(target=act)
        thread.start()
        self.later.append(thread)

    def end(self) -> None:
        """Wait until all is mended."""
        for thread in self.later:
            thread.join()


KINDS: dict[str, Callable[[Faults], bool]] = {
    "member killed": Faults.member,
    "server killed": Faults.server_killed,
    "link down": Faults.link,
    "member stopped": Faults.stopped,
    "clocks apart": Faults.clock,
}
EACH = 20  # faults of a kind, at least
IN_ONE = 4  # in one search


class OnPostgres:
    """A study in PostgreSQL, whose password half of the members have in a file."""

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
        return host.name in MEMBERS[::2]

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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_a_study_on_postgresql_survives(place: Path, kind: str, tell: Tell) -> None:
    with Network(place) as network:
        server = Postgres(network.host("db"))
        server.start()
        for name in MEMBERS:
            network.host(name).set_clock(0.0)
        happened = searched = 0
        while happened < EACH:
            seed = 1000 * [*KINDS].index(kind) + searched
            happened += search_with(network, OnPostgres(server), [kind], seed, tell)
            searched += 1


@pytest.mark.timeout(900)
def test_a_study_on_a_proxy_survives(place: Path, tell: Tell) -> None:
    with Network(place) as network:
        hosts = [network.host(name) for name in MEMBERS]
        for host in hosts:
            host.set_clock(0.0)
        for number, kind in enumerate(KINDS):
            search_with(network, OnProxy(hosts[0]), [kind], 9000 + number, tell)


def search_with(
    network: Network, storage: Storage, kinds: Sequence[str], seed: int, tell: Tell
) -> int:
    """Let members search while faults of some kinds happen; return how many did."""
    dice, name = random.Random(seed), f"study{seed}"
    hosts = [network.hosts[name] for name in MEMBERS]
    searches = Searches(name, storage, SPEED, BUDGET_S, hosts)
    faults = Faults(searches, network, dice)
    try:
        happened = _run(faults, kinds, dice)
        found = facts(storage.sql, name)
        answers = searches.answers([*faults.for_good])
        row = {"members": len(answers), "answers": len(set(answers.values())), **found.row}
        tell({"storage": storage.kind, "failed": kinds[0], "seed": seed, "faults": happened, **row})
        found.check()
        assert len(set(answers.values())) == 1, answers
        for host in hosts:
            assert PASSWORD not in searches.log(host).read_text()
    except BaseException:
        print(f"seed {seed}:", *faults.said, searches.told(hosts), sep="\n  ")  # noqa: T201
        raise
    return happened


def _run(faults: Faults, kinds: Sequence[str], dice: random.Random) -> int:
    searches = faults.searches
    real_s = searches.budget_s / searches.speed
    until_s = monotonic() + 6 * real_s + 60
    for host in searches.hosts:
        searches.start(host)
        sleep(dice.uniform(0, 0.3))
    happened = 0
    for moment in moments(dice, IN_ONE, 2.0, 0.8 * real_s):
        sleep(max(0.0, faults.began_s + moment - monotonic()))
        happened += KINDS[dice.choice(kinds)](faults)
    faults.end()
    searches.wait(until_s)
    return happened
