"""Several scripted searches that share a study, in virtual time.

Each search runs in a thread of its own, on a scripted machine with a clock of its own. A conductor
lets only the one go on whose clock is behind the others', so they take turns at the study as they
would in earnest, and the same seeds give the same searches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from autotune.knobs.space.space import ResolvedSpace, SearchSpace
from autotune.program.config import Config, KnobValue
from autotune.results.record import ClaimProcess, PlayedRounds, TrialRecord
from autotune.results.result import SearchResult
from autotune.results.shared_answer import GroupAnswer
from autotune.tuning.events import Events
from autotune.tuning.sharing.entries import Announcement
from autotune.tuning.sharing.membership import Membership
from tests.scripted import Script, Searched, VirtualClock, begin

AHEAD_S = 1.0  # that a search may be ahead of the others, which hear of it later anyway
BEAT_S = 10.0
DEAD_S = 60.0
LEAST_CLAIM = 2


class Killed(BaseException):
    """A member is killed here: nothing of it runs any more."""


class Conductor:
    """Lets the search go on whose clock is behind those of the others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now_s: dict[int, float] = {}
        self._turns: dict[int, threading.Event] = {}

    def enter(self, number: int, now_s: float) -> None:
        """Take a search in, before it begins."""
        self._now_s[number], self._turns[number] = now_s, threading.Event()

    def wait(self, number: int, now_s: float, ahead_s: float = AHEAD_S) -> None:
        """Return when it is the turn of a search, whose clock shows *now_s*."""
        with self._lock:
            self._now_s[number] = now_s
            first = min(self._now_s, key=lambda one: (self._now_s[one], one))
            if first == number or now_s <= self._now_s[first] + ahead_s:
                return
            self._turns[number].clear()
            self._turns[first].set()
        self._turns[number].wait()

    def begin(self, number: int) -> None:
        """Return when a search is to begin; only one runs at a time."""
        self._turns[number].wait()

    def start(self) -> None:
        """Let the first one go."""
        first = min(self._now_s, key=lambda one: (self._now_s[one], one))
        self._turns[first].set()

    def leave(self, number: int) -> None:
        """Let the others go on, when a search is over."""
        with self._lock:
            del self._now_s[number]
            if self._now_s:
                self.start()


class ConductedClock(VirtualClock):
    """A machine's clock, which waits for those of the others."""

    def __init__(self, conductor: Conductor, number: int, joins_s: float, dies_s: float) -> None:
        self._conductor, self._number = conductor, number
        self._shown_s = VirtualClock.now_s + joins_s
        self._dies_s = VirtualClock.now_s + dies_s
        conductor.enter(number, self._shown_s)

    @property
    def now_s(self) -> float:  # type: ignore[override]
        """Seconds; to set them waits for the others."""
        return self._shown_s

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self._shown_s = now_s
        self._conductor.wait(self._number, now_s)
        if now_s >= self._dies_s:
            raise Killed


@dataclass
class Table:
    """The study, as a list: what members have written, in order.

    It stands for the database in searches whose subject is the engine. Its rules are those of
    ``Membership``; the real one has tests of its own.
    """

    entries: list[tuple[str, str, Any]] = field(default_factory=list)  # member, kind, what
    groups: dict[str, str] = field(default_factory=dict)
    seen_s: dict[str, float] = field(default_factory=dict)  # when a member was last seen
    left: set[str] = field(default_factory=set)
    announced: list[Announcement] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    tries: dict[tuple[str, Config], list[str]] = field(default_factory=dict)  # the holders

    def in_force(self, group: str) -> Announcement | None:
        """Return what is announced in a group and was not refused."""
        last = [one for one in self.announced if one.group == group][-1:]
        return next((one for one in last if one.name not in self.refused), None)


