"""Confirmation: baseline and winner in fresh processes, in alternation; the only source of a claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from autotune.config import Config
from autotune.measurement import Interval, Measurement
from autotune.objective import Objective
from autotune.outcome import Ending
from autotune.record import ProcessRecord, Side
from autotune.rig import GiveUp
from autotune.stats import process_mean, process_ratio
from autotune.study import Study

NARROW_PCT = 5.0  # half-width of the speedup at which no further process is worth its time


@dataclass(frozen=True)
class Confirmation:
    """What the fresh processes of one candidate gave."""

    speedup: Interval
    baseline: tuple[Measurement, ...]
    winner: tuple[Measurement, ...]

    @property
    def is_faster(self) -> bool:
        """The whole interval lies above 1."""
        return self.speedup.low > 1.0

    @property
    def is_decided(self) -> bool:
        """More processes would not change what is said."""
        excludes_one = self.speedup.low > 1.0 or self.speedup.high < 1.0
        return excludes_one and self.speedup.half_width_pct <= NARROW_PCT

    @property
    def throughput(self) -> tuple[Interval, Interval]:
        """Samples/s of the baseline and of the winner."""
        return (
            process_mean([m.throughput for m in self.baseline]),
            process_mean([m.throughput for m in self.winner]),
        )


def next_side(done: Sequence[ProcessRecord]) -> Side:
    """Return whose turn it is: A B B A A B B A …, in which a linear drift cancels by fours."""
    winners = sum(p.side is Side.WINNER for p in done)
    baselines = len(done) - winners
    if winners != baselines:
        return Side.WINNER if winners < baselines else Side.BASELINE
    return done[-1].side if done else Side.BASELINE


def confirm(
    study: Study,
    objective: Objective,
    baseline: Config,
    winner: Config,
    give_up: GiveUp,
    has_time_for: Callable[[float], bool],
) -> Confirmation | Ending:
    """Measure both configs in fresh processes until the speedup is decided or time is up.

    Processes of an earlier, interrupted confirmation of the same winner count.

    Args:
        study: Where each process is recorded.
        objective: Starts and measures processes.
        baseline: The program's own config.
        winner: The candidate.
        give_up: Ends the confirmation at once when it gives an Ending.
        has_time_for: Tells whether the budget holds this many seconds more.

    Returns:
        The confirmation, or why there is none: the ending of the process that failed.
    """
    done = [p for p in study.confirmation if p.config in (baseline, winner)]
    while True:
        confirmation = read(done, winner)
        if confirmation is not None and len(done) % 2 == 0:
            pair_s = 2 * sum(p.cost_s for p in done) / len(done)
            if confirmation.is_decided or not has_time_for(pair_s):
                return confirmation
        side = next_side(done)
        config = baseline if side is Side.BASELINE else winner
        began = monotonic()
        result = objective.fresh(config, give_up)
        if isinstance(result, Ending):
            return confirmation or result
        process = ProcessRecord(side, config, result, monotonic() - began)
        study.add_confirmation(process)
        done.append(process)


def read(processes: Sequence[ProcessRecord], winner: Config) -> Confirmation | None:
    """Return what processes say of a winner, None below two on each side."""
    sides: dict[Side, list[Measurement]] = {Side.BASELINE: [], Side.WINNER: []}
    for process in processes:
        if process.side is Side.BASELINE or process.config == winner:
            sides[process.side].append(process.measurement)
    if min(map(len, sides.values())) < 2:
        return None
    speedup = process_ratio(
        [m.throughput for m in sides[Side.WINNER]], [m.throughput for m in sides[Side.BASELINE]]
    )
    return Confirmation(speedup, tuple(sides[Side.BASELINE]), tuple(sides[Side.WINNER]))
