"""What rehearsals found out about configs beyond their training loops, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.measurement.interval import Interval
from autotune.measurement.learning.training_trace import NO_TIME, Agreement, Sameness
from autotune.program.config import Config, KnobValue
from autotune.program.lr import LrRule
from autotune.program.rehearsal import Rehearsal


@dataclass(frozen=True)
class RehearsalRecord:
    """What was found out about a config beyond its training loop.

    Attributes:
        baseline: The result for the baseline; None if the config did not fail or time was short.
        guilty: The part of the config that fails although the baseline does not, or that trains
            something else: a single knob if one was found, otherwise all differences from the
            baseline. Empty if the config is not blamed.
        cost_s: Wall time of all these rehearsals.
        training: How its training compares with that of the baseline, apart from *by_design*; None
            if there is nothing to compare.
        by_design: Changes whose purpose is to train otherwise, such as another precision.
        learning: By how much these make the loss larger at equal samples, relative; None if that
            was not compared.
        seeds: The number of random states from which that was compared; 0 if from that of the
            rehearsal alone.
        lr_rule: The rule under which the rate followed the batch best; AUTO for the usual one.
        unchecked_s: Seconds that comparing what changes by design learn would take; None if that
            was done, or need not be.
        untold: Why their losses tell nothing; empty if they do.
    """

    config: Config
    own: Rehearsal
    baseline: Rehearsal | None = None
    guilty: Mapping[str, KnobValue] = field(default_factory=dict)
    cost_s: float = 0.0
    training: Agreement | None = None
    by_design: Mapping[str, KnobValue] = field(default_factory=dict)
    learning: Interval | None = None
    seeds: int = 0
    lr_rule: LrRule = LrRule.AUTO
    unchecked_s: float | None = None
    untold: str = ""

    @property
    def difference(self) -> str:
        """How its training differs from the baseline's where it must not; empty if it does not."""
        if self.training is not None and self.training.sameness is Sameness.DIFFERS:
            return str(self.training)
        if self.is_blamed and not self.own.has_failed:
            return self._learned
        return ""

    @property
    def failure(self) -> str:
        """Why the program failed under it, without a full stop; empty if it did not."""
        return _reason(self.own) if self.own.has_failed else ""

    @property
    def gap(self) -> str:
        """By how much the loss is larger at equal samples: ``+0.5 % ± 0.7 %``; empty if unknown."""
        if self.learning is None:
            return ""
        gap = self.learning
        percent, half = 100 * gap.estimate, 50 * (gap.high - gap.low)
        decimals = 0 if max(abs(percent), half) >= 10 else 1
        return f"{percent:+.{decimals}f} % ± {max(half, 0.1):.{decimals}f} %"

    @property
    def _learned(self) -> str:
        """What is known about the loss under the changes that are by design."""
        more = ""
        if self.unchecked_s is not None:
            more = f", needs {math.ceil(self.unchecked_s / 60)} min more (--may-change batch)"
        if self.learning is None:
            why = f": {self.untold}" if self.untold else ""
            return f"not checked{more or why}"
        states = f" from {self.seeds} random states" if self.seeds else ""
        more = more.replace(", needs", "; to tell more, it needs")
        return f"loss at equal samples {self.gap}{states}{more}"

    @property
    def training_note(self) -> str:
        """What is known about its training, for the user; empty if nothing is."""
        changed = _listed(self.by_design, all_of_them=True)
        if not changed:
            return "" if self.training is None else f"Training: {self._compared}."
        rest = ""
        if self.training is not None:
            is_told = self.training.sameness is not Sameness.UNKNOWN
            rest = f"{self._compared}, apart from " if is_told else f"{self._compared}; "
        return f"Training: {rest}{changed} ({self._learned})."

    def leaves_open(self, knob: str) -> bool:
        """Return whether it is not known what a change of this config trains."""
        if knob in self.by_design:
            return self.learning is None
        return self.training is None or self.training.sameness is Sameness.UNKNOWN

    @property
    def _compared(self) -> str:
        differs = self.training is not None and self.training.sameness is Sameness.DIFFERS
        return f"differs: {self.training}" if differs else str(self.training)

    @property
    def is_settled(self) -> bool:
        """Whether rehearsing again with more time would change nothing."""
        is_compared = self.training is None or self.training.why != NO_TIME
        has_passed = self.own.has_passed and is_compared
        return has_passed or (self.own.has_failed and self.baseline is not None)

    @property
    def is_blamed(self) -> bool:
        """Whether the config fails where the baseline does not."""
        return bool(self.guilty)