class TableMembership(Membership):
    """A member that writes to a table, and reads of it with each beat."""

    is_alone = False

    def __init__(self, table: Table, clock: ConductedClock, part: Part, number: int) -> None:
        self.host, self.number = part.host or f"host-{number}", number + 1
        self._id, self._table, self._clock, self._part = f"{self.host}/{number}", table, clock, part
        self._group, self._space = "", cast("ResolvedSpace", None)
        self._waiting: list[tuple[str, str, Any]] = []
        self._read, self._looked_s = 0, -BEAT_S
        self._in_force: Announcement | None = None

    @property
    def _is_cut(self) -> bool:
        now_s = self._clock() - VirtualClock.now_s
        return now_s >= self._part.dies_s or self._part.is_cut(now_s)

    def _beat(self) -> None:
        if self._is_cut or self._clock() < self._looked_s + BEAT_S:
            return
        self._looked_s = self._table.seen_s[self._id] = self._clock()
        self._deliver()
        self._read = len(self._table.entries)
        self._in_force = self._table.in_force(self._group)

    def _deliver(self) -> None:
        self._table.entries += self._waiting
        self._waiting.clear()

    def _write(self, kind: str, what: Any) -> None:
        self._waiting.append((self._id, kind, what))
        self._beat()

    def _of_others(self, kind: str) -> list[tuple[str, Any]]:
        self._beat()
        its = {member for member, group in self._table.groups.items() if group == self._group}
        return [
            (member, what)
            for member, of, what in self._table.entries[: self._read]
            if of == kind and member in its - {self._id}
        ]

    def _by_host(self, found: Sequence[tuple[str, Any]]) -> dict[str, list[Any]]:
        hosts: dict[str, list[Any]] = {}
        for member, what in found:
            hosts.setdefault(member.partition("/")[0], []).append(what)
        return hosts

    def _lives(self, member: str) -> bool:
        is_seen = self._clock() - self._table.seen_s.get(member, -DEAD_S) < DEAD_S
        return is_seen and member not in self._table.left

    def join(self, group: str, _machine: str, space: ResolvedSpace) -> None:
        self._group, self._space = group, space
        self._table.groups[self._id] = group
        self._beat()

    def played(self, rounds: PlayedRounds) -> None:
        its = rounds.stretch
        one = replace(rounds, rounds=(tuple(its.values()),))
        self._write("played", one)

    def tried(self, record: TrialRecord) -> None:
        self._write("tried", record)

    def claimed(self, process: ClaimProcess) -> None:
        if process.announcement:
            self._write("claimed", process)

    def others(self) -> Mapping[str, Sequence[PlayedRounds]]:
        found = self._of_others("played")
        return self._by_host(
            [one for one in found if all(is_of(self._space, config) for config in one[1].configs)]
        )

    def tried_elsewhere(self) -> Sequence[TrialRecord]:
        return [what for _, what in self._of_others("tried") if is_of(self._space, what.config)]

    def claims_elsewhere(self) -> Mapping[str, Sequence[ClaimProcess]]:
        found, its = self._of_others("claimed"), self._in_force
        return self._by_host([one for one in found if its and one[1].announcement == its.name])

    def preferred(self, configs: Sequence[Config]) -> list[Config]:
        at = self.number % max(1, len(configs))
        return [*configs[at:], *configs[:at]]

    def may_try(self, config: Config) -> bool:
        if self._is_cut:
            return False
        holders = self._table.tries.setdefault((self._group, config), [])
        is_told = any(k == "tried" and w.config == config for _, k, w in self._table.entries)
        if is_told or len(holders) > 1 or (holders and self._lives(holders[0])):
            return False
        holders.append(self._id)
        return True

    def announced(self) -> Announcement | None:
        self._beat()
        return self._in_force

    def announce(self, config: Config) -> Announcement | None:
        if self._is_cut:
            return None
        table, group = self._table, self._group
        if table.in_force(group) is None:
            generation = 1 + sum(one.group == group for one in table.announced)
            name = f"winner:{group}:{generation}"
            table.announced.append(Announcement(name, group, generation, config, self._id))
        self._in_force = table.in_force(group)
        return self._in_force

    def refuse(self, _why: str) -> None:
        if self._in_force is not None and not self._is_cut:
            self._table.refused.add(self._in_force.name)
            self._in_force = self._table.in_force(self._group)

    def awaits_claims(self) -> bool:
        its = self._in_force
        if its is None:
            return False
        made = [m for m, what in self._of_others("claimed") if what.announcement == its.name]
        done = {member for member, _ in self._of_others("answered")}
        return any(
            self._lives(member) and member not in done and made.count(member) < LEAST_CLAIM
            for member, group in self._table.groups.items()
            if group == self._group and member != self._id
        )

    def pause(self, seconds: float) -> None:
        self._clock.now_s += seconds

    def groups(self) -> Sequence[GroupAnswer]:
        found: dict[str, GroupAnswer] = {}
        for member, kind, result in self._table.entries:
            group = self._table.groups.get(member, "")
            if kind == "answered" and group != self._group:
                machines = tuple(sorted(one.host for one in result.machines))
                best = result.best if result.changes else None
                found[group] = GroupAnswer(
                    *(group, result.hardware.named, result.finding),
                    *(best, result.speedup if best else None, machines),
                )
        return [*found.values()]

    def answered(self, result: SearchResult) -> None:
        self._write("answered", result)

    def leave(self) -> None:
        if not self._is_cut:
            self._deliver()
            self._table.left.add(self._id)


