"""Entries: what the members of a shared study write into it.

A member is one search that has joined a study. Each entry has one writer and one name in the study,
so writing it again after a lost answer changes nothing. All of them are data: from a study a member
takes no program, line, path or variable.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache, cached_property
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from autotune.measurement.interval import MOST_LOG, Interval
from autotune.measurement.turn import Played
from autotune.program.config import Config, KnobValue
from autotune.program.printed import CONTROL
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
    """Rounds of a member's race: each of *played* is what one answer of a rig gave, as one.

    These are what a study has most of, so it holds what speeds are made of alone: the configs by
    what they change, and cost and work of each turn, as a millionth is far below all noise.
    """

    played: PlayedRounds

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON holds it; its configs have the same knobs."""
        first, *others = self.played.configs
        return {
            "process": self.played.process,
            "configs": [dict(first), *(config.changes_from(first) for config in others)],
            "turns": [
                [[float(f"{x:.6g}") for x in (one.cost, one.work)] for one in turns]
                for turns in self.played.rounds
            ],
        }

    @classmethod
    def read(cls, raw: Any) -> Rounds:
        """Return what ``as_json`` has made.

        Raises:
            ValueError: It is something else.
        """
        packed: _PackedRounds = read(_PackedRounds, raw)
        first = packed.configs[0] if packed.configs else {}
        configs = tuple(Config({**first, **changes}) for changes in packed.configs)
        rounds = tuple(tuple(Played(*turn) for turn in turns) for turns in packed.turns)
        return cls(PlayedRounds(packed.process, configs, rounds))


WIDEST_BITS = 64
Size = Annotated[float, Field(gt=1e-30, lt=1e30)]  # sums and ratios of these are numbers, too


@dataclass(frozen=True)
class _PackedRounds:
    process: int
    configs: tuple[dict[str, KnobValue], ...]
    turns: tuple[tuple[tuple[Size, Size], ...], ...]


@dataclass(frozen=True)
class Tried:
    """A config that was tried in a fresh process, or failed there.

    Attributes:
        asked: What the right to try it was asked for; None for the record's own config.
    """

    record: TrialRecord
    asked: Config | None = None


@dataclass(frozen=True)
class Claimed:
    """A process of the claim that began after its member had read the announcement."""

    announcement: str
    process: ClaimProcess

    def __post_init__(self) -> None:
        ratio = self.process.ratio
        if ratio.error <= 0 or abs(ratio.value) > MOST_LOG:
            raise ValueError("a measured ratio has an error, and limits")


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
KINDS: dict[str, type[Any]] = {
    "rounds": Rounds,
    "tried": Tried,
    "claimed": Claimed,
    "refused": Refused,
    "answer": Answer,
}


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

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        kind = next(name for name, its in KINDS.items() if isinstance(self.entry, its))
        return {
            "kind": kind,
            "member": self.member,
            "number": self.number,
            "host": self.host,
            "group": self.group,
            "entry": (
                self.entry.as_json() if isinstance(self.entry, Rounds) else as_json(self.entry)
            ),
        }

    @classmethod
    def read(cls, raw: Any) -> Published:
        """Return what ``as_json`` has made.

        Raises:
            ValueError: It is something else.
        """
        match raw:
            case {"kind": str(kind), "entry": entry, **rest} if kind in KINDS:
                its: _Label = read(_Label, rest)
                found = Rounds.read(entry) if kind == "rounds" else read(KINDS[kind], entry)
                return cls(its.member, its.number, its.host, its.group, found)
        raise ValueError("it is no entry of a shared study")


@dataclass(frozen=True)
class _Label:
    member: str
    number: int
    host: str
    group: str


class Right(StrEnum):
    """What a request asks for."""

    TRY = "try"
    """To try a config in a fresh process; it is named ``try:<arm>:<attempt>``."""
    ANNOUNCE = "winner"
    """To say what the group claims; it is named ``winner:<group>:<generation>``."""


class RequestState(StrEnum):
    """What became of a request."""

    HELD = "held"
    """Its writer has the right, unless an earlier request has the same name."""
    DONE = "done"
    """What it was asked for is done; announcements are from the beginning."""
    LOST = "lost"
    """Its writer was gone before it was done."""
    VOID = "void"
    """It does not count: another was earlier, or the right was given back."""


@dataclass(frozen=True)
class Request:
    """A request for a right, of which the study gives one of each name to one member.

    Requests are trials of Optuna's, whose numbers are unique and in the order of commits; of those
    with one name the lowest number has the right. So a request that was written twice, or whose
    answer was lost, is harmless.

    Attributes:
        process: Tells the processes of a member apart, which may be killed and resumed.
        turn: From 1: the attempt; or the generation of an announcement, of which the next one
            follows when this one is refused.
        number: Of the trial, and *trial_id* is Optuna's name for it; -1 before it is written.
        is_open: Whether the trial is running yet.
    """

    right: Right
    turn: int
    member: str
    process: str
    group: str
    config: Config
    state: RequestState = RequestState.HELD
    number: int = -1
    trial_id: int = -1
    is_open: bool = False

    @cached_property
    def name(self) -> str:
        """What is asked for: a study gives it to one member."""
        is_try = self.right is Right.TRY
        what = arm_of(self.group, self.config) if is_try else self.group
        return f"{self.right}:{what}:{self.turn}"


def arm_of(group: str, config: Config) -> str:
    """Return a name for a config on machines of a group, the same in all processes."""
    return digest([group, sorted(config.items())])


def place_in_order(member: str, group: str, config: Config) -> str:
    """Return what sorts configs into the order in which a member asks for them.

    Members begin at different ones, so that few ask for the same.
    """
    return digest([member, arm_of(group, config)])


def number_of(member: str) -> int:
    """Return a number that differs from member to member, from 1 to a million."""
    return int(digest(member), 16) % 1_000_000 + 1


def digest(of: object) -> str:
    """Return 16 hex digits that are the same for equal JSON, in all processes."""
    return hashlib.sha256(json.dumps(of).encode()).hexdigest()[:16]


def as_json(value: Any) -> Any:
    """Return an entry, or what else a study holds, as JSON holds it."""
    kind: Any = type(value)
    return _adapter(kind).dump_python(value, mode="json")


def read(kind: Any, raw: Any) -> Any:
    """Return a value of a kind from JSON that somebody else may have written.

    Control characters, with which a text could write over a terminal, are left out, and bytes of a
    name that are no text are question marks.

    Raises:
        ValueError: It is something else, or holds a number that is none or infinite.
    """
    try:  # strict, as 'inf' is a text and no number
        text = json.dumps(_printable(raw), allow_nan=False)
        return _adapter(kind).validate_json(text, strict=True)
    except (TypeError, RecursionError) as error:
        raise ValueError("it is no JSON that a member writes") from error


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _printable(raw: Any) -> Any:
    match raw:
        case str():
            return CONTROL.sub("", raw).encode(errors="replace").decode()
        case int() if raw.bit_length() > WIDEST_BITS:
            raise ValueError("no member writes such a number, which is infinite as a float")
        case dict():
            return {_printable(key): _printable(value) for key, value in raw.items()}
        case list():
            return [_printable(one) for one in raw]
    return raw
