"""Events: what a search tells whoever watches it; every hook does nothing by default.

The search calls each hook at the moment that its name says, always on the main thread. ``Console``
overrides the hooks that a person should read; a test overrides those that it counts. This is the
pattern of Fabric's callbacks: a subclass overrides only what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.knobs.space.space import ResolvedSpace
from autotune.program.config import Config
from autotune.results.record import SearchInfo, TrialRecord
from autotune.rig.fence import Fence
from autotune.rig.wire import Progress
from autotune.tuning.budget import Budget
from autotune.tuning.diagnosis import Diagnosis


class Events:
    """Hooks of a search. A hook that raises ends the search."""

    def on_search_start(self, head: SearchInfo, run: str, budget: Budget) -> None:
        """Called once, before the program is started; *run* is the name of the run directory."""

    def on_fence(self, fence: Fence) -> None:
        """Called when the fence stands that keeps trials from changing the user's files."""

    def on_phase(self, name: str) -> None:
        """Called when a part of the search begins, with its name as users read it."""

    def on_resume(self, records: Sequence[TrialRecord]) -> None:
        """Called instead of measuring the baseline when an earlier session measured it."""

    def on_diagnosis(self, diagnosis: Diagnosis, space: ResolvedSpace) -> None:
        """Called when the baseline's bottleneck is known, before the first config is tried."""

    def on_trial_start(self, config: Config, why: str, space: ResolvedSpace) -> None:
        """Called before a config is measured; *why* says where the proposal came from."""

    def on_progress(self, progress: Progress) -> None:
        """Called for each block of steps that the program has made."""

    def on_trial_end(self, number: int, record: TrialRecord, space: ResolvedSpace) -> None:
        """Called when a trial has been recorded; trial 0 is the baseline."""

    def on_rehearsal(self, config: Config, space: ResolvedSpace) -> None:
        """Called before a config runs through short epochs in a fresh process."""

    def on_confirmation(self, candidate: TrialRecord, space: ResolvedSpace) -> None:
        """Called before the candidate is compared with the baseline in fresh processes."""

    def on_interrupt(self, requests: int) -> None:
        """Called for each Ctrl-C; *requests* counts them from 1."""

    def note(self, text: str) -> None:
        """Called with a sentence that the user may want to know."""

    def warn(self, text: str) -> None:
        """Called with a sentence that the user must not miss."""
