"""SearchProgress: the state of a running search, which the terminal and notebooks show."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.interval import Interval
from autotune.program.config import Config
from autotune.results.record import SearchInfo, TrialRecord
from autotune.results.verdict import changes_of
from autotune.rig.wire import Progress
from autotune.tuning.budget import Budget
from autotune.tuning.events import Events

LEVELS = "▁▂▃▄▅▆▇█"
SHOWN = 40  # trials in the small chart


@dataclass(frozen=True)
class Best:
    """The best config so far, by the lower bounds of the speedups.

    Attributes:
        speedup: Over the baseline: of its trial, and of all its visits once it is confirmed.
        changes: How it differs from the program as written.
    """

    speedup: Interval
    changes: str


@dataclass
class SearchProgress:
    """What a search does at present, and what it has found so far.

    Attributes:
        budget: Wall time used and left; None before the search begins.
        phase: What the search does.
        config: The present config, as a difference to the program as written; empty between two.
        why: Why it is tried.
        samples_per_s: Of the latest block; None before one.
        speedups: Of the trials that were measured, the baseline left out.
        best: None before a config was measured.
        is_over: Whether the search has ended.
    """

    budget: Budget | None = None
    phase: str = "starting"
    config: str = ""
    why: str = ""
    samples_per_s: float | None = None
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
        """The present config and its latest throughput; empty if there is neither."""
        rate = f"{self.samples_per_s:,.0f} samples/s" if self.samples_per_s else ""
        return "  ".join(filter(None, (self.config, rate)))

    def switch(self, config: str = "", why: str = "") -> None:
        """Show another config, or none."""
        self.config, self.why, self.samples_per_s = config, why, None


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

    def on_progress(self, progress: Progress) -> None:
        """Take the throughput of the latest block."""
        self.progress.samples_per_s = progress.samples_per_s

    def on_trial_end(self, number: int, record: TrialRecord, space: ResolvedSpace) -> None:
        """Take the speedup of a trial other than the baseline, if it was measured."""
        if number == 0 or record.speedup is None:
            return
        progress, speedup = self.progress, record.speedup
        progress.speedups.append(speedup.estimate)
        # Lower bounds are compared: the highest estimate is often the noisiest one.
        if progress.best is None or speedup.low > progress.best.speedup.low:
            progress.best = Best(speedup, difference(record.config, space))

    def on_rehearsal(self, config: Config, space: ResolvedSpace) -> None:
        """Take the config that is run with short epochs."""
        self.progress.switch(difference(config, space))

    def on_confirmation(self, candidate: TrialRecord, space: ResolvedSpace) -> None:
        """Take the config that is compared with the baseline, which is the best by all visits."""
        changes = difference(candidate.config, space)
        self.progress.switch(changes)
        if candidate.speedup is not None:
            self.progress.best = Best(candidate.speedup, changes)

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
