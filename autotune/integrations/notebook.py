"""Notebook: a table in Jupyter that follows a running search."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any

from autotune.integrations.progress import FollowingEvents, SearchProgress
from autotune.knobs.space.space import ResolvedSpace
from autotune.program.config import Config
from autotune.results.record import SearchInfo, TrialRecord
from autotune.results.wording import format_duration
from autotune.rig.wire import Progress
from autotune.tuning.budget import Budget
from autotune.tuning.events import Events

if TYPE_CHECKING:
    from jinja2 import Environment

REFRESH_S = 0.25  # a program that starts reports each of its steps


def events_here() -> Events:
    """Return a view for the notebook whose kernel this process is; elsewhere discard all events.

    IPython is not imported for this, because a kernel has imported it already. In a terminal,
    IPython has a shell without a kernel.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return Events() if getattr(shell, "kernel", None) is None else NotebookView()


class NotebookView(FollowingEvents):
    """Shows one table below the cell, which is replaced when something happens.

    The search calls its hooks on the main thread, where IPython displays.
    """

    def __init__(self) -> None:
        super().__init__()
        self._handle: Any = None  # IPython's, of the one display
        self._shown_at = 0.0
        self._warnings: list[str] = []

    def on_search_start(self, head: SearchInfo, run: str, budget: Budget) -> None:
        """Show the table for the first time."""
        super().on_search_start(head, run, budget)
        self._show()

    def on_phase(self, name: str) -> None:
        """Show which phase begins."""
        super().on_phase(name)
        self._show()

    def on_trial_start(self, config: Config, why: str, space: ResolvedSpace) -> None:
        """Show the config that is being measured, and why."""
        super().on_trial_start(config, why, space)
        self._show()

    def on_progress(self, progress: Progress) -> None:
        """Show the time that is left, unless the table was shown just before."""
        super().on_progress(progress)
        if monotonic() - self._shown_at > REFRESH_S:
            self._show()

    def on_trial_end(self, number: int, record: TrialRecord, space: ResolvedSpace) -> None:
        """Show the best config so far."""
        super().on_trial_end(number, record, space)
        self._show()

    def on_rehearsal(self, config: Config, space: ResolvedSpace) -> None:
        """Show the config that is run with short epochs."""
        super().on_rehearsal(config, space)
        self._show()

    def on_confirmation(self, candidate: TrialRecord, space: ResolvedSpace) -> None:
        """Show the config that is compared with the baseline."""
        super().on_confirmation(candidate, space)
        self._show()

    def on_interrupt(self, requests: int) -> None:
        """Say what the interrupt does, when the table is shown next.

        Nothing is displayed here: a signal handler may have stopped IPython in the middle of that.
        """
        self._warnings.append(
            "Ending the search. A config that looks faster is still confirmed; interrupt again to "
            "skip that."
            if requests == 1
            else "Skipping the confirmation. Interrupt again to abort at once."
        )

    def on_search_end(self) -> None:
        """Show that nothing runs any more."""
        super().on_search_end()
        self._show()

    def warn(self, text: str) -> None:
        """Show a sentence below the table, where it stays."""
        self._warnings.append(text)
        self._show()

    def _show(self) -> None:
        from IPython.display import HTML, display

        self._shown_at = monotonic()
        page = HTML(live_table(self.progress, self._warnings))
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)


def live_table(progress: SearchProgress, warnings: Sequence[str] = ()) -> str:
    """Return the state of a search as a fragment of HTML that brings its own styles.

    Args:
        progress: The state.
        warnings: Sentences that the user must not miss.
    """
    return (
        _templates()
        .get_template("live_table.html.jinja")
        .render(
            progress=progress,
            best="" if progress.best is None else str(progress.best),
            time=_time(progress),
            warnings=warnings,
        )
    )


def _time(progress: SearchProgress) -> str:
    if (budget := progress.budget) is None:
        return ""
    if progress.is_over:
        return f"after {format_duration(budget.spent_s)}"
    return f"{format_duration(budget.left_s)} left"


@cache
def _templates() -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    # The styles are those of a result's card, which stands in the same notebook
    loaders = [PackageLoader("autotune.integrations"), PackageLoader("autotune.report")]
    return Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
