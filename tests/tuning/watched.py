"""What tests of whole searches share: knobs, how questions end, and who listens."""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.search_report import details
from autotune.knobs.space.space import ResolvedSpace
from autotune.program.config import Config, KnobValue
from autotune.results.record import TrialRecord
from autotune.results.result import SearchResult
from autotune.tuning.events import Events, Phase
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
    """Remembers what a search tells, and acts where a phase begins, a rehearsal or the claim."""

    on: str = ""
    act: Callable[[], None] = lambda: None
    phases: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def on_phase(self, phase: Phase) -> None:
        self._begins(phase)

    def on_rehearsal(self, config: Config, space: ResolvedSpace) -> None:
        self._begins("rehearse")

    def on_confirmation(self, candidate: TrialRecord, space: ResolvedSpace) -> None:
        self._begins("claim")

    def _begins(self, what: str) -> None:
        self.phases.append(what)
        if what == self.on:
            self.act()

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)


def is_fast(question: Question) -> bool:
    """Tell whether a question is about a config in bf16, which is faster in most scripts."""
    return question.config is not None and question.config.get("precision") == "bf16"


def told(result: SearchResult, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the commands print of a result with all its details, as one line."""
    details(result)
    return " ".join(capsys.readouterr().out.split())


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
