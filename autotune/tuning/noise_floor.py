"""The noise floor: what a confirmation reports for two equal configs on this machine (A/A test).

``autotune doctor --aa`` runs it. A speedup smaller than this interval cannot be told from noise
here, and an interval that excludes 1 is a false claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, stdev

from autotune.machine.hardware import Hardware
from autotune.measurement.interval import Interval
from autotune.program.fence_options import STRONGEST, FenceOptions
from autotune.program.program import Program
from autotune.tuning.compare import ComparedSide, compare
from autotune.tuning.events import Events
from autotune.tuning.surroundings import THIS_MACHINE, Surroundings


@dataclass(frozen=True)
class NoiseFloor:
    """The result of comparing a program with itself.

    Attributes:
        ratio: The measured "speedup" between two equal configs; the true one is 1.
        error_pct: Standard error of the ratio in one process, in percent; averaged over them.
        processes_spread_pct: Standard deviation of the processes' ratios, in percent; None with one
            process.
        processes: Number of fresh processes.
    """

    ratio: Interval
    error_pct: float
    processes_spread_pct: float | None
    processes: int

    @property
    def claims_a_difference(self) -> bool:
        """Whether the interval excludes 1, which is a false claim.

        At 95 % confidence, one of twenty such tests is expected to make one.
        """
        return not self.ratio.low <= 1.0 <= self.ratio.high


def measure_noise_floor(
    program: Program,
    hardware: Hardware,
    budget_s: float,
    events: Events,
    fence: FenceOptions = STRONGEST,
    surroundings: Surroundings = THIS_MACHINE,
) -> NoiseFloor:
    """Confirm a program against itself, as ``compare()`` does with two configs.

    Args:
        program: The program.
        hardware: This machine.
        budget_s: Most wall time in seconds.
        events: Told what happens.
        fence: What the user requested of the fence.
        surroundings: Clock and rigs; tests pass scripted ones.

    Raises:
        FenceError: when nothing keeps the program from changing the user's files.
        ProgramError: when the program fails or trains too few steps, or Ctrl-C comes before a
            fresh process was over.
    """
    side = ComparedSide(program)
    found = compare((side, side), hardware, budget_s, events, fence, surroundings)
    ratios = [one.ratio for one in found.confirmation.processes]
    values = [ratio.value for ratio in ratios]
    return NoiseFloor(
        ratio=found.speedup,
        error_pct=100 * fmean(ratio.error for ratio in ratios),
        processes_spread_pct=100 * stdev(values) if len(values) > 1 else None,
        processes=len(ratios),
    )