def is_of(space: ResolvedSpace, config: Config) -> bool:
    """Return whether a config has the knobs of a space, and values of it."""
    offered = {knob: domain.values for knob, domain in space.domains.items()}
    return config.keys() == space.start.keys() and all(
        value in (*offered.get(knob, ()), space.start[knob], space.baseline.get(knob))
        for knob, value in config.items()
    )


@dataclass(frozen=True)
class Part:
    """One of the searches.

    Attributes:
        joins_s: When it begins, after the first one.
        dies_s: When its process is killed; by the clock of the first.
        is_cut: Whether it is cut off from the study at a second of that clock.
        cpu_name: Machines of one name form a group.
        host: Its name; empty for one of its own.
    """

    script: Script
    seed: int = 0
    joins_s: float = 0.0
    dies_s: float = 1e9
    is_cut: Callable[[float], bool] = lambda _: False
    cpu_name: str = "AMD EPYC 7B13"
    host: str = ""
    budget_s: float = 180.0
    events: Events = field(default_factory=Events)


@dataclass
class Together:
    """Searches that share a study.

    Attributes:
        results: Of each search; None of one that was killed.
        errors: What else ended one.
    """

    searches: list[Searched]
    table: Table = field(default_factory=Table)
    results: list[SearchResult | None] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def go(self, parts: Sequence[Part]) -> Together:
        """Let all of them search to their end."""
        conductor, threads = Conductor(), list[threading.Thread]()
        self.results = [None] * len(parts)
        for number, (part, search) in enumerate(zip(parts, self.searches, strict=True)):
            machine = search.machine
            machine.clock = clock = ConductedClock(conductor, number, part.joins_s, part.dies_s)
            machine.sharing = TableMembership(self.table, clock, part, number)
            run = threading.Thread(target=self._run, args=(conductor, number, part, search))
            threads.append(run)
            run.start()
        conductor.start()
        for run in threads:
            run.join()
        for error in self.errors:
            raise error
        return self

    def _run(self, conductor: Conductor, number: int, part: Part, search: Searched) -> None:
        conductor.begin(number)
        try:
            with suppress(Killed):
                self.results[number] = search.go_on(part.budget_s, part.events)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self.errors.append(error)
        finally:
            conductor.leave(number)

    @property
    def found(self) -> list[SearchResult]:
        """The results of those that were not killed."""
        return [one for one in self.results if one is not None]


def search_together(
    folder: Path,
    parts: Sequence[Part],
    knobs: Mapping[str, tuple[KnobValue, ...] | None] | SearchSpace,
    **options: Any,
) -> Together:
    """Search on several machines; *options* are those of ``tests.scripted.begin``."""
    searches = []
    for number, part in enumerate(parts):
        place = folder / f"member-{number}"
        place.mkdir(parents=True, exist_ok=True)
        search = begin(place, part.script, knobs, part.seed, **options)
        study = search.study
        machine = replace(study.head.hardware, cpu_name=part.cpu_name)
        study.head = replace(study.head, hardware=machine)
        searches.append(search)
    return Together(searches).go(parts)
