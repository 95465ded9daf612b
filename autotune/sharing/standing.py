"""Standing: what a shared study stands at, for people who look at it from outside.

It is made of one look and joins nothing. Whether a member lives is told by its beat, which an
observer has to see change: a first look does not tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from autotune.program.config import Config
from autotune.results.shared_answer import GroupAnswer, Refusal
from autotune.sharing.board import Board
from autotune.sharing.entries import (
    Claimed,
    Member,
    RequestState,
    Right,
    Rounds,
    Tried,
)
from autotune.sharing.snapshot import Snapshot


class Life(StrEnum):
    """What an observer knows of a member's process."""

    LIVING = "living"
    QUIET = "silent"
    GONE = "gone"
    LEFT = "left"


@dataclass(frozen=True)
class MemberStanding:
    """A member, as an observer sees it.

    Attributes:
        phase: What it does, or did last.
        machine: Its CPU and GPU in a few words; empty until it has measured the program as written.
    """

    id: str
    host: str
    life: Life
    phase: str
    machine: str
    group: str

    @property
    def has_ended(self) -> bool:
        """Whether it has left, or is dead."""
        return self.life in {Life.GONE, Life.LEFT}


@dataclass(frozen=True)
class HandOut:
    """A config in a fresh process, which one member had the right to try.

    Attributes:
        state: What became of it: held, done, or lost with its member.
    """

    config: Config
    host: str
    state: str


@dataclass(frozen=True)
class GroupStanding:
    """What machines of one kind have done together.

    Attributes:
        machine: CPU and GPU in a few words.
        as_written: The program's own config; empty before the first round.
        rounds: Rounds of their races, of all members.
        tried: Configs that were tried in fresh processes.
        announced: What they are to claim; None if nothing is in force.
        announced_by: The host that announced it; empty if nothing is in force.
        claims: Processes of the claim in force, by host.
        refusals: Configs that were announced before, and why they are no longer claimed.
    """

    group: str
    machine: str
    hosts: tuple[str, ...]
    as_written: Config
    rounds: int
    tried: int
    hand_outs: tuple[HandOut, ...]
    announced: Config | None
    announced_by: str
    claims: Mapping[str, int]
    refusals: tuple[Refusal, ...]
    answer: GroupAnswer | None


@dataclass(frozen=True)
class Standing:
    """What a shared study stands at.

    Attributes:
        program: The line that is searched.
    """

    program: str
    members: tuple[MemberStanding, ...]
    groups: tuple[GroupStanding, ...]

    @property
    def here(self) -> list[str]:
        """The hosts of the members that have neither left nor gone."""
        return [one.host for one in self.members if not one.has_ended]

    @property
    def is_over(self) -> bool:
        """Whether there were members, and none is left."""
        return bool(self.members) and not self.here


class Observer:
    """Looks at a shared study from outside, and remembers who was seen to beat."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._beats: dict[str, int] = {}
        self._beating = set[str]()

    def look(self) -> Standing:
        """Return what the study stands at now.

        Raises:
            OutOfReachError: The storage cannot be reached now.
            SharedStudyError: It refuses, or there is no such study.
        """
        found = self._board.look()
        for one in found.members.values():
            if self._beats.setdefault(one.id, one.beat) != one.beat:
                self._beating.add(one.id)
            self._beats[one.id] = one.beat
        return standing(found, self._beating)


def standing(found: Snapshot, beating: Collection[str]) -> Standing:
    """Return what one look shows.

    Args:
        beating: Ids of the members that this observer has seen beat.
    """
    members = sorted(found.members.values(), key=lambda one: (one.host, one.id))
    groups = dict.fromkeys(one.group for one in members if one.group)
    return Standing(
        "" if found.agreement is None else found.agreement.line,
        tuple(
            MemberStanding(
                one.id, one.host, _life(found, one, beating), one.phase, one.machine, one.group
            )
            for one in members
        ),
        tuple(_group(found, name) for name in groups),
    )


def _life(found: Snapshot, member: Member, beating: Collection[str]) -> Life:
    if member.left:
        return Life.LEFT
    if member.id in found.dead:
        return Life.GONE
    return Life.LIVING if member.id in beating else Life.QUIET


def _group(found: Snapshot, name: str) -> GroupStanding:
    members = [one for one in found.members.values() if one.group == name]
    announced = found.announcement(name)
    in_force = "" if announced is None else announced.name
    claims = (one.host for one, entry in found.of(Claimed, name) if entry.announcement == in_force)
    return GroupStanding(
        group=name,
        machine=members[0].machine,
        hosts=tuple(sorted({one.host for one in members})),
        as_written=found.as_written(name),
        rounds=sum(len(entry.played.rounds) for _, entry in found.of(Rounds, name)),
        tried=len([*found.of(Tried, name)]),
        hand_outs=tuple(_hand_outs(found, name)),
        announced=None if announced is None else announced.config,
        announced_by="" if announced is None else _host(found, announced.member),
        claims=dict(Counter(claims)),
        refusals=tuple(found.refusals(name)),
        answer=found.answer(name),
    )


def _host(found: Snapshot, member: str) -> str:
    return found.members[member].host if member in found.members else "a member unknown here"


def _hand_outs(found: Snapshot, group: str) -> Iterator[HandOut]:
    for one in found.requests:
        is_void = one.state is RequestState.VOID or found.holders.get(one.name) != one
        if one.right is Right.TRY and one.group == group and not is_void:
            yield HandOut(one.config, _host(found, one.member), str(one.state))
