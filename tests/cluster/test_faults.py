"""Whatever fails at whatever moment, a shared study has one truth and each member an answer.

Four members search on hosts of their own, with the real command, on one server. What fails, when
and where is drawn at random from a seed that is printed. Afterwards SQL is asked what the study
holds. In most searches the members' seconds pass faster (tests/cluster/scripted_cli.py), and so do
those of the faults: a link that is down for 60 s is down for 6 at ten times.
"""

import random
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.cluster.conftest import Tell
from tests.cluster.hosts import Network, send
from tests.cluster.postgres import PASSWORD, Postgres
from tests.cluster.searches import Searches, Storage, moments
from tests.cluster.storages import OnPostgres, OnProxy
from tests.cluster.study_facts import facts

MEMBERS = ("ada", "bob", "cyd", "dee")
HOUR_S = 3600.0
DOWN_S, STOPPED_S = 60.0, 90.0  # of members' seconds
AWAY_S = 30.0  # for which a server or a member is gone, at most


@dataclass(frozen=True)
class Pace:
    """How many times as fast as a clock members' seconds pass, and their budget in these."""

    speed: float
    budget_s: float


FAST, REAL = Pace(8.0, 480.0), Pace(1.0, 300.0)


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
            if is_host:
                host.boot()  # for the next search
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
IN_ONE = 5  # in one search
# None of these in the search whose seconds are real ones: libfaketime lets it go on for longer
UNSCALED = [kind for kind in KINDS if kind != "clocks apart"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_a_study_on_postgresql_survives(place: Path, kind: str, tell: Tell) -> None:
    with Network(place) as network:
        server = Postgres(network.host("db"))
        server.start()
        for name in MEMBERS:
            network.host(name)
        happened = searched = 0
        while happened < EACH:
            seed = 1000 * [*KINDS].index(kind) + searched
            happened += search_with(network, OnPostgres(server), [kind] * IN_ONE, seed, tell)
            searched += 1


@pytest.mark.timeout(900)
def test_a_study_survives_one_fault_of_each_kind_in_real_seconds(place: Path, tell: Tell) -> None:
    """Members beat each 10 s and are dead after 60 s, a link is down for 60 s, one stops for 90."""
    with Network(place) as network:
        server = Postgres(network.host("db"))
        server.start()
        for name in MEMBERS:
            network.host(name)
        dice = random.Random(seed := 8000)
        failing = dice.sample(UNSCALED, len(UNSCALED))
        happened = search_with(network, OnPostgres(server), failing, seed, tell, REAL)
        assert happened == len(failing)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_a_study_on_a_proxy_survives(place: Path, kind: str, tell: Tell) -> None:
    with Network(place) as network:
        hosts = [network.host(name) for name in MEMBERS]
        happened = searched = 0
        while happened < EACH:
            seed = 90_000 + 1000 * [*KINDS].index(kind) + searched
            happened += search_with(network, OnProxy(hosts[0]), [kind] * IN_ONE, seed, tell)
            searched += 1


def search_with(
    network: Network,
    storage: Storage,
    failing: Sequence[str],
    seed: int,
    tell: Tell,
    pace: Pace = FAST,
) -> int:
    """Let members search while faults happen, of these kinds in this order; return how many did."""
    dice, name = random.Random(seed), f"study{seed}"
    hosts = [network.hosts[name] for name in MEMBERS]
    if "clocks apart" in failing:  # only here: libfaketime costs four times the processor time
        pace = replace(pace, speed=pace.speed / 2)
        for host, wrong_s in zip(hosts, (-HOUR_S, HOUR_S, 0.0, HOUR_S), strict=True):
            host.set_clock(wrong_s)
    searches = Searches(name, storage, pace.speed, pace.budget_s, hosts)
    faults = Faults(searches, network, dice)
    try:
        happened = _run(faults, failing)
        found = facts(storage.sql, name)
        if found.running or found.gaps:  # the study was out of reach when members ended
            faults.tell("resume")
            searches.deliver(faults.for_good)
            found = facts(storage.sql, name)
        answers = searches.answers(faults.for_good)
        recommended = {answer for answer in answers.values() if answer}
        tell(
            {
                "storage": storage.kind,
                "failed": failing[0] if pace is not REAL else "each, real s",
                "seed": seed,
                "faults": happened,
                "members": len(answers),
                "answers": len(recommended),
                "unconfirmed": [*answers.values()].count(None),
                **found.row,
            }
        )
        found.check()
        assert len(recommended) <= 1, answers
        for host in hosts:
            assert PASSWORD not in searches.log(host).read_text()
    except BaseException:
        print(f"seed {seed}:", *faults.said, searches.told(hosts), sep="\n  ")  # noqa: T201
        raise
    return happened


def _run(faults: Faults, failing: Sequence[str]) -> int:
    searches, dice = faults.searches, faults.dice
    real_s = searches.budget_s / searches.speed
    until_s = monotonic() + 6 * real_s + 60
    for host in searches.hosts:
        searches.start(host)
        sleep(dice.uniform(0, 0.3))
    happened = 0
    when = moments(dice, len(failing), 2.0, 0.45 * real_s)  # they often end before their budget
    for moment, kind in zip(when, failing, strict=True):
        sleep(max(0.0, faults.began_s + moment - monotonic()))
        happened += KINDS[kind](faults)
    faults.end()
    searches.wait(until_s)
    return happened
