"""Snapshot: what one look at a shared study shows, and what follows from it.

All members draw the same conclusions from the same facts, so nobody has to be asked: of requests of
one name the lowest number has the right, and of announcements that of the highest generation is in
force. What is not of this member's space is left out here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import TypeVar

from autotune.errors import UsageError
from autotune.knobs import parse_value, registry
from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.claim import least_processes
from autotune.program.config import Config
from autotune.program.lr import global_batch
from autotune.results.finding import Finding
from autotune.results.record import ClaimProcess, PlayedRounds, TrialRecord
from autotune.results.shared_answer import GroupAnswer, Refusal
from autotune.sharing.entries import (
    Agreement,
    Answer,
    Claimed,
    Member,
    Published,
    Refused,
    Request,
    RequestState,
    Right,
    Rounds,
    Tried,
    arm_of,
    number_of,
)
from autotune.sharing.membership import WAITS

Kind = TypeVar("Kind", Rounds, Tried, Claimed, Refused, Answer)
ATTEMPTS = 2  # at a config whose first holder was lost; it may be what kills machines
MOST_PROCESSES = 1_000_000  # of one member, of which several may share a host


@dataclass(frozen=True)
class Snapshot:
    """What one look at a shared study shows.

    Attributes:
        members: By their ids.
        dead: Ids of those that this observer takes for dead.
        published: All results that could be read, by member and number.
        requests: By their numbers.
        dropped: How many entries could not be read.
    """

    agreement: Agreement | None
    members: Mapping[str, Member]
    dead: frozenset[str]
    published: tuple[Published, ...]
    requests: tuple[Request, ...] = ()
    dropped: int = 0

    @property
    def living(self) -> list[Member]:
        """The members that beat."""
        return [one for one in self.members.values() if not one.left and one.id not in self.dead]

    def is_gone(self, member: str) -> bool:
        """Return whether nothing more is to be expected of a member, such as of an unknown one."""
        return member not in {one.id for one in self.living}

    def seen_by_the_last(self, member: str) -> Snapshot:
        """Return what a member takes it for that leaves, if nobody stays who could see others die.

        Then whoever has an open request counts as dead, so that no trial is left running. One that
        lives ends its trial all the same, and the result counts.
        """
        holders = {one.member for one in self.requests if one.is_open}
        others = {one.id for one in self.living} - {member} - holders
        return self if others else replace(self, dead=self.dead | (holders - {member}))

    def of(self, kind: type[Kind], group: str) -> Iterator[tuple[Published, Kind]]:
        """Yield the results of one kind that machines of a group have published."""
        for one in self.published:
            if one.group == group and isinstance(one.entry, kind):
                yield one, one.entry

    @cached_property
    def holders(self) -> dict[str, Request]:
        """The requests that have a right, by its name."""
        found: dict[str, Request] = {}
        for one in sorted(self.requests, key=lambda one: one.number):
            if one.state is not RequestState.VOID:
                found.setdefault(one.name, one)
        return found

    def free_attempt(self, group: str, config: Config) -> int | None:
        """Return the number of the attempt at a config that may be asked for now.

        None if somebody has the right, it is done, or two have been lost with it.
        """
        if arm_of(group, config) in self._tried(group):
            return None
        holders = self._holders_of(group, config)
        free = all(one.state is RequestState.LOST for one in holders)
        return len(holders) + 1 if free and len(holders) < ATTEMPTS else None

    def holds(self, group: str, config: Config, process: str) -> bool:
        """Return whether a process has the right to try a config, which it may have lost again."""
        holders = self._holders_of(group, config)
        return any(one.process == process and one.state is RequestState.HELD for one in holders)

    def _holders_of(self, group: str, config: Config) -> list[Request]:
        names = (f"{Right.TRY}:{arm_of(group, config)}:{n + 1}" for n in range(ATTEMPTS))
        return [self.holders[name] for name in names if name in self.holders]

    def _tried(self, group: str) -> set[str]:
        if group not in self._arms:
            asked = (entry.asked or entry.record.config for _, entry in self.of(Tried, group))
            self._arms[group] = {arm_of(group, config) for config in asked}
        return self._arms[group]

    @cached_property
    def _arms(self) -> dict[str, set[str]]:
        return {}

    def to_close(
        self, member: str, process: str, wanted: Collection[str]
    ) -> list[tuple[Request, RequestState]]:
        """Return the open requests that a member has to close, and what became of them.

        Args:
            process: That of the member which asks now.
            wanted: Names that this process waits for, or works on.
        """
        found = []
        for one in self.requests:
            if one.is_open:
                state = self._end_of(one, member, process, wanted)
                if state is not None:
                    found.append((one, state))
        return found

    def _end_of(
        self, one: Request, member: str, process: str, wanted: Collection[str]
    ) -> RequestState | None:
        is_mine = one.member == member
        if not is_mine and not self.is_gone(one.member):
            return None
        if self.holders.get(one.name) != one:
            return RequestState.VOID
        if self._has_told(one):
            return RequestState.DONE
        if not is_mine or one.process != process:
            return RequestState.LOST
        return None if one.name in wanted else RequestState.VOID

    def _has_told(self, request: Request) -> bool:
        return any(
            one.member == request.member and (entry.asked or entry.record.config) == request.config
            for one, entry in self.of(Tried, request.group)
        )

    def announcement(self, group: str) -> Request | None:
        """Return what is in force for a group; None if nothing was announced, or it was refused."""
        latest = self._latest(group)
        refused = {entry.announcement for _, entry in self.of(Refused, group)}
        return None if latest is None or latest.name in refused else latest

    def refusals(self, group: str) -> list[Refusal]:
        """Return what was announced for a group, and refused by machines of it."""
        found = []
        for one, entry in self.of(Refused, group):
            made = self.holders.get(entry.announcement)
            if made is not None and made.right is Right.ANNOUNCE:
                member = self.members.get(made.member)
                announced_by = "" if member is None else member.host
                found.append(Refusal(made.config, announced_by, one.host, entry.why))
        return found

    def next_generation(self, group: str) -> int:
        """Return the generation that an announcement would have now."""
        latest = self._latest(group)
        return 1 if latest is None else latest.turn + 1

    def _latest(self, group: str) -> Request | None:
        made = [
            one
            for one in self.holders.values()
            if one.right is Right.ANNOUNCE and one.group == group
        ]
        return max(made, key=lambda one: one.turn, default=None)

    def rounds(self, group: str, me: str, space: ResolvedSpace) -> dict[str, list[PlayedRounds]]:
        """Return the rounds of a group without those of one member, by host.

        Each has one round, and the numbers of processes are distinct within a host. They stay the
        same, as what is known of a process is kept by its number.
        """
        found: dict[str, list[PlayedRounds]] = defaultdict(list)
        fits = cache(partial(is_of, space))  # a race has few configs and many rounds
        for one, entry in self.of(Rounds, group):
            played = entry.played
            if one.member != me and all(map(fits, played.configs)):
                process = number_of(one.member) * MOST_PROCESSES + played.process
                found[one.host] += [
                    replace(played, process=process, rounds=(turns,)) for turns in played.rounds
                ]
        return dict(found)

    def tried(self, group: str, me: str, space: ResolvedSpace) -> list[TrialRecord]:
        """Return what others of a group have tried."""
        return [
            entry.record
            for one, entry in self.of(Tried, group)
            if one.member != me and is_of(space, entry.record.config)
        ]

    def claims(self, announcement: Request, me: str) -> dict[str, list[ClaimProcess]]:
        """Return the processes of others that belong to an announcement, by host."""
        found: dict[str, list[ClaimProcess]] = defaultdict(list)
        for one, entry in self.of(Claimed, announcement.group):
            is_its = entry.announcement == announcement.name
            if one.member != me and is_its and entry.process.config == announcement.config:
                found[one.host].append(entry.process)
        return dict(found)

    def owing(self, announcement: Request, me: str) -> list[Member]:
        """Return the living others of its group with too few fresh processes for a claim yet.

        Those that have come to their answer, or have refused it, owe nothing.
        """
        made: dict[str, list[ClaimProcess]] = defaultdict(list)
        done = set()
        for one in self.published:
            match one.entry:
                case Claimed(announcement.name, process) if process.config == announcement.config:
                    if not process.is_of_search:
                        made[one.member].append(process)
                case Answer(announcement=announcement.name) | Refused(announcement.name):
                    done.add(one.member)
        return [
            one
            for one in self.living
            if one.group == announcement.group and one.id != me and one.id not in done
            if len(own := made[one.id]) < least_processes(apart=any(p.is_pair for p in own))
        ]

    def searching(self, group: str, me: str) -> list[Member]:
        """Return the living others of a group that may announce something yet."""
        done = {one.member for one in self.published if isinstance(one.entry, Answer)}
        others = (one for one in self.living if one.group == group and one.id != me)
        return [one for one in others if one.phase != WAITS and one.id not in done]

    def answers(self, group: str, space: ResolvedSpace) -> list[GroupAnswer]:
        """Return the answers of other groups, as far as their configs mean something here."""
        groups = sorted({one.group for one in self.published} - {group, ""})
        found = (self.answer(name, partial(may_hold, space)) for name in groups)
        return [one for one in found if one is not None]

    def answer(
        self, group: str, fits: Callable[[Config], bool] = lambda _: True
    ) -> GroupAnswer | None:
        """Return that answer of a group which rests on most machines, of equals the first."""
        given = [
            (one, entry)
            for one, entry in self.of(Answer, group)
            if entry.config is None or fits(entry.config)
        ]
        if not given:
            return None
        one, best = max(
            given, key=lambda its: (its[1].finding is Finding.FASTER, len(its[1].machines))
        )
        machine = self.members[one.member].machine if one.member in self.members else ""
        machines = tuple(sorted({*best.machines})) or (one.host,)
        # As a machine of another kind reads it, whose own values differ
        config = Config((best.config or Config({})).changes_from(self.as_written(group)))
        return GroupAnswer(group, machine, best.finding, config, best.speedup, machines)

    def as_written(self, group: str) -> Config:
        """Return the program's own config on machines of a group, the first one of all rounds.

        It has the knobs of all of them: a longer budget may hold more.
        """
        own = dict.fromkeys(entry.played.configs[0] for _, entry in self.of(Rounds, group))
        return Config({knob: value for one in reversed(own) for knob, value in one.items()})

    def count_foreign(self, group: str, me: str, space: ResolvedSpace) -> int:
        """Return how many results of the group are left out because they are of no config here."""
        fits = cache(partial(is_of, space))
        return sum(
            not all(map(fits, _configs(one)))
            for one in self.published
            if one.group == group and one.member != me
        )


NOTHING = Snapshot(None, {}, frozenset(), ())  # before the first look


def _configs(published: Published) -> Iterable[Config]:
    match published.entry:
        case Rounds(played):
            return played.configs
        case Tried(record):
            return (record.config,)
        case Claimed(_, process):
            return (process.config,)
    return ()


def is_of(space: ResolvedSpace, config: Config) -> bool:
    """Return whether a config has all knobs of a space, no others, and only values of it."""
    return config.keys() == space.start.keys() and all(
        _is_value(space, knob, value) or (knob == "batch_size" and _is_share(space, config))
        for knob, value in config.items()
    )


def _is_value(space: ResolvedSpace, knob: str, value: object) -> bool:
    known = [space.baseline.get(knob), space.fixed.get(knob)]
    known += space.domains[knob].values if knob in space.domains else ()
    # 1 is True in Python, but not to a program
    return any(type(one) is type(value) and one == value for one in known)


def _is_share(space: ResolvedSpace, config: Config) -> bool:
    # Ranks and accumulation steps share a batch of the space, which makes other sizes of it
    own = space.baseline["batch_size"]
    sizes = space.domains["batch_size"].values if "batch_size" in space.domains else ()
    whole = {global_batch(space.baseline.replace(batch_size=size)) for size in (own, *sizes)}
    return type(config["batch_size"]) is int and global_batch(config) in whole


def may_hold(space: ResolvedSpace, config: Config) -> bool:
    """Return whether a config may be one of another machine for the same program.

    A setting of autotune's own may have another value there. A flag or a variable may not.
    """
    names = {*space.domains, *space.fixed, *space.refused, *space.baseline}
    return all(
        knob in names and (_is_value(space, knob, value) or _is_valid(knob, value))
        for knob, value in config.items()
    )


def _is_valid(knob: str, value: object) -> bool:
    try:
        return knob in set(registry()) and parse_value(knob, value, knob) == value
    except UsageError:
        return False
