"""Blame: whether a failure is the config's, the program's, or cannot be attributed.

A config is blamed for an exception only if the baseline makes the same number of steps while epochs
end in the same way. The same exception at the same line under two configs that share no changed
knob is the fault of the program or of autotune. Running out of memory is different: many unrelated
configs rightly do. After an error of a GPU, the config runs once more in a fresh process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autotune.measurement.outcome import Ending, Epochs, Outcome
from autotune.program.config import Config
from autotune.results.record import TrialRecord

# Errors after which "the process must be terminated and relaunched" (CUDA Runtime API, cudaError,
# by cudaGetErrorString), and what cuBLAS and cuDNN say of them. They come late, from whatever was
# computed before, and from hardware as well.
OF_DEVICE = re.compile(
    r"(CUDA|HIP|Cuda|cuDNN).*(illegal (memory access|instruction)|device-side assert|misaligned add"
    r"|launch (failure|timed out)|hardware stack error|invalid program counter|uncorrectable"
    r"|global/shared address|STATUS_(EXECUTION_FAILED|MAPPING_ERROR))"
)
AT_ONCE = 3  # a failure within this many steps after a switch is due to the switch
# Outcomes of an exception in the program: these can be compared by exception and line.
FAILURES = {Outcome.CRASHED, Outcome.UNCLEAR}


@dataclass
class Lived:
    """How many steps the baseline was seen to make in one process, per way in which epochs end.

    ``LiveRig`` fills it; it is the evidence that a late crash is the config's fault.
    """

    _most: dict[Epochs, int] = field(default_factory=dict)

    def note(self, epochs: Epochs, steps: int) -> None:
        """Record that the baseline was still training after *steps* steps of a process.

        All steps of the process count, since a config before it may have made some of them.
        """
        self._most[epochs] = max(steps, self._most.get(epochs, 0))

    def is_enough(self, epochs: Epochs, ending: Ending) -> bool:
        """Return whether the evidence suffices to blame a config for its crash.

        It does if the baseline made no fewer steps than the config. A process that worked until its
        config changed and then failed at once is evidence too.
        """
        if ending.steps <= self._most.get(epochs, 0):
            return True
        return ending.steps_under_config < min(AT_ONCE + 1, ending.steps)


def is_of_device(ending: Ending) -> bool:
    """Return whether a GPU has failed: a config is to blame if a fresh process repeats that."""
    return OF_DEVICE.search(ending.reason) is not None


def unclear(ending: Ending, why: str) -> Ending:
    """Return an ending whose outcome is unclear, with the reason why nobody is blamed."""
    return replace(ending, outcome=Outcome.UNCLEAR, reason=f"{ending.reason} ({why})")


def judged(records: Sequence[TrialRecord], baseline: Config) -> list[TrialRecord]:
    """Return the records, with crashes made unclear that unrelated configs share.

    Two configs are unrelated if they have no changed knob in common. Call it again when records are
    added: an earlier crash may then be seen in another light.
    """
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
            others = f"{listed}, which changes other settings"
            under = others if listed else "the program's own config"
            why = f"it also fails so under {under}: the program or autotune is the cause"
            return replace(record, ending=unclear(ending, why))
    return record
