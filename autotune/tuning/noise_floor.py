"""The noise floor: what a confirmation reports for two equal configs on this machine (A/A test).

``autotune doctor --aa`` runs it. A speedup smaller than this interval cannot be told from noise
here, and an interval that excludes 1 is a false claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, stdev

from autotune.knobs.space.spacefile import load
from autotune.machine.hardware import Hardware
from autotune.measurement.measurement import Interval
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.applied_config import AppliedConfig
from autotune.program.fence_options import STRONGEST, FenceOptions
from autotune.program.program import Program
from autotune.rig.failures import program_error
from autotune.rig.open_rig import Reports
from autotune.tuning.budget import Budget
from autotune.tuning.confirm import Confirmation, ConfirmationPlan, confirm
from autotune.tuning.events import Events
from autotune.tuning.interrupts import InterruptCounter
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
            mean; averaged over the processes.
        processes_spread_pct: Standard deviation of the processes' means, in percent; None with one
            process.
        rounds: Number of rounds, each in a fresh process.
    """

    ratio: Interval
    windows_spread_pct: float
    processes_spread_pct: float | None
    rounds: int

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
    """Confirm a program against itself until the budget is used up.

    Unlike in a search, rounds do not stop once the ratio is decided, because the aim is the spread.
    Ctrl-C ends the current window; the windows until then count.

    Args:
        program: The program.
        hardware: This machine.
        budget_s: Wall time in seconds.
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
        InterruptCounter(events.on_interrupt) as stop,
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
        plan = ConfirmationPlan(rigs, space, base, base.config, should_stop, is_full_length=True)

        def has_time_for(seconds: float, *, is_needed: bool) -> bool:  # noqa: ARG001
            return not stop.requests and budget.left_s > seconds

        outcome = confirm(plan, [], lambda _: None, has_time_for)
    if isinstance(outcome, Ending):
        raise program_error(program, outcome)
    return of_confirmation(outcome)


def of_confirmation(confirmation: Confirmation) -> NoiseFloor:
    """Return the noise that a confirmation of two equal configs shows.

    Both sides ran the same config, so the windows of both count as one sample per process.
    """
    rates = [m.throughput.estimate for m in (*confirmation.baseline, *confirmation.winner)]
    # Each side lists its windows round by round. All rounds are taken to be of equal length.
    per_round = len(confirmation.baseline) // confirmation.rounds
    processes = [
        [
            m.throughput.estimate
            for side in (confirmation.baseline, confirmation.winner)
            for m in side[n * per_round : (n + 1) * per_round]
        ]
        for n in range(confirmation.rounds)
    ]
    means = [fmean(process) for process in processes]
    within = fmean(stdev(process) / fmean(process) for process in processes)
    return NoiseFloor(
        ratio=confirmation.speedup,
        windows_spread_pct=100 * within,
        processes_spread_pct=100 * stdev(means) / fmean(rates) if len(means) > 1 else None,
        rounds=confirmation.rounds,
    )
