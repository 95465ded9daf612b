"""Entries: what the members of a shared study write into it.

A member is one search that has joined a study. Each entry has one writer and one name in the study,
so writing it again after a lost answer changes nothing. All of them are data: from a study a member
takes no program, line, path or variable.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from autotune.measurement.interval import Interval
from autotune.program.config import Config
from autotune.results.finding import Finding
from autotune.results.record import ClaimProcess, PlayedRounds, TrialRecord


@dataclass(frozen=True)
class Agreement:
    """What all members of a study have in common; who creates the study writes it.

    Attributes:
        version: Of autotune.
        fingerprint: SHA-256 of the program's source.
        line: The program and its arguments, as they are typed.
        space: What is searched, as text that is equal for equal spaces.
        may_change: What the recommended config may change of the training.
        goal: What is compared, and within which limits, as text.
    """

    version: str
    fingerprint: str
    line: str
    space: str
    may_change: str
    goal: str

    def differences(self, other: Agreement) -> list[str]:
        """Return the names of the fields that differ in another agreement."""
        names = (one.name for one in fields(self))
        return [name for name in names if getattr(self, name) != getattr(other, name)]


@dataclass(frozen=True)
class Member:
    """A member as it describes itself with each beat.

    Attributes:
        id: Stays the same when the run is resumed.
        host: Name of its machine. Two machines of one name count as one.
        boot: The kernel's name for the time since it started.
        container: The kernel's name for the processes that can be seen from it.
        started_ticks: When its process began, in clock ticks since the kernel started.
        group: Fingerprint of its machine; empty until it has measured the program as written.
        machine: Its CPU and GPU in a few words.
        phase: What it does, as users read it.
        beat: A counter; whoever sees it change knows that the member lives.
        left: Whether it has said goodbye.
    """

    id: str
    host: str
    boot: str
    container: str
    pid: int
    started_ticks: int
    group: str = ""
    machine: str = ""
    phase: str = ""
    beat: int = 0
    left: bool = False


@dataclass(frozen=True)
class Rounds:
    """Rounds of a member's race: each of *played* is what one answer of a rig gave, as one."""

    played: PlayedRounds


@dataclass(frozen=True)
class Tried:
    """A config that was tried in a fresh process, or failed there."""

    record: TrialRecord


@dataclass(frozen=True)
class Claimed:
    """A process of the claim that began after its member had read the announcement."""

    announcement: str
    process: ClaimProcess


@dataclass(frozen=True)
class Refused:
    """An announced config that a member found guilty; a new one may be announced then."""

    announcement: str
    why: str


@dataclass(frozen=True)
class Answer:
    """What a member's search ended with.

    Attributes:
        announcement: The name of that in force; empty if none was.
        config: The recommended one; None if none is.
        speedup: Of ``config``.
        machines: Hosts whose processes it rests on.
    """

    announcement: str
    config: Config | None
    speedup: Interval | None
    finding: Finding
    machines: tuple[str, ...] = ()


Entry = Rounds | Tried | Claimed | Refused | Answer
KINDS: dict[str, type[Any]] = {one.__name__.lower(): one for one in (Rounds, Tried, Claimed)}
KINDS |= {one.__name__.lower(): one for one in (Refused, Answer)}


@dataclass(frozen=True)
class Published:
    """An entry as it stands in the study.

    Attributes:
        number: Of the member's entries; with its id it is the entry's name in the study.
        group: That of the member when it wrote the entry.
    """

    member: str
    number: int
    host: str
    group: str
    entry: Entry


@dataclass(frozen=True)
class Announcement:
    """A config that a group claims together.

    Attributes:
        name: ``winner:<group>:<generation>``.
        generation: From 1; the next one follows when this one is refused.
        member: Who announced it.
    """

    name: str
    group: str
    generation: int
    config: Config
    member: str
