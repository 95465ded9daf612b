"""RankSync: the ranks of a rig do the same thing before the same step.

All ranks count the borders between their steps. At a border on which they agreed before, each tells
the first what it did, and the first, which alone talks to the parent, tells all what comes next and
when they meet again. In between nobody waits for anybody but in the program's own communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from pydantic import TypeAdapter

from autotune.inside.ranks.group import Group
from autotune.program.applied_config import AppliedConfig


@dataclass(frozen=True)
class Report:
    """What one rank did since the last meeting.

    Attributes:
        samples: It trained on.
        steps: It made.
        seconds: It took for them, without the waiting at meetings.
        wait_s: It waited for its batches in that time.
        communication_s: Of a step in which collectives were under way; None if not recorded.
        pids: Of it and its workers.
    """

    samples: int
    steps: int
    seconds: float
    wait_s: float
    communication_s: float | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class RankCommand:
    """What all ranks do next.

    Attributes:
        steps: Until they meet again.
        setting: To switch to, None to leave things as they are.
        records: Communication is recorded until then.
        ends: The program ends here.
    """

    steps: int = 1
    setting: AppliedConfig | None = None
    records: bool = False
    ends: bool = False


@cache
def _orders() -> TypeAdapter[RankCommand]:
    return TypeAdapter(RankCommand)


@cache
def _reports() -> TypeAdapter[Report]:
    return TypeAdapter(Report)


class RankSync:
    """One rank's side of the meetings of its group; a process alone meets nobody."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._number = 0

    def gather(self, own: Report) -> list[Report]:
        """Return the reports of all ranks, as the first of them; waits until all are here."""
        others = range(1, self._group.world_size)
        return [own, *(self._report_of(rank) for rank in others)]

    def announce(self, order: RankCommand) -> None:
        """Tell all ranks what comes next, as the first of them, and end the meeting."""
        if self._group.world_size > 1:
            self._group.store.set(self._key("order"), _orders().dump_json(order).decode())
            self._number += 1

    def attend(self, report: Report) -> RankCommand:
        """Tell the first rank what was done, and return what it says."""
        self._group.store.set(
            self._key("report", self._group.rank), _reports().dump_json(report).decode()
        )
        order = _orders().validate_json(self._group.store.get(self._key("order")))
        self._number += 1
        return order

    def _report_of(self, rank: int) -> Report:
        key = self._key("report", rank)
        report = _reports().validate_json(self._group.store.get(key))
        self._group.store.delete_key(key)
        return report

    def _key(self, kind: str, rank: int = 0) -> str:
        return f"meeting/{self._number}/{kind}/{rank}"
