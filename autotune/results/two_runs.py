"""Two searches that are over, side by side: what each found, and whether their figures compare.

Pure functions of both results. Nothing here says which config is faster: the figures of two
searches were not measured in turns. ``autotune compare A B PROGRAM`` measures that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from autotune.machine.hardware import Hardware
from autotune.program.program import ProgramKind
from autotune.results.result import SearchResult
from autotune.results.verdict import Verdict, verdict
from autotune.results.wording import as_typed, gib

SPEEDS = ("python", "torch")  # packages whose versions decide how fast a program is
ABSENT = "none"


@dataclass(frozen=True)
class Difference:
    """A fact in which two searches differ.

    Attributes:
        name: What differs, such as a knob or ``torch``.
        first: Its value in the first search.
        second: Its value in the second one.
        prevents: Whether figures of the two do not compare because of it.
    """

    name: str
    first: str
    second: str
    prevents: bool = False


@dataclass(frozen=True)
class TwoRuns:
    """Two searches, the first one on the left."""

    first: SearchResult
    second: SearchResult

    @property
    def results(self) -> tuple[SearchResult, SearchResult]:
        """Both of them, in order."""
        return self.first, self.second

    @property
    def names(self) -> tuple[str, str]:
        """How to tell them apart: their names, or their paths if the names are equal."""
        first, second = (result.run_dir.name for result in self.results)
        if first != second or self.first.run_dir == self.second.run_dir:
            return first, second
        return str(self.first.run_dir), str(self.second.run_dir)

    @property
    def verdicts(self) -> tuple[Verdict, Verdict]:
        """What each of them found, in words."""
        first, second = (verdict(r, best_of(r)) for r in self.results)
        return first, second

    @property
    def figures(self) -> tuple[Difference, ...]:
        """Speed and memory of each, before and after."""
        first, second = (
            {
                row.name: row.before if row.before == row.after else f"{row.before} → {row.after}"
                for row in its.figures
            }
            for its in self.verdicts
        )
        names = [*first, *(name for name in second if name not in first)]
        return tuple(
            Difference(name, first.get(name, ABSENT), second.get(name, ABSENT)) for name in names
        )

    @property
    def configs(self) -> tuple[Difference, ...]:
        """The knobs in which the recommended configs differ.

        A knob that a search did not know keeps the program's own value.
        """
        first, second = (result.best for result in self.results)
        knobs = [*first, *(knob for knob in second if knob not in first)]
        values = {knob: (self._value(0, knob), self._value(1, knob)) for knob in knobs}
        return tuple(
            Difference(knob, one, other) for knob, (one, other) in values.items() if one != other
        )

    def _value(self, place: int, knob: str) -> str:
        """Return a knob's value in a recommended config; of the other program if it is unknown."""
        own, other = self.results[place], self.results[1 - place]
        return str(own.best.get(knob, other.baseline.get(knob, ABSENT)))

    @property
    def circumstances(self) -> tuple[Difference, ...]:
        """Program, machine, versions and options in which they differ."""
        return tuple(_unequal(self.first, self.second))

    @property
    def is_comparable(self) -> bool:
        """Whether the figures mean the same: one program, one machine, one objective."""
        return not any(one.prevents for one in self.circumstances)

    @property
    def said(self) -> str:
        """Whether the figures compare, as a sentence."""
        obstacles = [one.name for one in self.circumstances if one.prevents]
        if obstacles:
            return f"The figures do not compare: the searches differ in {', '.join(obstacles)}."
        return (
            "Same program, machine and objective. The speedups compare; which config is faster "
            "was not measured in turns."
        )

    @property
    def command(self) -> str:
        """What to type to measure both configs against each other; empty where nothing helps."""
        program = self.second.head.program
        if program.kind is ProgramKind.PICKLED_FUNCTION or self.first.best == self.second.best:
            return ""
        return f"autotune compare {' '.join(map(quote, self.names))} {program}"


def best_of(result: SearchResult) -> Path:
    """Return where a search keeps its best.yaml, as people would type it."""
    return as_typed(result.run_dir / "best.yaml")


def _unequal(first: SearchResult, second: SearchResult) -> Iterator[Difference]:
    heads = (first.head, second.head)
    one, other = (head.program for head in heads)
    lines = (str(one), str(other))
    if lines[0] != lines[1]:
        yield Difference("program", *lines, prevents=True)
    if one.fingerprint != other.fingerprint:
        yield Difference(
            "source of the program", one.fingerprint[:8], other.fingerprint[:8], prevents=True
        )
    yield from _machines(first.head.hardware, second.head.hardware)
    for name, values, prevents in (
        ("objective", tuple(str(h.options.goal.objective) for h in heads), True),
        ("budget", tuple(f"{h.options.budget_s:.0f} s" for h in heads), False),
        ("trials", tuple(str(len(r.records)) for r in (first, second)), False),
        ("date", tuple(h.created for h in heads), False),
    ):
        if values[0] != values[1]:
            yield Difference(name, values[0], values[1], prevents=prevents)


def _machines(first: Hardware, second: Hardware) -> Iterator[Difference]:
    one, other = _facts(first), _facts(second)
    for name in [*one, *(name for name in other if name not in one)]:
        values = one.get(name, ABSENT), other.get(name, ABSENT)
        if values[0] != values[1]:
            is_package = name in {*first.versions, *second.versions}
            prevents = not is_package or name in SPEEDS
            yield Difference(name, values[0], values[1], prevents=prevents)


def _facts(hardware: Hardware) -> dict[str, str]:
    return {
        "CPU": hardware.cpu_name,
        "cores": str(hardware.cpu_quota),
        "GPUs": ", ".join(gpu.name for gpu in hardware.gpus) or ABSENT,
        "memory": gib(hardware.memory_bytes),
        **hardware.versions,
    }


def as_data(found: TwoRuns) -> dict[str, Any]:
    """Return two searches side by side as data that JSON can hold, with stable keys."""
    return {
        "runs": [
            {
                "name": name,
                "path": str(result.run_dir),
                "program": str(result.head.program),
                "finding": str(result.finding),
                "speedup": vars(result.speedup),
                "samples_per_s": {
                    "before": round(result.throughput[0].estimate, 2),
                    "after": round(result.throughput[1].estimate, 2),
                },
                "changes": dict(result.changes),
            }
            for name, result in zip(found.names, found.results, strict=True)
        ],
        "is_comparable": found.is_comparable,
        "said": found.said,
        "configs": {one.name: [one.first, one.second] for one in found.configs},
        "circumstances": {one.name: [one.first, one.second] for one in found.circumstances},
    }
