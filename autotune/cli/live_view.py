"""Live view: what a terminal shows of a search while it runs, in a few lines that are redrawn."""

from __future__ import annotations

from dataclasses import dataclass

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from autotune.results.wording import format_duration
from autotune.tuning.budget import Budget

BAR = 28  # columns of the budget's bar


@dataclass
class LiveView:
    """What a search does at present, which the console keeps up to date.

    Attributes:
        budget: Wall time used and left; None before the search begins.
        phase: What the search does.
        best: The best config so far with its speedup; empty before one was measured.
        now: The present config; empty between two.
        why: Why it is tried.
    """

    budget: Budget | None = None
    phase: str = "starting"
    best: str = ""
    now: str = ""
    why: str = ""

    def __rich__(self) -> Table:
        """Return the lines; rich calls this several times a second."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        # A config may be longer than the terminal is wide: then it is cut, not wrapped.
        table.add_column(no_wrap=True, overflow="ellipsis")
        budget = Table.grid(padding=(0, 1, 0, 0))
        if self.budget is not None:
            bar = ProgressBar(self.budget.total_s, max(0.0, self.budget.spent_s), width=BAR)
            budget.add_row(bar, f"{format_duration(self.budget.left_s)} left")
        table.add_row(self.phase, budget)
        for name, text in (("best", self.best), ("now", self.now), ("why", self.why)):
            if text:
                table.add_row(name, Text(text, style="green" if name == "best" else ""))
        return table