@dataclass(frozen=True)
class Canary:
    """What the exact settings were found to train, before the search.

    Attributes:
        config: All of them that train what the program does as it is written, at once.
        training: How it compares; None if no setting is left, or time ran out before.
        refused: The settings that train something else, or fail, with what differs.
        values: Their values that may not be used.
    """

    config: Config
    own: Rehearsal | None
    training: Agreement | None
    refused: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, tuple[KnobValue, ...]] = field(default_factory=dict)

    def clears(self, config: Config, written: Config) -> bool:
        """Return whether all that a config changes was changed in this comparison, too."""
        changes = config.changes_from(written).items()
        return self.training is not None and changes <= self.config.changes_from(written).items()


def survives(written: Rehearsal, other: Rehearsal) -> bool:
    """Return whether the unmodified program gets past the point at which another config failed.

    The unmodified program need not pass its whole rehearsal. It is enough that it came further, or
    that it came as far before it failed in a different way.
    """
    if written.has_passed:
        return True
    # Without evidence from both, or when both fail alike, nothing speaks against the config.
    if written.seen is None or other.seen is None or written.fails_like(other):
        return False
    reached, failed = written.seen.reached, other.seen.reached
    return reached >= failed if written.has_failed else reached > failed


def blames(records: Sequence[RehearsalRecord]) -> tuple[str, ...]:
    """Return one sentence for the user about each config that is not recommended."""
    return tuple(
        f"Not recommended: {_listed(record.guilty, all_of_them=True)} makes larger steps. "
        f"Training: {record.difference}."
        if record.unchecked_s is not None or record.untold
        else f"Not recommended: {_listed(record.guilty)} changes the training: {record.difference}."
        if record.difference
        else f"Not recommended: {_listed(record.guilty)} fails outside of the training loop: "
        f"{_reason(record.own)}. As written, the program does not fail there."
        for record in records
        if record.is_blamed
    )


def trained(records: Sequence[RehearsalRecord], config: Config) -> RehearsalRecord | None:
    """Return the record that says how a config's training compares; None if there is none."""
    found = (r for r in reversed(records) if r.config == config and r.training_note)
    return next(found, None)


def note(records: Sequence[RehearsalRecord], config: Config) -> str:
    """Return a sentence on what the program did under a config; empty if nothing was seen."""
    own = _of(records, config)
    if own is None or own.own.has_failed or own.own.seen is None:
        return ""
    return f"With short epochs, the program showed no error under this config: {own.own.seen}."


def warning(records: Sequence[RehearsalRecord], config: Config) -> str:
    """Return a sentence on what was not tried under a config; empty if nothing is missing."""
    record = _of(records, config)
    if record is None or (record.own.ending is not None and not record.own.has_failed):
        return (
            "What follows an epoch, such as saving, was not tried with it: there was no time. "
            "A longer --budget leaves some."
        )
    if not record.own.has_failed:
        return ""
    if record.baseline is None or not record.baseline.has_failed:
        return (
            f"With short epochs the program fails under this config ({_reason(record.own)}). "
            "There was no time to see whether it also fails as written; train a short while before "
            "you rely on this config."
        )
    return (
        f"Code after an epoch could not be tried: with short epochs the program also fails as "
        f"written: {_reason(record.baseline)}."
    )


def _of(records: Sequence[RehearsalRecord], config: Config) -> RehearsalRecord | None:
    # The latest record counts: a resumed search may have rehearsed the config again, for longer.
    return next((r for r in reversed(records) if r.config == config), None)


def _reason(rehearsal: Rehearsal) -> str:
    return rehearsal.ending.reason.rstrip(".") if rehearsal.ending is not None else ""


def _listed(changes: Mapping[str, KnobValue], *, all_of_them: bool = False) -> str:
    listed = " ".join(f"{knob}={value}" for knob, value in changes.items())
    return listed if len(changes) == 1 or all_of_them else f"one of {listed}"
