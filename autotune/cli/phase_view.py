"""PhaseView: the lines that a search redraws in place on a terminal, ten at most.

It holds what is known, and says how that reads; ``Console`` keeps it up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from autotune.cli.failure_screen import printable
from autotune.results.wording import format_duration
from autotune.tuning.budget import Budget
from autotune.tuning.events import Phase

NAME = 15  # columns of a phase's name
BAR = 20  # columns of the budget's bar
OPEN = "not"  # how what a phase says begins where it has found nothing out
SPINNER, TURNS_S = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", 0.1
# What a phase is about, until it begins
ABOUT = {
    Phase.AS_WRITTEN: "starts the program and measures it",
    Phase.SAME_TRAINING: "same losses with the settings that change speed alone?",
    Phase.TRY: "configs take turns while it trains",
    Phase.CONFIRM: "in fresh processes",
}


@dataclass
class Row:
    """One phase.

    Attributes:
        said: What is known of it, as a clause.
        began_s: When it began the last time, in seconds of the budget; None before that.
        took_s: Seconds that it took; None while it is not over.
    """

    said: str = ""
    began_s: float | None = None
    took_s: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has begun and is not over."""
        return self.began_s is not None and self.took_s is None


@dataclass
class PhaseView:
    """What a search shows of itself.

    Attributes:
        head: The opening lines; the first one names program and machine.
        now: What the running phase does at present.
        best: The best config so far with its speedup; empty before one is known.
        doubt: A sentence that the user should not miss, the latest one.
        waits_for: Returns the last line that the program printed, until its first step.
        is_over: Whether the search is over: phases that have not begun are left out then.
    """

    budget: Budget | None = None
    head: list[str] = field(default_factory=list)
    rows: dict[Phase, Row] = field(default_factory=lambda: {phase: Row() for phase in Phase})
    now: str = ""
    best: str = ""
    doubt: str = ""
    waits_for: Callable[[], str] | None = None
    is_over: bool = False

    @property
    def spent_s(self) -> float:
        """Seconds of the budget used so far; 0 before it counts."""
        return 0.0 if self.budget is None else self.budget.spent_s

    @property
    def waited(self) -> str:
        """How long the program has made no step, and what it printed last; empty afterwards."""
        if self.waits_for is None:
            return ""
        said = self.waits_for()
        waited = f"{format_duration(self.spent_s)} without a step yet"
        return f"{waited}; it printed: {said}" if said else waited

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines, cut to the width of the terminal."""
        width = options.max_width
        for text in (*self._head(), *self._rows(width), *self._doubt()):
            text.truncate(width, overflow="ellipsis")
            text.no_wrap = True
            yield text

    def _head(self) -> Iterator[Text]:
        for number, line in enumerate(self.head):
            yield Text(printable(line), style="bold" if not number else "")

    def _rows(self, width: int) -> Iterator[Text]:
        rows = [*self.rows.values()]
        for nth, (phase, row) in enumerate(self.rows.items()):
            if row.is_running and not self.is_over:
                mark = SPINNER[int(self.spent_s / TURNS_S) % len(SPINNER)]
                text = Text(f" {mark} {phase:<{NAME}} ", style="bold")
                yield text + self._running(phase)
                if phase is Phase.TRY and self.best:
                    yield Text(f"   {'':<{NAME}} best  {printable(self.best)}", style="green")
            elif row.took_s is not None:
                took = f"  {format_duration(row.took_s)}"
                # A phase that has found nothing out is not ticked off
                is_open = not row.said or row.said.lower().startswith(OPEN)
                mark, said = "·" if is_open else "✓", printable(row.said or f"{OPEN} finished")
                text = Text(f" {mark} {phase:<{NAME}} {said}")
                text.truncate(width - len(took), overflow="ellipsis", pad=True)
                yield text + Text(took, style="dim")
            elif not self.is_over:
                is_left_out = any(other.began_s is not None for other in rows[nth:])
                about = "left out" if is_left_out else ABOUT[phase]
                yield Text(f" · {phase:<{NAME}} {about}", style="dim")

    def _running(self, phase: Phase) -> Text:
        said = "; ".join(filter(None, (self.rows[phase].said, self.now, self.waited)))
        text = Text(printable(said or ABOUT[phase]))
        return (self._bar() + text) if phase is Phase.TRY else text

    def _bar(self) -> Text:
        total_s = 0.0 if self.budget is None else self.budget.total_s
        full = round(BAR * min(1.0, self.spent_s / total_s)) if total_s else 0
        return Text("━" * full, style="green") + Text("─" * (BAR - full) + "  ", style="dim")

    def _doubt(self) -> Iterator[Text]:
        if self.doubt:
            yield Text(f" ! {printable(self.doubt)}", style="yellow")
