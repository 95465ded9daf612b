"""Board: the shared Optuna study, as the members of a search read and write it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from autotune.tuning.sharing.entries import Agreement, Member, Published
from autotune.tuning.sharing.snapshot import Snapshot


class Board:
    """A shared study."""

    def __init__(self, store: Any, study_name: str, clock: Callable[[], float] = monotonic) -> None:
        self._store, self._name, self._clock = store, study_name, clock

    def open(self, agreement: Agreement | None) -> None:
        """Create the study or join it; with None, only an existing one is read.

        Raises:
            OutOfReachError: The storage cannot be reached now.
            SharedStudyError: The study searches something else; the message says what differs.
        """
        raise NotImplementedError

    def put(self, published: Published) -> None:
        """Write an entry, once more if need be."""
        raise NotImplementedError

    def beat(self, member: Member) -> None:
        """Write what a member says of itself."""
        raise NotImplementedError

    def look(self) -> Snapshot:
        """Read everything."""
        raise NotImplementedError
