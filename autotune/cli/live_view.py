"""Live view: what a terminal shows of a search while it runs, in a few lines that are redrawn."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Group
from rich.table import Table
from rich.text import Text

from autotune.measurement.interval import Interval
from autotune.results.wording import format_duration, times
from autotune.tuning.budget import Budget

BAR = 28  # characters of the budget's bar
LEVELS = "▁▂▃▄▅▆▇█"
SHOWN = 40  # trials in the small chart


@dataclass
class LiveView:
    """The state of a search as lines: phase and budget, the best config, the present one, and why.

    Attributes:
        budget: Wall time used and left; None before the search begins.
        phase: What the search does.
        config: The present config, as a difference to the program as written.
        why: Why it is tried.
        samples_per_s: Of the latest block; None before one.
        trials: Speedups of the trials so far, for the small chart.
    """

    budget: Budget | None = None
    phase: str = "starting"
    config: str = ""
    why: str = ""
    samples_per_s: float | None = None
    trials: list[float] = field(default_factory=list)
    _best: str = ""

    def begin(self, phase: str) -> None:
        """Show another phase, in which no config is tried yet."""
        self.phase, self.config, self.why, self.samples_per_s = phase, "", "", None

    def try_config(self, config: str, why: str) -> None:
        """Show that a config is being measured."""
        self.config, self.why, self.samples_per_s = config, why, None

    def found(self, speedup: Interval, changes: str) -> None:
        """Show the best config so far."""
        self._best = f"{times(speedup)}  {changes}"

    def __rich__(self) -> Group:
        """Return the lines; rich calls this several times a second."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        # A config may be longer than the terminal is wide: then it is cut, not wrapped.
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_row(self.phase, Text(self._budget_line))
        if self._best:
            table.add_row("best", Text(self._best, style="green"))
        if self.config:
            speed = f"  {self.samples_per_s:,.0f} samples/s" if self.samples_per_s else ""
            table.add_row("now", Text(f"{self.config}{speed}"))
        if self.why:
            table.add_row("why", Text(self.why, style="dim"))
        if len(self.trials) > 1:
            table.add_row("trials", Text(f"{sparkline(self.trials)}  {len(self.trials)}"))
        return Group(table)

    @property
    def _budget_line(self) -> str:
        if self.budget is None:
            return ""
        share = min(1.0, max(0.0, self.budget.spent_s / self.budget.total_s))
        done = round(BAR * share)
        return f"{'━' * done}{'─' * (BAR - done)} {format_duration(self.budget.left_s)} left"


def sparkline(values: list[float]) -> str:
    """Return the latest values as a row of bars, the lowest and the highest of them apart."""
    shown = values[-SHOWN:]
    low, high = min(shown), max(shown)
    reach = high - low or 1.0
    return "".join(LEVELS[int((len(LEVELS) - 1) * (v - low) / reach)] for v in shown)
