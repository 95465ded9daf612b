"""Courier: one helper thread that owns the connection to a shared study.

With each beat it delivers what lies in the spool, says that the member lives, and looks at all that
others have written. The engine never waits for it, except for a right that it asks for and when it
leaves, both for seconds at most. A fault of the study is no error: what could not be written stays
in the spool, and the next beat tries again.

In virtual time there is no thread: the same steps are taken when the engine calls.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Condition, Thread
from time import monotonic

from autotune.errors import OutOfReachError, SharedStudyError
from autotune.sharing.board import Board
from autotune.sharing.entries import (
    Agreement,
    Entry,
    Member,
    Published,
    Request,
    RequestState,
    Rounds,
)
from autotune.sharing.liveness import BEAT_S, QUIET_BEATS
from autotune.sharing.snapshot import NOTHING
from autotune.sharing.spool import Spool

logger = logging.getLogger("autotune")
# A look at a study with many results takes processor time, which the measured program may need
LOOKS_SHARE = 0.1


@dataclass(frozen=True)
class Pace:
    """When a member exchanges with its study.

    Attributes:
        wait_s: For so long the engine waits for an answer at most; a transaction takes some ms.
        leave_s: For so long it waits for the last delivery.
        is_inline: Whether the exchange is made when the engine calls, in virtual time.
    """

    clock: Callable[[], float] = monotonic
    beat_s: float = BEAT_S
    wait_s: float = 5.0
    leave_s: float = 5.0
    is_inline: bool = False


class Courier:
    """The exchange of one member with its study.

    Attributes:
        member: What it says of itself besides its beats; the engine replaces it.
        process: Tells this process from others of the same member, which may be killed and resumed.
        snapshot: What the last look showed.
        spool: What is not delivered yet.
        over: Why there is no exchange any more; empty if there is.
    """

    def __init__(self, board: Board, agreement: Agreement, spool: Spool, pace: Pace) -> None:
        here = board.liveness.here
        self.member = Member(
            spool.member, here.host, here.boot, here.container, here.pid, here.started_ticks
        )
        self.process, self.over = secrets.token_hex(8), ""
        self.snapshot = NOTHING
        self.spool, self.pace = spool, pace
        self._board, self._agreement = board, agreement
        self._rights = _Rights()
        self._contact = _Contact(pace)
        self._thread: Thread | None = None
        self._beats = 0

    def start(self) -> None:
        """Begin the exchange."""
        if self.pace.is_inline:
            self.drive()
        else:
            self._thread = Thread(target=self._run, name="autotune-courier", daemon=True)
            self._thread.start()

    @property
    def is_lone(self) -> bool:
        """Whether others take this member for dead, or there is no exchange any more."""
        return bool(self.over) or self._contact.is_long_lost

    def describe(self, **changes: str) -> None:
        """Change what the member says of itself, and have it said at once."""
        self.member = replace(self.member, **changes)  # type: ignore[arg-type]
        self._contact.beat_now()
        self.hurry()

    def put(self, entry: Entry) -> None:
        """Keep an entry, and have it delivered: rounds with the next beat, all others at once."""
        one = self.member
        self.spool.add(Published(one.id, 0, one.host, one.group, entry))
        if not isinstance(entry, Rounds):
            self.hurry()

    def hurry(self) -> None:
        """Exchange now and not with the next beat."""
        with self._rights.changed:
            self._contact.is_urgent = not self._contact.faults
            self._rights.changed.notify_all()
        self.drive()

    def look_early(self) -> None:
        """Look before the next beat: the engine waits for what others do."""
        if self._contact.looks_early():
            self.hurry()

    def ask(self, request: Request) -> bool:
        """Ask for a right, and return whether this process has it.

        False also if that cannot be known within seconds: then it is given back.
        """
        rights = self._rights
        with rights.changed:
            if self.over or self._contact.faults or self._contact.is_leaving:
                return False
            rights.asked[request.name] = request
            self._contact.is_urgent = True
            rights.changed.notify_all()
        self.drive()
        with rights.changed:
            rights.changed.wait_for(
                lambda: request.name not in rights.asked,
                0.0 if self.pace.is_inline else self.pace.wait_s,
            )
            rights.asked.pop(request.name, None)
            return request.name in rights.held

    def drive(self) -> None:
        """Take the steps that are due; where a thread takes them, nothing is done."""
        is_over = bool(self.over) or self._contact.has_left
        while self.pace.is_inline and not is_over and self._contact.is_due:
            self._step()
            is_over = bool(self.over)

    def end(self) -> None:
        """Deliver what there is, say goodbye, and end the exchange, within seconds."""
        with self._rights.changed:
            self._rights.held.clear()
            self._contact.begin_to_leave()
            self._rights.changed.notify_all()
        if self._thread is not None:
            self._thread.join(self.pace.leave_s)
        elif not self.over:
            self._step()

    def notes(self) -> list[str]:
        """Return what the user may want to know, each of it once."""
        notes = self._contact.notes
        return [notes.pop(0) for _ in range(len(notes))]  # another thread may add to it

    def _run(self) -> None:
        contact = self._contact
        ends_s: float | None = None
        while not self.over and not contact.has_left:
            self._step()
            with self._rights.changed:
                if contact.is_leaving and ends_s is None:
                    ends_s = self.pace.clock() + self.pace.leave_s
                if ends_s is not None and self.pace.clock() > ends_s:
                    break
                self._rights.changed.wait_for(
                    lambda: contact.is_due or (contact.is_leaving and not contact.faults),
                    contact.wait_s,
                )
        self._board.hang_up()

    def _step(self) -> None:
        asked = {**self._rights.asked}
        try:
            self._exchange(asked)
        except OutOfReachError as fault:
            self._contact.lost(fault)
        except SharedStudyError as error:
            self._stop(str(error))
        except Exception as error:  # a defect, which must not end the search
            logger.exception("The exchange with the shared study failed")
            self._stop(f"The exchange with the shared study failed: {type(error).__name__}.")
        else:
            self._contact.reached()
        with self._rights.changed:
            for name, request in asked.items():
                if self._rights.asked.get(name) is request:
                    del self._rights.asked[name]
            self._rights.changed.notify_all()

    def _stop(self, why: str) -> None:
        self.over = why
        self._contact.notes.append(f"{why} This search goes on alone.")

    def _exchange(self, asked: dict[str, Request]) -> None:
        contact, is_leaving = self._contact, self._contact.is_leaving
        contact.is_urgent = False
        if not self._board.is_open:
            self._board.open(self._agreement)
        self._beat()
        self._deliver()
        if contact.is_look_due or is_leaving:
            began_s = self.pace.clock()
            self.snapshot = seen = self._board.look()
            contact.looked(self.pace.clock() - began_s)
            mine = (one.number for one in seen.published if one.member == self.member.id)
            self.spool.use_from(max(mine, default=0))
            self._tidy(asked)
        if asked:
            self._request(asked)
        if is_leaving:
            self._say_that_it_lives(left=True)
            contact.has_left = True

    def _beat(self) -> None:
        if self._contact.is_beat_due:
            self._say_that_it_lives()
            self._contact.beaten()

    def _say_that_it_lives(self, *, left: bool = False) -> None:
        self._beats += 1
        self._board.beat(replace(self.member, beat=self._beats, left=left))

    def _deliver(self) -> None:
        for one in self.spool.waiting:  # in order; of many, beats go on between them
            self._board.put(one)
            self.spool.delivered(one)
            self._beat()

    def _request(self, asked: dict[str, Request]) -> None:
        self._see_requests()
        missing = [one for name, one in asked.items() if name not in self.snapshot.holders]
        for one in missing:
            self._board.request(one)
        if missing:
            self._see_requests()
        rights = self._rights
        with rights.changed:
            for name in asked.keys() & rights.asked.keys():  # else the engine waits no longer
                holder = self.snapshot.holders.get(name)
                is_held = holder is not None and holder.state is RequestState.HELD
                if holder is not None and is_held and holder.process == self.process:
                    rights.held.add(name)
        self._tidy(asked)

    def _see_requests(self) -> None:
        self.snapshot = replace(self.snapshot, requests=self._board.requests())

    def _tidy(self, asked: dict[str, Request]) -> None:
        """Close what this member has to close: its own requests, and those of members that died.

        So that no trial is left running, and others may try what a dead one has not finished.
        """
        rights = self._rights
        with rights.changed:
            wanted = {*rights.held, *(asked.keys() & rights.asked.keys())}
        seen, me = self.snapshot, self.member.id
        if self._contact.is_leaving:
            seen = seen.seen_by_the_last(me)
        closing = seen.to_close(me, self.process, wanted)
        for request, state in closing:
            self._board.close(request, state)
            if (
                request.process == self.process
                and self.snapshot.holders.get(request.name) == request
            ):
                with rights.changed:
                    rights.held.discard(request.name)
        if closing:
            self._see_requests()


class _Rights:
    """The rights that the engine waits for and has; *changed* guards them."""

    def __init__(self) -> None:
        self.changed = Condition()
        self.asked: dict[str, Request] = {}
        self.held: set[str] = set()


class _Contact:
    """When the study was reached and is to be reached next.

    Attributes:
        faults: How often it was not reached since it was last.
        notes: Sentences for the user.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.is_urgent = self.is_leaving = self.has_left = False
        self.faults = 0
        self.notes: list[str] = []
        self._beat_s = self._look_s = self._next_s = self._reached_s = pace.clock()
        self._since = self._cut = ""

    @property
    def is_beat_due(self) -> bool:
        return self._pace.clock() >= self._beat_s

    @property
    def is_look_due(self) -> bool:
        return self._pace.clock() >= self._look_s

    @property
    def is_due(self) -> bool:
        is_urgent = self.is_urgent and not self.faults
        return is_urgent or self._pace.clock() >= self._next_s

    @property
    def wait_s(self) -> float:
        return max(0.0, self._next_s - self._pace.clock())

    @property
    def is_long_lost(self) -> bool:
        lost_s = self._pace.clock() - self._reached_s
        return self.faults > 0 and lost_s > QUIET_BEATS * self._pace.beat_s

    def begin_to_leave(self) -> None:
        self.is_leaving, self._next_s = True, self._pace.clock()  # also when it was out of reach

    def beat_now(self) -> None:
        self._beat_s = self._pace.clock()

    def looks_early(self) -> bool:
        """Have the next look now if half a beat has passed since the last; return whether."""
        if is_early := self._pace.clock() >= self._look_s - self._pace.beat_s / 2:
            self._look_s = self._pace.clock()
        return is_early

    def beaten(self) -> None:
        self._beat_s = self._next_s = self._pace.clock() + self._pace.beat_s

    def looked(self, took_s: float) -> None:
        # A little less than a beat, so that each beat has its look
        pause_s = max(0.9 * self._pace.beat_s, took_s / LOOKS_SHARE)
        self._look_s = self._pace.clock() + pause_s

    def lost(self, fault: OutOfReachError) -> None:
        """Note once that the study is out of reach; a single fault is nobody's business."""
        self.faults += 1
        pause_s = self._pace.leave_s / 5 if self.is_leaving else self._pace.beat_s
        self._next_s = self._pace.clock() + pause_s
        if self.faults == 1:
            self._since = f"{datetime.now():%H:%M}"  # noqa: DTZ005 - for people, on their clock
        elif self.faults == 2:
            self._cut = f"Cut off from the shared study since {self._since}; measuring on. {fault}"
            self.notes.append(self._cut)

    def reached(self) -> None:
        if self.faults > 1:
            since = ""
            with suppress(ValueError):  # the engine has not read it, and it is true no more
                self.notes.remove(self._cut)
                since = f", out of reach since {self._since},"
            self.notes.append(f"The shared study{since} is reached again.")
        self.faults, self._reached_s = 0, self._pace.clock()
