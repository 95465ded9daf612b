"""Blame: whether a config, or the program, or nobody can be said to have failed.

A config is blamed for an exception only if the baseline lives through as many steps where epochs
end in the same way. The same exception at the same line under two configs that share no changed
knob is the program's or ours. Running out of memory is another matter: many configs do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.run_mode import Epochs
from autotune.program.config import Config
from autotune.results.record import TrialRecord

MAX_MORE_STEPS = 200  # of the baseline, besides those that measuring it takes
AT_ONCE = 3  # steps after a switch: who fails so soon fails for the switch
FAILURES = {Outcome.CRASHED, Outcome.UNCLEAR, Outcome.FAILS_AS_WRITTEN}


@dataclass
class Lived:
    """How many steps the baseline was seen to live through in one process."""

    _most: dict[Epochs, int] = field(default_factory=dict)

    def note(self, epochs: Epochs, steps: int) -> None:
        """Keep what a process has made while the baseline was measured on it."""
        self._most[epochs] = max(steps, self.steps(epochs))

    def steps(self, epochs: Epochs) -> int:
        """Return how many steps the baseline has made in one process where epochs end so."""
        return self._most.get(epochs, 0)

    def is_enough(self, epochs: Epochs, ending: Ending) -> bool:
        """Tell whether the baseline lives through what a config crashed in.

        A process that went well until its config changed, and failed at once, is evidence too.
        """
        if ending.steps <= self.steps(epochs):
            return True
        return ending.steps_under_config < min(AT_ONCE + 1, ending.steps)


def unclear(ending: Ending, why: str) -> Ending:
    """Return an ending for which nobody is blamed."""
    return replace(ending, outcome=Outcome.UNCLEAR, reason=f"{ending.reason} ({why})")


def after_baseline(ending: Ending, baseline: Ending) -> Ending:
    """Return what a config's ending means once the baseline has failed where it was to live."""
    if baseline.way == ending.way:
        reason = f"{ending.reason} (so does the program as written)"
        return replace(ending, outcome=Outcome.FAILS_AS_WRITTEN, reason=reason)
    return unclear(
        ending, f"the baseline did not live through {ending.steps} steps: {baseline.reason}"
    )


def judged(records: Sequence[TrialRecord], baseline: Config) -> list[TrialRecord]:
    """Return the records with no config blamed for what others do that share nothing with it."""
    return [_judged(record, records, baseline) for record in records]


def _judged(record: TrialRecord, records: Sequence[TrialRecord], baseline: Config) -> TrialRecord:
    ending = record.ending
    if ending is None or ending.outcome is not Outcome.CRASHED:
        return record
    own = record.config.changes_from(baseline)
    for other in records:
        theirs = other.config.changes_from(baseline)
        if (
            other.ending is not None
            and other.ending.outcome in FAILURES
            and other.ending.way == ending.way
            and not own.keys() & theirs.keys()
        ):
            listed = " ".join(f"{knob}={value}" for knob, value in theirs.items())
            why = f"the same under {listed or 'the baseline'}: it is the program's, or autotune's"
            return replace(record, ending=unclear(ending, why))
    return record
