"""Liveness: which members an observer takes for dead, by its own clock alone.

A member writes a counter with each beat. Clocks of machines may differ by hours, so nobody compares
times of two: an observer notes when it saw a counter change last. One late beat says nothing; an
observer that was stopped itself has to look several times before it judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from autotune.tuning.sharing.entries import Member
from autotune.tuning.storage.lease import Lease, started_ticks

BEAT_S = 10.0  # two small writes and two reads of each member in this time
QUIET_BEATS = 6  # a beat that was repeated, and one more that failed, do not make a member dead
LEAST_LOOKS = 3


@dataclass(frozen=True)
class _Seen:
    member: Member
    changed_s: float  # by the observer's clock
    looks: int  # since then


class Liveness:
    """What one observer has seen of members.

    Attributes:
        here: The observer's own process, which tells what it can see of others.
    """

    def __init__(self, clock: Callable[[], float], beat_s: float = BEAT_S) -> None:
        self.here = Lease.of_this_process()
        self._clock, self._quiet_s = clock, QUIET_BEATS * beat_s
        self._seen: dict[str, _Seen] = {}

    def look(self, members: Iterable[Member]) -> frozenset[str]:
        """Return the ids of those that are dead, as far as this and earlier looks tell.

        Those that have said goodbye are not among them.
        """
        now_s = self._clock()
        for member in members:
            before = self._seen.get(member.id)
            is_same = before is not None and before.member == member
            self._seen[member.id] = (
                _Seen(member, before.changed_s, before.looks + 1)
                if before is not None and is_same
                else _Seen(member, now_s, 0)
            )
        return frozenset(id_ for id_, seen in self._seen.items() if self._is_dead(seen, now_s))

    def _is_dead(self, seen: _Seen, now_s: float) -> bool:
        is_quiet = now_s - seen.changed_s >= self._quiet_s and seen.looks >= LEAST_LOOKS
        return not seen.member.left and (is_quiet or self._is_gone(seen.member))

    def _is_gone(self, member: Member) -> bool:
        # Only the same kernel and the same process ids tell of a process; of others its beat does
        is_seen = (member.boot, member.container) == (self.here.boot, self.here.container)
        is_known = bool(member.container and member.started_ticks)
        return is_seen and is_known and started_ticks(member.pid) != member.started_ticks
