"""Snapshot: what one look at a shared study shows, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.tuning.sharing.entries import Agreement, Member, Published


@dataclass(frozen=True)
class Snapshot:
    """What one look at a shared study shows.

    Attributes:
        members: By their ids.
        dead: Ids of those that this observer has not seen beat for long.
        published: All results that could be read, by member and number.
        dropped: How many entries could not be read.
    """

    agreement: Agreement | None
    members: Mapping[str, Member]
    dead: frozenset[str]
    published: tuple[Published, ...]
    dropped: int = 0
