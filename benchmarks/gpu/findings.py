"""What the checks find, how it is kept, and the table that tells it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

MOST_LINES = 60


class Status(StrEnum):
    """How a finding ends."""

    PASS = "PASS"  # noqa: S105 - no password
    FAIL = "FAIL"  # an assertion about autotune does not hold
    NOTE = "NOTE"  # the size of an effect, which is nobody's fault
    SKIP = "SKIP"  # with the reason


# The table is cut from the end of this list.
WORTH = (Status.FAIL, Status.PASS, Status.SKIP, Status.NOTE)


@dataclass(frozen=True)
class Finding:
    """One sentence of a check, with the figures behind it."""

    status: Status
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """All that one check found.

    Attributes:
        seconds: How long the check took; 0 for one that was skipped.
        device_before: Clocks, temperature and memory of the GPU before the check; empty without.
        device_after: The same after it.
    """

    check: str
    seconds: float
    findings: tuple[Finding, ...]
    device_before: Mapping[str, str] = field(default_factory=dict)
    device_after: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_failed(self) -> bool:
        """Whether an assertion about autotune does not hold."""
        return any(finding.status is Status.FAIL for finding in self.findings)

    def as_data(self) -> dict[str, Any]:
        """Return the record as JSON holds it."""
        return asdict(self)


class Notebook:
    """Findings of a running check, each on disk as soon as it is told: a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tell(self, status: Status, text: str, **figures: Any) -> None:
        """Keep one finding."""
        line = json.dumps({"status": status, "text": text, "figures": figures})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def read(self) -> tuple[Finding, ...]:
        """Return what was told so far."""
        if not self._path.exists():
            return ()
        rows = map(json.loads, self._path.read_text(encoding="utf-8").splitlines())
        return tuple(Finding(Status(r["status"]), r["text"], r["figures"]) for r in rows)


def table(records: Sequence[Record]) -> list[str]:
    """Return at most ``MOST_LINES`` lines: one per finding, the least worth left out."""
    rows = [(record, finding) for record in records for finding in record.findings]
    by_worth = sorted(range(len(rows)), key=lambda n: WORTH.index(rows[n][1].status))
    kept = sorted(by_worth[: MOST_LINES - 3])  # beside the heading and the last two lines
    left_out = len(rows) - len(kept)
    lines = [f"{'check':<9} {'':<4} what was found"]
    lines += [
        f"{record.check:<9} {finding.status} {finding.text}"
        for record, finding in map(rows.__getitem__, kept)
    ]
    return [*lines, f"… {left_out} more in the result file"] if left_out else lines


def counts(records: Sequence[Record]) -> str:
    """Return how many findings ended in which way."""
    ended = Counter(finding.status for record in records for finding in record.findings)
    return ", ".join(f"{ended[status]} {status}" for status in Status)
