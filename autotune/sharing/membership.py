"""Membership: the engine's one door to a study that several machines share.

``ALONE`` answers for a search of one machine, so that the engine has no branches. Being cut off
from the study is never an error: a member goes on with what it has read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import sleep

from autotune.knobs.space.space import ResolvedSpace
from autotune.program.config import Config
from autotune.results.record import ClaimProcess, PlayedRounds, TrialRecord
from autotune.results.result import SearchResult
from autotune.results.shared_answer import GroupAnswer, Refusal
from autotune.sharing.entries import Request

WAITS = "wait for the others"  # what a member does that has found nothing to announce


class Membership:
    """What a search of one machine shares: nothing.

    Attributes:
        is_alone: Whether there are no other members.
        number: Differs from member to member, so that they draw other configs; 0 without others.
        host: Name of this machine; empty without others.
        say: Takes sentences for the user, on the thread of the engine; set when a session begins.
    """

    is_alone = True
    number: int = 0
    host: str = ""
    say: Callable[[str], None] = staticmethod(lambda _text: None)

    def join(self, group: str, machine: str, space: ResolvedSpace) -> None:
        """Begin to share, once the program as written is measured.

        Args:
            group: Fingerprint of this machine; only machines of one group share measurements.
            machine: CPU and GPU in a few words.
            space: What may be taken from others: only configs whose knobs and values are in it.
        """

    def begin(self, phase: str) -> None:
        """Tell the others what this member does now, in a word or two."""

    def played(self, rounds: PlayedRounds) -> None:
        """Share rounds of the race."""

    def tried(self, record: TrialRecord, asked: Config | None = None) -> None:
        """Share a trial for which ``may_try`` has given the right.

        Args:
            asked: What the right was asked for, if that is not the record's config: what the trial
                has in common with those of other machines.
        """

    def claimed(self, process: ClaimProcess) -> None:
        """Share a process of the claim.

        It belongs to the announcement that it names, and must have begun after this member has
        read that. One that names none is not shared.
        """

    def others(self) -> Mapping[str, Sequence[PlayedRounds]]:
        """Return the rounds that other members of this group have played, by machine.

        Each holds one round: what one answer of a rig gave, by cost and work alone. The numbers of
        processes are distinct within a machine, and not those of this member. It is the same object
        until there is more to read.
        """
        return {}

    def tried_elsewhere(self) -> Sequence[TrialRecord]:
        """Return what other members of this group have tried in fresh processes."""
        return ()

    def claims_elsewhere(self) -> Mapping[str, Sequence[ClaimProcess]]:
        """Return the processes of others for the announcement in force, by machine."""
        return {}

    def preferred(self, configs: Sequence[Config]) -> list[Config]:
        """Return configs that need a fresh process, in the order in which this member asks."""
        return [*configs]

    def may_try(self, config: Config) -> bool:  # noqa: ARG002 - alone, everything is this member's
        """Return whether this member may try a config in a fresh process now.

        It asks for the right, which takes milliseconds, and seconds at most. False if another
        member holds it, has done it, or two have been lost with it; ask again later.
        """
        return True

    def announced(self) -> Request | None:
        """Return what is to be claimed by this group, as far as this member has read."""
        return None

    def announce(self, config: Config) -> Request | None:
        """Announce a config to be claimed, if none is, and return what is in force then.

        None if the study cannot be reached within seconds: then the member claims for itself.
        """

    def refuse(self, why: str) -> None:
        """Say that the announced config fails here, or trains something else."""

    def refusals(self) -> Sequence[Refusal]:
        """Return what was announced and is refused by members of this group."""
        return ()

    def awaits_claims(self) -> bool:
        """Return whether living members of the group still owe processes of the announcement."""
        return False

    def awaits_announcement(self) -> bool:
        """Return whether nothing is announced, and living members of the group may do so yet.

        Those that ``begin`` to wait for that themselves do not.
        """
        return False

    def pause(self, seconds: float) -> None:
        """Let others measure for so long."""
        sleep(seconds)

    def groups(self) -> Sequence[GroupAnswer]:
        """Return what machines of other kinds have found, one answer for each group."""
        return ()

    def answered(self, result: SearchResult) -> None:
        """Share what this search ended with."""

    def leave(self) -> None:
        """Say goodbye, within seconds; what could not be delivered is kept for ``resume``."""


ALONE = Membership()
