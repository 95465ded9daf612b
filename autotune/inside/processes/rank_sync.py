"""RankSync: all ranks of a rig do the same thing before the same step.

All ranks count the ends of their steps. At a step that they agreed on before, each rank reports to
the first, which alone talks to the parent. The first rank then announces what comes next and after
how many steps they synchronize again. In between, ranks wait for each other only in the program's
own communication.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from pydantic import TypeAdapter

from autotune.inside.ranks.group import Group
from autotune.machine.hardware import Gpu
from autotune.measurement.turn import Turn
from autotune.rig.wire import TakeTurns


@dataclass(frozen=True)
class Report:
    """What one rank did since the last synchronization.

    Attributes:
        samples: Samples that it trained on.
        steps: Steps that it made.
        seconds: Time for these steps, without waiting for the synchronization.
        wait_s: Time in which it waited for batches.
        communication_s: Seconds of a step in which a collective ran; None if not recorded.
        pids: Ids of the process and its workers.
        queued_s: Time in which the thread that trains was ready to run and had no core.
        gpus: The GPUs that it sees; said once, when the first steps are made.
        turns: What it took of a schedule.
    """

    samples: int
    steps: int
    seconds: float
    wait_s: float
    communication_s: float | None = None
    pids: tuple[int, ...] = ()
    queued_s: float = 0.0
    gpus: tuple[Gpu, ...] = ()
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True)
class RankCommand:
    """What all ranks do next.

    Attributes:
        steps: After how many steps they synchronize again, if they take no turns.
        turns: The schedule that they carry out until then; None leaves the present config.
        records: Whether to record communication until then.
        ends: Whether to end the process now.
    """

    steps: int = 1
    turns: TakeTurns | None = None
    records: bool = False
    ends: bool = False


@cache
def _json_of(kind: type[Report | RankCommand]) -> TypeAdapter[Report | RankCommand]:
    return TypeAdapter(kind)


class RankSync:
    """One rank's side of the synchronization; in a group of one it does nothing.

    ``Meetings`` calls ``gather`` and then ``announce``, every ``FollowerRank`` calls ``attend``,
    all at the end of the same step on the thread that trains. Each exchange has a number, which all
    ranks count alike and which is part of its names in the store.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._number = 0

    def gather(self, own: Report) -> list[Report]:
        """Wait for the reports of all ranks and return them, by rank; for the first rank."""
        reports = [own]
        for rank in range(1, self._group.world_size):
            key = self._key("report", rank)
            report = _json_of(Report).validate_json(self._group.store.get(key))
            assert isinstance(report, Report)
            reports.append(report)
            self._group.store.delete_key(key)
        return reports

    def announce(self, order: RankCommand) -> None:
        """Tell all ranks what comes next and so end the synchronization; for the first rank."""
        if self._group.world_size > 1:
            text = _json_of(RankCommand).dump_json(order).decode()
            self._group.store.set(self._key("order", 0), text)
            self._number += 1

    def attend(self, report: Report) -> RankCommand:
        """Report to the first rank, wait for its command and return it; for the other ranks."""
        store, text = self._group.store, _json_of(Report).dump_json(report).decode()
        store.set(self._key("report", self._group.rank), text)
        order = _json_of(RankCommand).validate_json(store.get(self._key("order", 0)))
        assert isinstance(order, RankCommand)
        self._number += 1
        return order

    def _key(self, kind: str, rank: int) -> str:
        return f"meeting/{self._number}/{kind}/{rank}"


def gpus_of(reports: Iterable[Report]) -> tuple[Gpu, ...]:
    """Return the GPUs that ranks see, each once; it is in use if one of the ranks uses it.

    Ranks may see one GPU each, or all of them.
    """
    found: dict[str, Gpu] = {}
    for gpu in (gpu for report in reports for gpu in report.gpus):
        is_used = gpu.is_used or (gpu.uuid in found and found[gpu.uuid].is_used)
        found[gpu.uuid] = replace(gpu, is_used=is_used)
    return tuple(found.values())
