"""What tests of whole searches share: knobs, how questions end, and who listens."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.outcome import Ending
from autotune.program.config import Config, KnobValue
from autotune.results.record import TrialRecord
from autotune.results.result import SearchResult
from autotune.tuning.events import Events
from tests.scripted import Question, Script, Searched, begin

Knobs = dict[str, tuple[KnobValue, ...]]
Factors = dict[str, dict[KnobValue, float]]
KNOBS: Knobs = {
    "workers": (0, 1, 2),
    "threads": (1, 2),
    "precision": ("fp32", "bf16"),
    "memory_format": ("contiguous", "channels_last"),
    "optimizer": ("for-loop", "fused"),
}
FASTER: Factors = {
    "workers": {1: 1.3, 2: 1.1},
    "precision": {"bf16": 1.2},
    "threads": {1: 0.8},
    "memory_format": {"channels_last": 0.9},
}
TWO: Knobs = {"precision": ("fp32", "bf16"), "memory_format": ("contiguous", "channels_last")}
TWO_FASTER: Factors = {"precision": {"bf16": 1.4}, "memory_format": {"channels_last": 1.2}}


class Killed(BaseException):
    """The search is killed here: nothing of it runs any more."""


def kill() -> None:
    raise Killed


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@dataclass
class Heard(Events):
    """Remembers what a search tells, and acts where a phase or so many answers of rounds begin."""

    on: str = ""
    act: Callable[[], None] = lambda: None
    at_rounds: int = 0
    phases: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    trials: list[TrialRecord] = field(default_factory=list)
    begun: list[Config] = field(default_factory=list)
    bests: list[Config] = field(default_factory=list)

    def on_phase(self, name: str) -> None:
        self.phases.append(name)
        if name == self.on:
            self.act()

    def on_trial_start(self, config: Config, why: str, space: ResolvedSpace) -> None:
        self.begun.append(config)

    def on_trial_end(self, number: int, record: TrialRecord, space: ResolvedSpace) -> None:
        self.trials.append(record)

    def on_rounds(self, best: Config, speedup: float, space: ResolvedSpace) -> None:
        self.bests.append(best)
        if len(self.bests) == self.at_rounds:
            self.act()

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)


def fails_with(
    knob: str, value: KnobValue, ending: Ending, *kinds: str
) -> Callable[[Question], Ending | None]:
    """Return how questions of these kinds about a value of a knob end."""

    def ends(question: Question) -> Ending | None:
        has_it = question.config is not None and question.config.get(knob) == value
        return ending if has_it and question.kind in kinds else None

    return ends


def found(
    folder: Path,
    script: Script,
    budget_s: float = 90.0,
    knobs: Mapping[str, tuple[KnobValue, ...] | None] = KNOBS,
    heard: Events | None = None,
    **options: Any,
) -> tuple[Searched, SearchResult]:
    """Return a search that is over, with its result."""
    search = begin(folder, script, knobs, **options)
    return search, search.go_on(budget_s, heard)
