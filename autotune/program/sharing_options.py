"""SharingOptions: which study of several machines a search is a member of."""

from __future__ import annotations

from dataclasses import dataclass

VARIABLE = "AUTOTUNE_STORAGE"  # of the environment: the storage's URL, a password included


@dataclass(frozen=True)
class SharingOptions:
    """The shared study that a search is a member of, as its record keeps it.

    The record, best.yaml and every printed line hold the address as it is shown, which has no
    password: a member that goes on takes that from its environment again.

    Attributes:
        storage: URL of the study's storage without a password: ``postgresql://user@host/database``
            or ``grpc://host:port``.
        name: Name of the study in that storage.
        serves: Whether this member serves the study to the others, from a file in its folder.
    """

    storage: str
    name: str
    serves: bool = False
