"""Shared answers: what several machines that searched one study say together, and what others say.

Machines of one CPU, GPU, driver and torch form a group and share one answer. ``MachineClaim`` is
one machine's part of that answer; ``GroupAnswer`` is the whole answer of another group.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.measurement.interval import Interval
from autotune.program.config import Config
from autotune.results.finding import Finding
from autotune.results.searched_program import DIGITS

UNCHANGED = Config({})


@dataclass(frozen=True)
class MachineClaim:
    """What the processes of one machine say of the candidate.

    Attributes:
        host: The machine's name.
        processes: Those of this machine that the claim rests on; pairs of them count once.
        speedup: Over the program as written, by this machine's processes alone.
        turns: Speedups in single rounds of these processes.
        is_here: Whether it is the machine whose result this is.
        differs: Whether machines surely differ, so that the claim of this result does not rest on
            it.
    """

    host: str
    processes: int
    speedup: Interval
    turns: tuple[float, ...] = ()
    is_here: bool = False
    differs: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", _plain(self.host))

    @property
    def counted(self) -> str:
        """How many processes it has, in words."""
        return f"{self.processes} process{'es' * (self.processes != 1)}"


@dataclass(frozen=True)
class GroupAnswer:
    """What machines of another kind found in the same study.

    Attributes:
        group: Fingerprint of such machines, as ``Hardware.fingerprint``: digits and letters.
        machine: CPU and GPU in a few words.
        config: What it changes of the program as it is written there; empty if nothing is
            recommended.
        speedup: Of ``config``; None if nothing is recommended.
        machines: Hosts whose processes the answer rests on, sorted.
    """

    group: str
    machine: str
    finding: Finding
    config: Config = UNCHANGED
    speedup: Interval | None = None
    machines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # It is a key of best.yaml; what another machine says must not make that unreadable
        group = "".join(one for one in self.group if one.isascii() and one.isalnum())
        object.__setattr__(self, "group", group[:DIGITS])
        object.__setattr__(self, "machine", _plain(self.machine))
        object.__setattr__(self, "machines", tuple(map(_plain, self.machines)))


@dataclass(frozen=True)
class Refusal:
    """A config that machines of this kind were to claim together, and that one of them refused.

    Attributes:
        config: All of its settings.
        announced_by: Host whose search found it.
        host: The machine that refused it.
        why: A clause.
    """

    config: Config
    announced_by: str
    host: str
    why: str

    def __post_init__(self) -> None:
        for name in ("announced_by", "host", "why"):
            object.__setattr__(self, name, _plain(getattr(self, name)))


@dataclass(frozen=True)
class SharedAnswer:
    """What a search has from the others of its study; nothing in a search of one machine.

    Attributes:
        machines: Those whose processes the speedup of the candidate rests on; this one alone may
            stand here.
        refusals: What machines of this kind refused to claim.
        groups: Answers of machines of other kinds.
    """

    machines: tuple[MachineClaim, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    groups: tuple[GroupAnswer, ...] = ()

    @property
    def pooled(self) -> list[MachineClaim]:
        """The machines that a claim rests on, without those that differ."""
        return [one for one in self.machines if not one.differs]


NOTHING_SHARED = SharedAnswer()


def _plain(text: str) -> str:
    """Return what another machine says, without what could change what a terminal shows."""
    return "".join(one if one.isprintable() else "?" for one in text)
