"""Whatever fails at whatever moment, a shared study has one truth and each member an answer.

Four members search on hosts of their own, with the real command, on one server. What fails, when
and where is drawn at random from a seed that is printed. Afterwards SQL is asked what the study
holds. In most searches the members' seconds pass faster (tests/cluster/scripted_cli.py), and so do
those of the faults: a link that is down for 60 s is down for 6 at ten times.
"""

import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.cluster.conftest import Row
from tests.cluster.hosts import Host, Network, send
from tests.cluster.postgres import PASSWORD, Postgres
from tests.cluster.searches import Searches, moments
from tests.cluster.study_facts import Sql, facts

MEMBERS = ("ada", "bob", "cyd", "dee")
HOUR_S = 3600.0
DOWN_S, STOPPED_S = 60.0, 90.0  # of members' seconds
AWAY_S = 30.0  # for which a server or a member is gone, at most


@dataclass
class Faults:
    """Lets things fail while members search.

    Attributes:
        server: Kills the server and starts it again after some seconds.
        said: What was done, and when, in seconds since the search began.
        for_good: Hosts whose member was killed and not started again.
    """

    searches: Searches
    network: Network
    server: Callable[[float], None]
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
        is_last = len(self.for_good) + 2 >= len(MEMBERS)  # two claim for a third machine
        comes_back = is_last or self.dice.random() < 0.8
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
        self.server(away_s)
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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_a_study_on_postgresql_survives(
    place: Path, kind: str, tell: Callable[[Row], None]
) -> None:
    with Network(place) as network:
        server = Postgres(network.host("db"))
        server.start()
        hosts = [network.host(name) for name in MEMBERS]
        for host in hosts:
            host.set_clock(0.0)
        count = searched = 0
        while count < EACH:
            seed = 1000 * [*KINDS].index(kind) + searched
            count += search_with(network, server, hosts, [kind], seed, tell)
            searched += 1


def search_with(
    network: Network,
    server: Postgres,
    hosts: Sequence[Host],
    kinds: Sequence[str],
    seed: int,
    tell: Callable[[Row], None],
    speed: float = 12.0,
) -> int:
    """Let members search while faults of some kinds happen; return how many did."""
    dice, name = random.Random(seed), f"study{seed}"
    files = {host.name: str(server.password_file(host)) for host in hosts}
    searches = Searches(name, ("--storage", server.url), speed, 420.0, hosts)
    searches.env_of = {host: {"PGPASSFILE": path} for host, path in files.items()}

    def restart(away_s: float) -> None:
        server.kill()
        sleep(away_s)
        server.start()

    faults = Faults(searches, network, restart, dice)
    happened = _run(faults, kinds, dice)
    found = facts(server.sql, name)
    print(f"seed {seed}:", *faults.said, sep="\n  ")
    answers = searches.answers([*faults.for_good])
    tell({"storage": "PostgreSQL", "kind": "+".join(kinds), "seed": seed, "faults": happened,
          "members": len(answers), "answers": len(set(answers.values())), **found.row})  # fmt: skip
    found.check()
    assert len(set(answers.values())) == 1, answers
    for host in hosts:
        assert PASSWORD not in searches.log(host).read_text()
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
