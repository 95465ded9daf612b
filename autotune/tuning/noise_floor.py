"""The noise floor: what a confirmation reports for two equal configs on this machine (A/A test).

``autotune doctor --aa`` runs it. A speedup smaller than this interval cannot be told from noise
here, and an interval that excludes 1 is a false claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from autotune.knobs.space.spacefile import load
from autotune.machine.hardware import Hardware
from autotune.measurement.interval import Interval
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.applied_config import AppliedConfig
from autotune.program.fence_options import STRONGEST, FenceOptions
from autotune.program.program import Program
from autotune.rig.failures import program_error
from autotune.rig.open_rig import Reports
from autotune.tuning.budget import Budget
from autotune.tuning.confirm import ConfirmationPlan, Failure, confirm
from autotune.tuning.confirmation import Round
from autotune.tuning.events import Events
from autotune.tuning.interrupts import ENDING, InterruptCounter
from autotune.tuning.start import first_start
from autotune.tuning.start.first_start import START_SILENCE_S
from autotune.tuning.start.observe import throwaway_rigs
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
    """Confirm a program against itself, as a search confirms its winner.

    Rounds stop as they do in a search: at a planned look that decides, after the last one, or when
    the budget is used up. Only the correction by pilots is left out, because a search learns it
    from its trials. Ctrl-C ends the current window; the windows until then count.

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
    budget = Budget(budget_s, clock=surroundings.clock)
    reports = Reports(events.on_progress, events.warn, events.note)
    with (
        InterruptCounter(lambda _: events.warn(ENDING)) as stop,
        throwaway_rigs(program, hardware, fence, reports, surroundings) as rigs,
    ):
        events.on_fence(rigs.fence)

        def should_stop() -> Ending | None:
            if stop.requests:
                return Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C")
            return None

        events.on_phase("observing the program")
        # Only the profile is needed from this process; the rounds start their own.
        started = first_start.observe(rigs, should_stop, START_SILENCE_S)
        if isinstance(started, Ending):
            raise program_error(program, started)
        with started:
            ready = started.ready
        space = load("default").resolve(hardware, ready.profile)
        base = AppliedConfig.as_written(space.baseline, ready.profile)
        events.on_phase("comparing the program with itself, in fresh processes")
        plan = ConfirmationPlan(rigs, space, base, base.config, should_stop, claims=False)

        def has_time_for(seconds: float, *, is_needed: bool) -> bool:  # noqa: ARG001
            return not stop.requests and budget.left_s > seconds

        rounds: list[Round] = []
        outcome = confirm(plan, [], rounds.append, has_time_for)
    if isinstance(outcome, Failure):
        raise program_error(program, outcome.ending)
    return of_rounds(outcome.speedup, rounds, is_one_each=plan.needs_own_process)


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
