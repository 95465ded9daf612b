"""The noise floor: what a confirmation reports for two equal configs on this machine (A/A test).

``autotune doctor --aa`` runs it. A speedup smaller than this interval cannot be told from noise
here, and an interval that excludes 1 is a false claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from autotune.machine.hardware import Hardware
from autotune.measurement.interval import Interval
from autotune.program.fence_options import STRONGEST, FenceOptions
from autotune.program.program import Program
from autotune.results.record import Round
from autotune.tuning.compare import ComparedSide, compare
from autotune.tuning.events import Events
from autotune.tuning.surroundings import THIS_MACHINE, Surroundings


@dataclass(frozen=True)
class NoiseFloor:
    """The result of comparing a program with itself.

    Attributes:
        ratio: The measured "speedup" between two equal configs; the true one is 1.
        windows_spread_pct: Standard deviation of the windows of one process, in percent of their
            mean; averaged over the processes. None if each process held one window.
        processes_spread_pct: Standard deviation of the processes' means, in percent; None with one
            process.
        processes: Number of fresh processes.
    """

    ratio: Interval
    windows_spread_pct: float | None
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
        ProgramError: when the program fails or trains too few steps, or Ctrl-C comes before two
            pairs of windows were measured.
    """
    side = ComparedSide(program)
    found = compare((side, side), hardware, budget_s, events, fence, surroundings)
    return of_rounds(found.speedup, found.rounds, is_one_each=found.is_one_each)


def of_rounds(ratio: Interval, rounds: Sequence[Round], *, is_one_each: bool) -> NoiseFloor:
    """Return the noise that a confirmation of two equal configs shows.

    Both sides ran the same config, so the windows of both count as one sample per process.

    Args:
        ratio: The speedup that was measured.
        rounds: Its windows; a round may have been cut short.
        is_one_each: Each window ran in another process, as with programs that end within seconds.
    """
    rates = [[window.measurement.throughput.estimate for window in one] for one in rounds]
    processes = [[rate] for one in rates for rate in one] if is_one_each else rates
    means = [fmean(process) for process in processes]
    within = [stdev(process) / fmean(process) for process in processes if len(process) > 1]
    return NoiseFloor(
        ratio=ratio,
        windows_spread_pct=100 * fmean(within) if within else None,
        processes_spread_pct=100 * stdev(means) / fmean(means) if len(means) > 1 else None,
        processes=len(processes),
    )
