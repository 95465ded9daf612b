"""Live view: what a terminal shows of a search while it runs, in a few lines that are redrawn."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from autotune.integrations.progress import SearchProgress
from autotune.results.wording import format_duration

BAR = 28  # characters of the budget's bar


class LiveView:
    """The state of a search as lines: phase and budget, the best config, the present one, and why.

    Args:
        progress: The state, which the search's events keep up to date.
    """

    def __init__(self, progress: SearchProgress) -> None:
        self._progress = progress

    def __rich__(self) -> Group:
        """Return the lines; rich calls this several times a second."""
        progress = self._progress
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        # A config may be longer than the terminal is wide: then it is cut, not wrapped.
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_row(progress.phase, Text(self._budget_line))
        if progress.best is not None:
            table.add_row("best", Text(str(progress.best), style="green"))
        if progress.now:
            table.add_row("now", Text(progress.now))
        if progress.why:
            table.add_row("why", Text(progress.why, style="dim"))
        if progress.chart:
            table.add_row("trials", Text(f"{progress.chart}  {len(progress.speedups)}"))
        return Group(table)

    @property
    def _budget_line(self) -> str:
        budget = self._progress.budget
        if budget is None:
            return ""
        done = round(BAR * self._progress.spent_share)
        return f"{'━' * done}{'─' * (BAR - done)} {format_duration(budget.left_s)} left"
