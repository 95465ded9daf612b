"""Members of one study in a test, over a store that fails as it is told to."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.errors import OutOfReachError
from autotune.measurement.interval import LogRatio
from autotune.measurement.turn import Played
from autotune.program.config import Config
from autotune.results.record import ClaimProcess, PlayedRounds
from autotune.sharing.board import Board
from autotune.sharing.courier import Pace
from autotune.sharing.entries import Agreement, Request
from autotune.sharing.joined import Joined, member_of
from tests.made import make_hardware, make_profile, make_space

SPACE = make_space(["workers", "prefetch_factor", "flush_denormal"]).resolve(
    make_hardware(), make_profile()
)
WRITTEN = SPACE.start
AGREEMENT = Agreement("1.0", "3f2a", "train.py --lr 1", "default", "rounding", "throughput")
BEAT_S = 10.0
Call = Callable[[], Any]


def configs(count: int) -> list[Config]:
    """Return so many configs of the space, none of them the program as written."""
    values = SPACE.domains["workers"].values, SPACE.domains["flush_denormal"].values
    found = [
        WRITTEN.replace(workers=one, flush_denormal=other)
        for one in values[0]
        for other in values[1]
    ]
    return [one for one in found if one != WRITTEN][:count]


def rounds_of(config: Config, process: int = 1, cost: float = 1.0) -> PlayedRounds:
    """Return two rounds of a config and the program as written."""
    turns = (Played(1.0, 64.0), Played(cost, 64.0))
    return PlayedRounds(process, (WRITTEN, config), (turns, turns))


def process_of(announced: Request) -> ClaimProcess:
    """Return a process of the claim of what was announced."""
    ratio = LogRatio(0.1, 0.01)
    return ClaimProcess(
        announced.config,
        starts_as_written=True,
        ratio=ratio,
        baseline=None,
        winner=None,
        rates=(1.0, 1.1),
        rounds=9,
        cost_s=5.0,
        announcement=announced.name,
    )


@dataclass
class Flaky:
    """A storage that fails before or after a call, as a lost connection does.

    Attributes:
        fails: Says of each call whether it fails ``before`` or ``after``; empty if it does not.
        calls: The names of those that were made.
    """

    storage: Any
    fails: Callable[[str], str] = lambda _name: ""
    calls: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            self.calls.append(name)
            how = self.fails(name)
            if how == "before":
                raise OutOfReachError("The server is not reached.")
            answer = getattr(self.storage, name)(*given, **named)
            if how == "after":
                raise OutOfReachError("The answer was lost.")
            return answer

        return call


@dataclass
class Clock:
    """Goes when it is told to."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class World:
    """Some members of one study, in virtual time."""

    storage: Any
    folder: Path
    clock: Clock = field(default_factory=Clock)
    members: list[Joined] = field(default_factory=list)
    said: dict[str, list[str]] = field(default_factory=dict)

    def join(
        self,
        name: str,
        *,
        group: str = "cpu",
        fails: Callable[[str], str] = lambda _name: "",
        clock: Callable[[], float] | None = None,
    ) -> Joined:
        """Return a new member of a machine of this name, or one that is resumed."""
        now = clock or self.clock
        board = Board(Flaky(self.storage, fails), "study", now, BEAT_S)
        board.liveness.here = replace(board.liveness.here, host=name)
        pace = Pace(now, BEAT_S, is_inline=True)
        with suppress(OutOfReachError):
            board.open(AGREEMENT)
        member = member_of(board, AGREEMENT, self.folder / name, pace)
        member.say = self.said.setdefault(name, []).append
        member.join(group, "a CPU", SPACE)
        self.members.append(member)
        return member

    def pass_s(self, seconds: float, *living: Joined) -> None:
        """Let time pass, in which members beat: all, or those that are named."""
        for _ in range(round(seconds / BEAT_S)):
            self.clock.now_s += BEAT_S
            for member in living or self.members:
                member.drive()
