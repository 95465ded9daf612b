"""Joined: a search that is a member of a shared study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.knobs.space.space import ResolvedSpace
from autotune.program.config import Config
from autotune.results.finding import Finding
from autotune.results.record import ClaimProcess, PlayedRounds, TrialRecord
from autotune.results.result import SearchResult
from autotune.results.shared_answer import GroupAnswer, Refusal
from autotune.sharing.board import Board
from autotune.sharing.courier import Courier, Pace
from autotune.sharing.entries import (
    Agreement,
    Answer,
    Claimed,
    Refused,
    Request,
    Right,
    Rounds,
    Tried,
    number_of,
    place_in_order,
)
from autotune.sharing.membership import Membership
from autotune.sharing.snapshot import Snapshot, is_of
from autotune.sharing.spool import Spool

FOLDER = "shared"  # in the run's folder


def member_of(board: Board, agreement: Agreement, run: Path, pace: Pace | None = None) -> Joined:
    """Become a member of a study, and begin to exchange with it.

    Args:
        board: The study. One that is not open yet, because it could not be reached when a run was
            resumed, is opened as soon as it can be; a search that differs goes on alone then.
        run: The folder of the run, whose spool holds what is not delivered yet.
    """
    spool = Spool(run / FOLDER, board.liveness.here.host)
    joined = Joined(Courier(board, agreement, spool, pace or Pace()))
    joined.courier.start()
    return joined


class Joined(Membership):
    """What a member shares with the others of its study.

    Attributes:
        courier: Exchanges with the study.
    """

    is_alone = False

    def __init__(self, courier: Courier) -> None:
        self.courier = courier
        self.host = courier.member.host
        self.number = number_of(self.id)
        self._space: ResolvedSpace | None = None
        self._rounds: tuple[Snapshot, dict[str, list[PlayedRounds]]] | None = None
        self._told: set[str] = set()
        self._refused: set[str] = set()

    @property
    def id(self) -> str:
        """Of this member, also after ``resume``."""
        return self.courier.member.id

    @property
    def _group(self) -> str:
        return self.courier.member.group

    @property
    def _seen(self) -> Snapshot:
        self.drive()
        return self.courier.snapshot

    def drive(self) -> None:
        """Take the steps that are due in virtual time, and tell the user what there is to tell."""
        self.courier.drive()
        for name in self.courier.spool.damaged:
            self._once(f"'{name}' of this run holds no result that can be delivered; left out.")
        if self.courier.spool.fault is not None:
            self._once(f"Results wait in memory alone to be shared: {self.courier.spool.fault}")
        for text in self.courier.notes():
            self.say(text)

    def _once(self, text: str, of: str = "") -> None:
        if (of or text) not in self._told:
            self._told.add(of or text)
            self.say(text)

    def join(self, group: str, machine: str, space: ResolvedSpace) -> None:
        self._space = space
        self.courier.describe(group=group, machine=machine)
        self.drive()

    def begin(self, phase: str) -> None:
        self.courier.describe(phase=phase)
        self.drive()

    def played(self, rounds: PlayedRounds) -> None:
        turns = tuple(rounds.stretch[config] for config in rounds.configs)
        self.courier.put(Rounds(replace(rounds, rounds=(turns,))))
        self.drive()

    def tried(self, record: TrialRecord, asked: Config | None = None) -> None:
        # The program's own traceback stays on this machine
        if record.ending is not None:
            record = replace(record, ending=replace(record.ending, program_traceback=""))
        self.courier.put(Tried(record, asked))
        self.drive()

    def claimed(self, process: ClaimProcess) -> None:
        if process.announcement:
            self.courier.put(Claimed(process.announcement, process))
        self.drive()

    def others(self) -> Mapping[str, Sequence[PlayedRounds]]:
        seen, space = self._seen, self._space
        if space is None:
            return {}
        if self._rounds is None or self._rounds[0].published is not seen.published:
            self._rounds = seen, seen.rounds(self._group, self.id, space)
            if left := seen.dropped + seen.count_foreign(self._group, self.id, space):
                why = "damaged, or of settings that are not here"
                self._once(f"{_results(left)} of others left out: {why}.", of="left out")
        return self._rounds[1]

    def tried_elsewhere(self) -> Sequence[TrialRecord]:
        seen = self._seen
        return () if self._space is None else seen.tried(self._group, self.id, self._space)

    def claims_elsewhere(self) -> Mapping[str, Sequence[ClaimProcess]]:
        seen, announced = self._seen, self._in_force()
        found = {} if announced is None else seen.claims(announced, self.id)
        # An earlier member on this host does not make it another machine
        return {host: its for host, its in found.items() if host != self.host}

    def preferred(self, configs: Sequence[Config]) -> list[Config]:
        return sorted(configs, key=lambda config: place_in_order(self.id, self._group, config))

    def may_try(self, config: Config) -> bool:
        seen = self._seen
        if seen.holds(self._group, config, self.courier.process):
            return True
        attempt = seen.free_attempt(self._group, config)
        # On one that others take for dead, as it was cut off for so long, nobody counts
        if attempt is None or self.courier.is_lone:
            return attempt is not None
        return self._ask(Right.TRY, attempt, config)

    def _ask(self, right: Right, turn: int, config: Config) -> bool:
        process = self.courier.process
        return self.courier.ask(Request(right, turn, self.id, process, self._group, config))

    def announced(self) -> Request | None:
        self.drive()
        return self._in_force()

    def _in_force(self) -> Request | None:
        seen = self.courier.snapshot
        found = seen.announcement(self._group) if self._space is not None else None
        if found is None or found.name in self._refused or self._space is None:
            return None
        if is_of(self._space, found.config):
            return found
        self._refuse(found, "it has settings that this machine's search does not have")
        return None

    def announce(self, config: Config) -> Request | None:
        if (found := self.announced()) is not None:
            return found
        if self._space is None or self.courier.is_lone:
            return None
        seen = self.courier.snapshot
        self._ask(Right.ANNOUNCE, seen.next_generation(self._group), config)
        return self.announced()

    def refuse(self, why: str) -> None:
        if (found := self._in_force()) is not None:
            self._refuse(found, why)
        self.drive()

    def _refuse(self, announced: Request, why: str) -> None:
        self._refused.add(announced.name)
        self.courier.put(Refused(announced.name, why))

    def refusals(self) -> Sequence[Refusal]:
        return self._seen.refusals(self._group)

    def awaits_claims(self) -> bool:
        self.courier.look_early()
        seen, announced = self._seen, self._in_force()
        if announced is None or self.courier.is_lone:
            return False
        return bool(seen.owing(announced, self.id))

    def awaits_announcement(self) -> bool:
        self.courier.look_early()
        seen, is_lone = self._seen, self.courier.is_lone
        is_due = self._space is not None and not is_lone and self._in_force() is None
        return is_due and bool(seen.searching(self._group, self.id))

    def groups(self) -> Sequence[GroupAnswer]:
        seen = self._seen
        return () if self._space is None else seen.answers(self._group, self._space)

    def answered(self, result: SearchResult) -> None:
        announced = self._in_force()
        is_faster = result.finding is Finding.FASTER
        self.courier.put(
            Answer(
                "" if announced is None else announced.name,
                result.best if is_faster else None,
                result.speedup if is_faster else None,
                result.finding,
                tuple(one.host for one in result.shared.pooled),
            )
        )
        self.drive()

    def leave(self) -> None:
        self.courier.end()
        self.drive()
        if waiting := len(self.courier.spool.waiting):
            results = _results(waiting)
            self.say(f"{results} did not reach the shared study; 'autotune resume' delivers them.")


def _results(count: int) -> str:
    return f"{count} result" + "s" * (count != 1)
