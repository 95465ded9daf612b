"""SearchProgress: the state of a running search, which the terminal and notebooks show."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.knobs.space.space import ResolvedSpace
from autotune.program.config import Config
from autotune.results.record import SearchInfo, TrialRecord
from autotune.results.verdict import changes_of
from autotune.tuning.budget import Budget
from autotune.tuning.events import Events

LEVELS = "▁▂▃▄▅▆▇█"
SHOWN = 40  # trials in the small chart


@dataclass(frozen=True)
class Best:
    """The best config so far.

    Attributes:
        speedup: Over the baseline, roughly: rounds go on.
        changes: How it differs from the program as written.
    """

    speedup: float
    changes: str

    def __str__(self) -> str:
        """Return both, as views show them."""
        return f"about {self.speedup:.2g}x  {self.changes}"


@dataclass
class SearchProgress:
    """What a search does at present, and what it has found so far.

    Attributes:
        budget: Wall time used and left; None before the search begins.
        phase: What the search does.
        config: The present config, as a difference to the program as written; empty between two.
        why: Why it is tried.
        speedups: Of the trials that were measured, the baseline left out.
        best: None before a config was measured.
        is_over: Whether the search has ended.
    """

    budget: Budget | None = None
    phase: str = "starting"
    config: str = ""
    why: str = ""
    speedups: list[float] = field(default_factory=list)
    best: Best | None = None
    is_over: bool = False

    @property
    def spent_share(self) -> float:
        """Share of the budget that is used, 0 to 1."""
        if self.budget is None:
            return 0.0
        return min(1.0, max(0.0, self.budget.spent_s / self.budget.total_s))

    @property
    def chart(self) -> str:
        """The speedups of the latest trials as a row of bars; empty for fewer than two."""
        return sparkline(self.speedups) if len(self.speedups) > 1 else ""

    @property
    def now(self) -> str:
        """What it does at present; empty if nothing is tried."""
        return self.config

    def switch(self, config: str = "", why: str = "") -> None:
        """Show another config, or none."""
        self.config, self.why = config, why


class FollowingEvents(Events):
    """Events that keep a ``SearchProgress`` up to date.

    The views of a running search derive from it. A hook that they override calls this one first.

    Attributes:
        progress: The present state.
    """

    def __init__(self) -> None:
        self.progress = SearchProgress()

    def on_search_start(self, head: SearchInfo, run: str, budget: Budget) -> None:
        """Take the budget."""
        self.progress.budget = budget

    def on_phase(self, name: str) -> None:
        """Enter a phase, in which no config is tried yet."""
        self.progress.phase = name
        self.progress.switch()

    def on_trial_start(self, config: Config, why: str, space: ResolvedSpace) -> None:
        """Take the config that is measured next."""
        self.progress.switch(difference(config, space), why)

    def on_rounds(self, best: Config, speedup: float, space: ResolvedSpace) -> None:
        """Take the best config so far, which is known roughly."""
        self.progress.best = Best(speedup, difference(best, space))
        self.progress.switch("configs take turns")

    def on_trial_end(self, number: int, record: TrialRecord, space: ResolvedSpace) -> None:
        """Take the speedup of a trial other than the baseline, if it was measured."""
        if number and record.speedup is not None:
            self.progress.speedups.append(record.speedup.estimate)

    def on_rehearsal(self, config: Config, space: ResolvedSpace) -> None:
        """Take the config that is run with short epochs."""
        self.progress.switch(difference(config, space))

    def on_confirmation(self, candidate: TrialRecord, space: ResolvedSpace) -> None:
        """Take the config that is compared with the baseline."""
        changes = difference(candidate.config, space)
        self.progress.switch(changes)
        if candidate.speedup is not None:
            self.progress.best = Best(candidate.speedup.estimate, changes)

    def on_search_end(self) -> None:
        """Take that nothing runs any more."""
        self.progress.is_over = True
        self.progress.switch()


def difference(config: Config, space: ResolvedSpace) -> str:
    """Return how a config differs from the program as written; ``baseline`` if it does not."""
    return changes_of(config, space.baseline) or "baseline"


def sparkline(values: list[float]) -> str:
    """Return the latest values as a row of bars, the lowest and the highest of them apart."""
    shown = values[-SHOWN:]
    low, high = min(shown), max(shown)
    reach = high - low or 1.0
    return "".join(LEVELS[int((len(LEVELS) - 1) * (v - low) / reach)] for v in shown)
