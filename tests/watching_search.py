"""Events that end a real search once a test has seen what it is about."""

from __future__ import annotations

import signal

from autotune.knobs.space.space import ResolvedSpace
from autotune.results.record import TrialRecord
from autotune.tuning.events import Events


class StopsAfter(Events):
    """Ends a search as two Ctrl-C do, once so many trials are recorded: nothing is confirmed then.

    Args:
        trials: The baseline counts.
    """

    def __init__(self, trials: int) -> None:
        self._trials = trials

    def on_trial_end(self, number: int, record: TrialRecord, space: ResolvedSpace) -> None:
        if number + 1 == self._trials:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
