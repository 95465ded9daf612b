"""Spool: what a member has measured and the study does not have yet, as files in its run folder.

An entry is written here before it is sent, so that neither a kill nor a lost connection loses it;
``resume`` delivers what is left. Files are named by the numbers of the entries, which stay those of
the study: what is sent twice is there once. The last number that was sent is remembered by a file,
too, so that a resumed member uses none again.
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock

from autotune.files import access
from autotune.tuning.sharing.entries import Published, Rounds

WAITING, SENT, MEMBER = ".json", ".sent", "member"
MOST_BYTES = 16 << 20  # a trial has some 10 kB
# Answers of a rig that share an entry while they wait for the next beat, which are about five;
# more would be written again and again while the study is out of reach
MOST_ANSWERS = 30


class Spool:
    """The entries of one member that are not delivered yet; safe to use from two threads.

    Attributes:
        member: The member's id, which stays the same when the run is resumed.
        damaged: Names of files that hold no entry; they are left where they are.
        fault: Why entries are only kept in memory; None if they are on the disk, too.
    """

    def __init__(self, folder: Path, host: str) -> None:
        self._folder, self._lock = folder, Lock()
        self.damaged: list[str] = []
        self.fault: OSError | None = None
        self.member = self._identity(host)
        self._waiting: dict[int, Published] = {}
        self._last = 0
        for path in sorted(folder.glob("[0-9]*")):
            with suppress(ValueError):
                self._last = max(self._last, int(path.stem))
            if path.suffix == WAITING:
                self._recall(path)

    def _identity(self, host: str) -> str:
        path = self._folder / MEMBER
        with suppress(OSError, UnicodeDecodeError):
            if known := access.read(path, MOST_BYTES).decode().strip():
                return known
        made = f"{host}-{secrets.token_hex(4)}"
        self._keep(path, made)
        return made

    def _recall(self, path: Path) -> None:
        try:
            one = Published.read(json.loads(access.read(path, MOST_BYTES)))
        except (OSError, ValueError):
            self.damaged.append(path.name)
            return
        if (f"{one.number:06d}", one.member) == (path.stem, self.member):
            self._waiting[one.number] = one
        else:
            self.damaged.append(path.name)

    def add(self, published: Published) -> None:
        """Keep an entry; its number is chosen here.

        Rounds of one process and the same configs that wait become one entry.
        """
        with self._lock:
            last = self._waiting.get(self._last)
            merged = None if last is None else _together(last, published)
            if merged is None:
                self._last += 1
                merged = replace(published, number=self._last)
            self._waiting[merged.number] = merged
            self._keep(self._path(merged.number, WAITING), json.dumps(merged.as_json()))

    @property
    def waiting(self) -> list[Published]:
        """What is to be delivered, in order."""
        with self._lock:
            return [one for _, one in sorted(self._waiting.items())]

    def delivered(self, published: Published) -> None:
        """Forget an entry that the study has, unless it has grown since."""
        with self._lock:
            number = published.number
            if self._waiting.get(number) is not published:
                return
            del self._waiting[number]
            with suppress(OSError):
                self._path(number, WAITING).replace(self._path(number, SENT))
                for path in self._folder.glob(f"[0-9]*{SENT}"):
                    if path.stem < f"{self._last:06d}":
                        path.unlink(missing_ok=True)

    def _path(self, number: int, suffix: str) -> Path:
        return self._folder / f"{number:06d}{suffix}"

    def _keep(self, path: Path, text: str) -> None:
        try:
            access.write(path, text, private=True)
        except OSError as fault:  # it is delivered from memory, and the record of the search has it
            self.fault = fault


def _together(before: Published, now: Published) -> Published | None:
    match before.entry, now.entry:
        case Rounds(first), Rounds(second):
            is_of_one = (first.process, first.configs) == (second.process, second.configs)
            if is_of_one and before.group == now.group and len(first.rounds) < MOST_ANSWERS:
                played = replace(first, rounds=(*first.rounds, *second.rounds))
                return replace(before, entry=Rounds(played))
    return None
