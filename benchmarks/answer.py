"""What ``autotune search --json`` says, by the names of the benchmarks that read it; its speedup.

The one place that knows the keys: when they change, this file follows.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

# 97.5 % quantile of Student's t with two degrees of freedom: two values on each of two sides
T_OF_TWO_AND_TWO = 4.303
# Errors of the logarithm beyond this would hide that a claim is a third too high
NOISY = math.log(4 / 3)


@dataclass(frozen=True)
class Ratio:
    """A ratio of two speeds.

    Attributes:
        log: Its natural logarithm.
        error: Half-width of the logarithm's 95 % interval; None where nothing was repeated.
    """

    log: float
    error: float | None

    @classmethod
    def within(cls, estimate: float, low: float, high: float) -> Ratio:
        """Return the ratio of an interval."""
        return cls(math.log(estimate), math.log(high / low) / 2)

    @classmethod
    def of_speeds(cls, faster: Sequence[float], slower: Sequence[float]) -> Ratio:
        """Return the ratio of two sides that took turns, one or two speeds of each."""
        sides = [[math.log(speed) for speed in side] for side in (faster, slower)]
        log = fmean(sides[0]) - fmean(sides[1])
        if min(map(len, sides)) < 2:
            return cls(log, None)
        # Each side's variance is d²/2, its mean's is half of that; both means count.
        squares = sum((a - b) ** 2 / 4 for a, b in (side[:2] for side in sides))
        return cls(log, T_OF_TWO_AND_TWO * math.sqrt(squares))

    @property
    def value(self) -> float:
        """The ratio itself."""
        return math.exp(self.log)

    @property
    def least(self) -> float | None:
        """The lower end of its interval; None where nothing was repeated."""
        return None if self.error is None else math.exp(self.log - self.error)

    def agrees_with(self, other: Ratio) -> bool | None:
        """Whether both lie within their errors together; None where these would hide a third."""
        if self.error is None or other.error is None or self.error + other.error > NOISY:
            return None
        return abs(self.log - other.log) <= self.error + other.error

    def __str__(self) -> str:
        if self.error is None:
            return f"{self.value:.2f}x by one run"
        if self.error > NOISY:
            return f"{self.value:.2f}x, too noisy to tell"
        return f"{self.value:.2f}x ± {self.error:.0%}"


@dataclass(frozen=True)
class Answer:
    """The answer of one search.

    Attributes:
        claim: The speedup that is claimed; None without a claim.
        interval: Estimate and ends of the claim's interval, as they stand; 1 without a claim.
        finding: The verdict with its reason, in autotune's words.
        changes: What the recommended config changes, by knob.
        seconds: How long the search took, by itself.
        first_step_s: Seconds from the start of the program until its first step has ended.
        untried: What could not be tried, with the reason.
        outcomes: Number of configs by how their trial ended.
        device: The device on which the program trained.
        memory_bytes: Memory of the program as written, by kind; without what is unknown.
        processes: How many processes the search started.
        run: The search's folder, as seen from where it ran.
    """

    claim: Ratio | None
    interval: Mapping[str, float]
    finding: str
    changes: Mapping[str, Any]
    seconds: float
    first_step_s: float | None
    untried: Mapping[str, str]
    outcomes: Mapping[str, int]
    device: str
    memory_bytes: Mapping[str, int]
    processes: int
    run: str


def read(text: str) -> Answer:
    """Return the answer that stands in the JSON of a search.

    Raises:
        ValueError: if the text is no JSON, or lacks a key.
    """
    data = json.loads(text)
    try:
        best = data["best"]
        interval = {end: best["speedup"][end] for end in ("estimate", "low", "high")}
        memory = best["memory"]["as_written"]
        return Answer(
            claim=Ratio.within(**interval) if data["finding"] == "faster" else None,
            interval=interval,
            finding=": ".join(filter(None, (data["finding"], data["reason"]))),
            changes=best["config"],
            seconds=data["seconds"],
            first_step_s=data["first_step_s"],
            untried=data["untried"],
            outcomes=Counter(trial["outcome"] for trial in data["trials"]),
            device=data["program"]["device"],
            memory_bytes={
                k: v for k, v in memory.items() if k.endswith("_bytes") and v is not None
            },
            processes=data["processes"],
            run=data["run"],
        )
    except KeyError as error:
        raise ValueError(f"the JSON of the search has no key {error}") from error
