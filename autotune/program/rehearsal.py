"""Rehearsal: how short its epochs are, what was seen in it, and what that says; values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from autotune.measurement.outcome import ENDED_BY_US, Ending
from autotune.program.config import Config, KnobValue

Ended = Literal["as planned", "by itself", "out of time"]
OTHER_BATCHES = 2  # of a loader that trains nothing: a whole one, and one after it


@dataclass(frozen=True)
class RehearsalPlan:
    """Where a program that rehearses its epochs is cut short.

    Attributes:
        batches: An epoch of training ends after so many, at the end of a step.
        other_batches: What else iterates a loader gets so many.
        epochs: Whole epochs at least, with what lies between them.
        most_epochs: Epochs at most, of a program that could have ended by itself.
        enough_s: Seconds since the first step after which such a program is not waited for.
        most_s: Seconds since the process began after which the rehearsal ends wherever it is.
    """

    batches: int = 3
    other_batches: int = OTHER_BATCHES
    epochs: int = 2
    most_epochs: int = 30
    enough_s: float = 4.0
    most_s: float = 60.0


@dataclass(frozen=True)
class Seen:
    """What a program did in its rehearsal.

    Attributes:
        steps: Optimizer steps.
        epochs: Passes of a loader that made steps.
        evaluations: Times that it computed without gradients outside of its training loop.
        ended: Why the rehearsal was over.
        silent_s: Seconds since the program last asked for a batch, called its model or made a step.
    """

    steps: int
    epochs: int
    evaluations: int
    ended: Ended
    silent_s: float = 0.0

    @property
    def is_whole(self) -> bool:
        """All that was to be seen was seen."""
        return self.ended != "out of time"

    def __str__(self) -> str:
        if not self.epochs:
            return f"{_count(self.steps, 'step')}{self._how}"
        evaluations = (
            _count(self.evaluations, "evaluation") if self.evaluations else "no evaluation"
        )
        return f"{_count(self.epochs, 'short epoch')}, {evaluations}{self._how}"

    @property
    def reached(self) -> tuple[int, int]:
        """How far the program came, in the order of its ways."""
        return self.steps, self.evaluations

    @property
    def _how(self) -> str:
        match self.ended:
            case "as planned":
                return ""
            case "by itself":
                return ", to the program's own end"
            case "out of time":
                return ", until time was up"


@dataclass(frozen=True)
class Rehearsal:
    """How a rehearsal came out.

    Attributes:
        seen: None where the process died without a word.
        ending: How the program failed, or who ended it; None where nothing went wrong.
    """

    seen: Seen | None
    ending: Ending | None = None

    @property
    def has_failed(self) -> bool:
        """The program did not come through."""
        return self.ending is not None and self.ending.outcome not in ENDED_BY_US

    @property
    def has_passed(self) -> bool:
        """The program came through all that was to be seen."""
        return self.ending is None and self.seen is not None and self.seen.is_whole

    def fails_like(self, other: Rehearsal) -> bool:
        """Tell whether two fail in the same way: the same error, raised by the same line."""
        if self.ending is None or other.ending is None:
            return False
        is_both = self.has_failed and other.has_failed
        is_alike = self.ending.outcome is other.ending.outcome
        return is_both and is_alike and self.ending.way == other.ending.way


@dataclass(frozen=True)
class RehearsalRecord:
    """What was found out about a config beyond its training loop.

    Attributes:
        own: How the config's rehearsal came out.
        baseline: The baseline's, which is rehearsed where the config's went wrong.
        guilty: What of the config fails alone, where it does: one knob where that was found out,
            else all in which it differs from the baseline. Empty where nobody is blamed.
        cost_s: Wall time of all of it.
    """

    config: Config
    own: Rehearsal
    baseline: Rehearsal | None = None
    guilty: Mapping[str, KnobValue] = field(default_factory=dict)
    cost_s: float = 0.0

    @property
    def is_settled(self) -> bool:
        """More time would tell no more."""
        return self.own.has_passed or (self.own.has_failed and self.baseline is not None)

    @property
    def is_blamed(self) -> bool:
        """The config fails where the baseline does not."""
        return bool(self.guilty)


def survives(written: Rehearsal, other: Rehearsal) -> bool:
    """Tell whether the program as written comes through what another config fails at."""
    if written.has_passed:
        return True
    if written.seen is None or other.seen is None or written.fails_like(other):
        return False
    reached, failed = written.seen.reached, other.seen.reached
    return reached >= failed if written.has_failed else reached > failed


def blames(records: Sequence[RehearsalRecord]) -> tuple[str, ...]:
    """Return what is not recommended, and why, as sentences for the user."""
    return tuple(
        f"Not recommended: {_listed(record.guilty)} fails outside of the training loop: "
        f"{_reason(record.own)}. As it is written the program comes through."
        for record in records
        if record.is_blamed
    )


def note(records: Sequence[RehearsalRecord], config: Config) -> str:
    """Return what a config was seen to come through, empty where nothing was."""
    own = _of(records, config)
    if own is None or own.own.has_failed or own.own.seen is None:
        return ""
    return f"Rehearsed under this config: {own.own.seen}."


def doubt(records: Sequence[RehearsalRecord], config: Config) -> str:
    """Return what was not seen of a config, empty where nothing is missing."""
    record = _of(records, config)
    if record is None or (record.own.ending is not None and not record.own.has_failed):
        return (
            "What the program does after an epoch (evaluating, saving, a second epoch) was not "
            "tried under this config: there was no time. A longer --budget leaves some."
        )
    if not record.own.has_failed:
        return ""
    failed = f"With short epochs it fails under this config ({_reason(record.own)})"
    if record.baseline is None or record.baseline.ending is None:
        return f"{failed}, and it was not seen whether it does so as it is written."
    return (
        f"Beyond its training loop nothing could be tried: with short epochs the program fails "
        f"as it is written, too: {_reason(record.baseline)}."
    )


def _of(records: Sequence[RehearsalRecord], config: Config) -> RehearsalRecord | None:
    return next((r for r in reversed(records) if r.config == config), None)


def _reason(rehearsal: Rehearsal) -> str:
    return rehearsal.ending.reason.rstrip(".") if rehearsal.ending is not None else ""


def _listed(changes: Mapping[str, KnobValue]) -> str:
    listed = " ".join(f"{knob}={value}" for knob, value in changes.items())
    return listed if len(changes) == 1 else f"one of {listed}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
