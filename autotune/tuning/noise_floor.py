"""The noise floor: what a confirmation says of two equal configs on this machine (A/A)."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from autotune.knobs.space.spacefile import load
from autotune.machine.hardware import Hardware
from autotune.measurement.measurement import Interval
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.applied_config import AppliedConfig
from autotune.program.fence_options import STRONGEST, FenceOptions
from autotune.program.program import Program
from autotune.rig.failures import program_error
from autotune.rig.rig import Reports
from autotune.tuning.budget import Budget
from autotune.tuning.confirm import Confirmation, ConfirmationPlan, confirm
from autotune.tuning.events import Events
from autotune.tuning.interrupts import InterruptCounter
from autotune.tuning.live_rig import START_SILENCE_S
from autotune.tuning.start import first_start
from autotune.tuning.surroundings import THIS_MACHINE, Surroundings


@dataclass(frozen=True)
class NoiseFloor:
    """What equal configs gave.

    Attributes:
        ratio: The speedup that was measured where there is none.
        windows_spread_pct: Standard deviation of the windows of one process, as percent.
        processes_spread_pct: The same of the processes' means; None with one process.
        rounds: Fresh processes.
    """

    ratio: Interval
    windows_spread_pct: float
    processes_spread_pct: float | None
    rounds: int

    @property
    def claims_a_difference(self) -> bool:
        """The interval excludes 1: a false claim, expected in one of twenty."""
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

    Raises:
        FenceError: when nothing keeps the program from changing the user's files.
        ProgramError: when the program fails or trains too few steps.
    """
    budget = Budget(budget_s, clock=surroundings.clock)
    reports = Reports(events.on_progress, events.warn, events.note)
    with (
        tempfile.TemporaryDirectory(prefix="autotune-") as folder,
        InterruptCounter(events.on_interrupt) as stop,
        surroundings.make_rigs(
            program,
            Path(folder),
            hardware,
            reports=reports,
            options=fence,
            remember=lambda _: None,
            clock=surroundings.clock,
        ) as rigs,
    ):
        events.on_fence(rigs.fence)

        def should_stop() -> Ending | None:
            if stop.requests:
                return Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C")
            return None

        events.on_phase("observing the program")
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
    """Return what a confirmation of equal configs says of the noise."""
    rates = [m.throughput.estimate for m in (*confirmation.baseline, *confirmation.winner)]
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
