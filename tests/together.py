"""Several scripted searches that share a study, in virtual time.

Each search runs in a thread of its own, on a scripted machine with a clock of its own. A conductor
lets only the one go on whose clock is behind the others', so they take turns at the study as they
would in earnest, and the same seeds give the same searches.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from optuna.storages import InMemoryStorage

from autotune.errors import OutOfReachError
from autotune.knobs.space.space import SearchSpace
from autotune.program.config import KnobValue
from autotune.results.result import SearchResult
from autotune.sharing.board import Board
from autotune.sharing.courier import Pace
from autotune.sharing.entries import Agreement
from autotune.sharing.joined import FOLDER, Joined, member_of
from autotune.sharing.liveness import BEAT_S
from autotune.sharing.snapshot import Snapshot
from autotune.sharing.spool import MEMBER
from autotune.tuning.events import Events
from tests.scripted import Script, Searched, VirtualClock, begin

AHEAD_S = 1.0  # that a search may be ahead of the others, which hear of it later anyway
STUDY = "study"
AGREEMENT = Agreement("1.0", "3f2a", "train.py", "default", "rounding", "throughput")


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
    def now_s(self) -> float:
        """Seconds; to set them waits for the others."""
        return self._shown_s

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self._shown_s = now_s
        self._conductor.wait(self._number, now_s)
        if now_s >= self._dies_s:
            raise Killed


class Link:
    """A member's connection to the study, which may be cut."""

    def __init__(self, storage: Any, is_cut: Callable[[], bool]) -> None:
        self._storage, self._is_cut = storage, is_cut

    def __getattr__(self, name: str) -> Any:
        """Return a method of the storage that fails while the connection is cut."""

        def call(*given: Any, **named: Any) -> Any:
            if self._is_cut():
                raise OutOfReachError("The server is not reached.")
            return getattr(self._storage, name)(*given, **named)

        return call


@dataclass(frozen=True)
class Part:
    """One of the searches.

    Attributes:
        joins_s: When it begins, after the first one.
        dies_s: When its process is killed, by the clock of the first.
        is_cut: Returns whether it is cut off from the study at a second of that clock.
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
        storage: That of the study.
        results: Of each search; None of one that was killed, or that a Ctrl-C ended at once.
        errors: What else ended one.
    """

    searches: list[Searched]
    storage: InMemoryStorage = field(default_factory=InMemoryStorage)
    results: list[SearchResult | None] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def go(self, parts: Sequence[Part]) -> Together:
        """Let all of them search to their end."""
        conductor, threads = Conductor(), list[threading.Thread]()
        self.results = [None] * len(parts)
        for number, (part, search) in enumerate(zip(parts, self.searches, strict=True)):
            machine = search.machine
            machine.clock = ConductedClock(conductor, number, part.joins_s, part.dies_s)
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
            search.machine.sharing = self._joined(number, part, search)
            with suppress(KeyboardInterrupt, Killed):
                self.results[number] = search.go_on(part.budget_s, part.events)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self.errors.append(error)
        finally:
            conductor.leave(number)

    def _joined(self, number: int, part: Part, search: Searched) -> Joined:
        clock = search.machine.clock

        def is_cut() -> bool:
            is_killed = isinstance(sys.exception(), Killed)  # it does not even say goodbye
            return is_killed or part.is_cut(clock() - VirtualClock.now_s)

        board = Board(cast("Any", Link(self.storage, is_cut)), STUDY, clock, BEAT_S)
        host = part.host or f"host-{number}"
        board.liveness.here = replace(board.liveness.here, host=host)
        identity = search.run.path / FOLDER / MEMBER
        identity.parent.mkdir(exist_ok=True)
        identity.write_text(f"{host}-{part.seed}", encoding="utf-8")  # not drawn by chance
        with suppress(OutOfReachError):  # then it is opened when it can be
            board.open(AGREEMENT)
        joined = member_of(board, AGREEMENT, search.run.path, Pace(clock, BEAT_S, is_inline=True))
        setattr(joined, "pause", clock.pass_s)  # noqa: B010 - of a method; no real time goes by
        return joined

    @property
    def found(self) -> list[SearchResult]:
        """The results of those that were not killed."""
        return [one for one in self.results if one is not None]

    def look(self) -> Snapshot:
        """Return what stands in the study."""
        board = Board(cast("Any", self.storage), STUDY)
        board.open(None)
        return board.look()


def search_together(
    folder: Path,
    parts: Sequence[Part],
    knobs: Mapping[str, tuple[KnobValue, ...] | None] | SearchSpace,
    storage: InMemoryStorage | None = None,
    **options: Any,
) -> Together:
    """Search on several machines, in a new study unless there is a *storage* of one.

    The other *options* are those of ``tests.scripted.begin``.
    """
    searches = []
    for number, part in enumerate(parts):
        place = folder / f"member-{number}"
        place.mkdir(parents=True, exist_ok=True)
        search = begin(place, part.script, knobs, part.seed, **options)
        study = search.study
        machine = replace(study.head.hardware, cpu_name=part.cpu_name)
        study.head = replace(study.head, hardware=machine)
        searches.append(search)
    return Together(searches, storage or InMemoryStorage()).go(parts)
