"""The noise floor: what a confirmation says of two equal configs on this machine (A/A)."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from autotune import first_start
from autotune.budget import Budget
from autotune.confirm import Confirmation, Contest, confirm
from autotune.console import Console
from autotune.failures import program_error
from autotune.fence import STRONGEST, FenceOptions
from autotune.hardware import Hardware
from autotune.live_rig import START_SILENCE_S
from autotune.measurement import Interval
from autotune.outcome import Ending, Outcome
from autotune.program import Program
from autotune.rig import Reports
from autotune.rigs import Rigs
from autotune.setting import Setting
from autotune.spacefile import load
from autotune.stop import Stop


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
    console: Console,
    fence: FenceOptions = STRONGEST,
) -> NoiseFloor:
    """Confirm a program against itself until the budget is used up.

    Raises:
        FenceError: when nothing keeps the program from changing the user's files.
        ProgramError: when the program fails or trains too few steps.
    """
    budget = Budget(budget_s)
    reports = Reports(console.progress, console.warn, console.note)
    with (
        tempfile.TemporaryDirectory(prefix="autotune-") as folder,
        Stop(console.stopping) as stop,
        Rigs(program, Path(folder), hardware, reports, fence) as rigs,
    ):
        console.fenced(rigs.fence)

        def give_up() -> Ending | None:
            if stop.requests:
                return Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C")
            return None

        console.phase("observing the program")
        started = first_start.observe(rigs, give_up, START_SILENCE_S)
        if isinstance(started, Ending):
            raise program_error(program, started)
        with started:
            ready = started.ready
        space = load("default").resolve(hardware, ready.profile)
        base = Setting.as_written(space.baseline, ready.profile)
        console.phase("comparing the program with itself, in fresh processes")
        contest = Contest(rigs, space, base, base.config, give_up, is_full_length=True)

        def has_time_for(seconds: float, *, is_needed: bool) -> bool:  # noqa: ARG001
            return not stop.requests and budget.left_s > seconds

        outcome = confirm(contest, [], lambda _: None, has_time_for)
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
