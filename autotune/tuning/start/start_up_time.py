"""Start-up time: what a program does before it trains, and advice for a budget that ends there."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from autotune.errors import BudgetError
from autotune.program.program import Program
from autotune.results.wording import as_typed, format_duration
from autotune.rig.open_rig import tail_of
from autotune.rig.wire import Progress

# A program that made no step for this many seconds, and for as long as this many steps take, no
# longer trains.
SILENT_S = 5.0
SILENT_STEPS = 3
STEPS_WANTED = 30  # enough to observe the program, measure the baseline and try a few configs
STARTS_WANTED = 2  # the first, and one for a config or the confirmation
TRAINS_ELSEWHERE = (
    "If those processes are still preparing, allow more time with --budget. autotune sees training "
    "in ranks that torch.multiprocessing.spawn() or Lightning starts, and in one "
    "multiprocessing.Process at a time. If the program trains in other processes, search a script "
    "that trains in one; autotune can start several ranks of it: --tune devices"
)


@dataclass
class StartUp:
    """What the most recently started rig has reported about its first steps.

    Attributes:
        steps: Before the rig was ready.
        first_s: Seconds from the rig's start to the end of the first step; None before that.
        last_s: Seconds from the rig's start to the end of the last step.
        doing: What the program was last seen doing between steps, as the end of a sentence; empty
            if unknown.
        unseen: Signs of training without any step, as a sentence; empty if there are none.
    """

    clock: Callable[[], float] = monotonic
    steps: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    doing: str = ""
    unseen: str = ""
    _heard: float = 0.0

    def hear(self, progress: Progress) -> None:
        """Note a progress message; those after the start-up only show that the program lives."""
        if progress.phase != "start-up":
            self._heard, self.doing = self.clock(), ""
            return
        if progress.steps < self.steps:  # another rig
            self.steps, self.first_s = 0, None
        self.doing, self.unseen = progress.doing, progress.unseen
        if progress.steps > self.steps:
            self.steps, self.last_s, self._heard = progress.steps, progress.elapsed_s, self.clock()
            self.first_s = self.last_s if self.first_s is None else self.first_s

    @property
    def step_s(self) -> float | None:
        """Seconds per step, without the first; None before the second step ended."""
        if self.first_s is None or self.steps < 2:
            return None
        return (self.last_s - self.first_s) / (self.steps - 1)

    @property
    def silent_s(self) -> float | None:
        """Seconds since the last step, if that is clearly longer than steps take; else None."""
        silent_s = self.clock() - self._heard
        usual_s = SILENT_STEPS * (self.step_s or 0.0)
        return silent_s if self.steps and silent_s > max(SILENT_S, usual_s) else None


def unmeasured(program: Program, budget_s: float, seen: StartUp, log: Path) -> BudgetError:
    """Return the error for a budget that ended before the program was measured as it is written.

    It says how large the budget should be, or what the program was doing instead of training, and
    holds the end of the log of what the program printed.
    """
    if not seen.steps or seen.silent_s is not None:
        return _stands_still(program, budget_s, seen, log)
    assert seen.first_s is not None, "a step was seen"
    took = f"its start-up and first step took {_seconds(seen.first_s)}"
    wanted_s = STARTS_WANTED * (seen.first_s + 1)
    if seen.step_s is None:
        took += ", and the second did not end in time"
        wanted_s += 2 * budget_s
    else:
        took += f", and each later step takes {_seconds(seen.step_s)}"
        wanted_s += STEPS_WANTED * seen.step_s
    enough_s = 10 * math.ceil(max(wanted_s, 2 * budget_s) / 10)
    return BudgetError(
        f"A budget of {format_duration(budget_s)} is too short to measure {program.name} as it is "
        f"written: {took}",
        tail_of(log),
        mend="Search with at least:",
        command=f"autotune search --budget {enough_s}s {program}",
    )


def _stands_still(program: Program, budget_s: float, seen: StartUp, log: Path) -> BudgetError:
    where = f": it {seen.doing}" if seen.doing else ""
    if seen.silent_s is not None:
        steps = "1 step" if seen.steps == 1 else f"{seen.steps} steps"
        what = f"{program.name} made {steps} and then none for {_seconds(seen.silent_s)}{where}"
    else:
        what = (
            f"{program.name} made no step in its budget of {format_duration(budget_s)} and was "
            f"not measured{where}"
        )
    if seen.unseen:
        mend = f"It may train all the same: {seen.unseen}."
    elif "DataLoader" in seen.doing:
        mend = "Do its workers hang? Run it once with num_workers=0, or give more time: --budget."
    elif "processes" in seen.doing:
        mend = f"{TRAINS_ELSEWHERE}."
    else:
        mend = (
            "If one step takes that long, or if it is still preparing, give it more time with "
            "--budget, or less data; if it waits for something, change it so that it does not."
        )
    printed = f"less {shlex.quote(str(as_typed(log)))}"
    return BudgetError(what, tail_of(log), mend=f"{mend} All that it printed:", command=printed)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)
