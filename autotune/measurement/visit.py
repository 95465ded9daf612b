"""Visit: what measuring a config once, for about a second, says about its speed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.measurement.interval import Interval
from autotune.measurement.pilot import Pace
from autotune.measurement.run_mode import RunMode
from autotune.measurement.stats import NORMAL

AS_WRITTEN = RunMode()


@dataclass(frozen=True)
class Visit:
    """One visit of a config in a running program.

    Attributes:
        process: Number of the process that it ran in.
        at_s: When it ended, in seconds since any moment. A session that resumes a search goes on a
            while after the last visit before it.
        log_rate: Logarithm of the samples per second; in terms of the baseline's samples, where a
            config makes a step of more of them without saving steps.
        own_spread: Standard deviation of ``log_rate`` as the visit's own blocks show it. Visits
            differ by more than that, because the blocks of one visit share the machine's pace.
        pace: The machine's pace around the visit; None without pilots.
        mode: How the process ran the program.
    """

    process: int
    at_s: float
    log_rate: float
    own_spread: float
    pace: Pace | None = None
    mode: RunMode = AS_WRITTEN

    @classmethod
    def of(
        cls,
        worth: Interval,
        process: int,
        at_s: float,
        pace: Pace | None = None,
        mode: RunMode | None = None,
        drained_share: float = 0.0,
    ) -> Visit:
        """Return a visit.

        Args:
            worth: Samples per second, with their interval from the visit's own blocks.
            process: Number of the process that it ran in.
            at_s: When it ended.
            pace: The machine's pace around it.
            mode: How the process runs the program.
            drained_share: Share of the samples that may come out of buffers that were full before,
                0 to 1. Half of it is taken off: the truth lies in between.
        """
        own_spread = math.log(worth.high / worth.low) / 2 / NORMAL
        return cls(
            process,
            at_s,
            math.log(worth.estimate * (1 - drained_share / 2)),
            own_spread,
            pace,
            mode or AS_WRITTEN,
        )

    @property
    def rate(self) -> Interval:
        """What ``log_rate`` is the logarithm of, with the interval from the visit's own blocks."""
        half = NORMAL * self.own_spread
        return Interval(*(math.exp(self.log_rate + by) for by in (0.0, -half, half)))
