"""What ``autotune search --json`` says, by the names of the benchmarks that read it.

The one place that knows the keys: when they change, this file follows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.ratio import Ratio


@dataclass(frozen=True)
class Answer:
    """The answer of one search.

    Attributes:
        claim: The speedup that is claimed; None without a claim.
        interval: The same with the ends of its interval, as they stand; 1 without a claim.
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

    @property
    def configs_per_minute(self) -> float:
        """Measured configs per minute of the whole search."""
        return 60 * self.outcomes.get("ok", 0) / self.seconds


def read(text: str) -> Answer:
    """Return the answer that stands in the JSON of a search.

    Raises:
        ValueError: if the text is no JSON, or lacks a key.
    """
    try:
        return _answer(json.loads(text))
    except KeyError as error:
        raise ValueError(f"the JSON of the search has no key {error}") from error


def _answer(data: Mapping[str, Any]) -> Answer:
    best = data["best"]
    speedup = best["speedup"]
    has_claim = data["finding"] == "faster"
    memory = best["memory"]["baseline"]
    return Answer(
        claim=Ratio.within(speedup["estimate"], speedup["low"], speedup["high"])
        if has_claim
        else None,
        interval={end: speedup[end] for end in ("estimate", "low", "high")},
        finding=": ".join(filter(None, (data["finding"], data["reason"]))),
        changes={k: v for k, v in best["config"].items() if v != best["baseline"].get(k)},
        seconds=data["seconds"],
        first_step_s=data["first_step_s"],
        untried=data["untried"],
        outcomes=Counter(trial["outcome"] for trial in data["trials"]),
        device=best["program"]["device"],
        memory_bytes={k: v for k, v in memory.items() if k.endswith("_bytes") and v is not None},
        processes=best["search"]["processes"],
        run=data["run"],
    )
