"""Events: hooks through which a search tells its observers what happens.

A search calls each hook at the moment that its name says, always on the main thread. Every hook
does nothing by default, so a subclass overrides only what it needs, as with Lightning Fabric's
callbacks. ``Console`` overrides the hooks that a person should read, a test those that it checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

from autotune.knobs.space.space import ResolvedSpace
from autotune.program.config import Config
from autotune.results.record import ClaimProcess, SearchInfo, TrialRecord
from autotune.results.result import SearchResult
from autotune.rig.fence import Fence
from autotune.rig.wire import Progress
from autotune.tuning.budget import Budget, Reach
from autotune.tuning.choosing.diagnosis import Diagnosis


class Phase(StrEnum):
    """What a search does, in this order; users read the values.

    A phase may begin again: where all that looked faster fails, other settings are tried.
    """

    AS_WRITTEN = "as written"
    """The program is started and measured as it is."""
    SAME_TRAINING = "same training"
    """The settings that must not change what is trained are compared with the program's own."""
    TRY = "try settings"
    """Configs take turns."""
    CONFIRM = "confirm"
    """The best config is run beyond its training loop, then measured in fresh processes."""


class Events:
    """Base class of search observers, with a hook for each step of a search.

    An exception raised by a hook ends the search.
    """

    def on_search_start(self, head: SearchInfo, run: str, budget: Budget) -> None:
        """Called when a session begins; *run* names the run directory, *budget* counts down."""

    def on_fence(self, fence: Fence) -> None:
        """Called when the fence is up, which keeps trials from changing the user's files."""

    def on_phase(self, phase: Phase) -> None:
        """Called when a phase of the search begins, and with each of its parts."""

    def on_start(self, printed: Callable[[], str]) -> None:
        """Called before the program is first started; *printed* returns the last line it printed.

        The line is of one row, holds no control character, and may be empty.
        """

    def on_resume(self, records: Sequence[TrialRecord]) -> None:
        """Called when an earlier session measured the baseline; all trials so far, it first."""

    def on_diagnosis(self, diagnosis: Diagnosis, space: ResolvedSpace, held: Reach) -> None:
        """Called once the program as written is measured: what limits it, what the budget holds."""

    def on_trial_start(self, config: Config, why: str, space: ResolvedSpace) -> None:
        """Called before a config is measured; *why* says where the proposal came from."""

    def on_progress(self, progress: Progress) -> None:
        """Called with each sign of life of the program: each of its first steps, then at times."""

    def on_rounds(self, best: Config, speedup: float, space: ResolvedSpace) -> None:
        """Called after each few rounds, with what would be recommended now and its speedup.

        It is called once both it and the program as written have played rounds that count: the
        first ones of a config may be 91 times too fast on a machine that swaps.
        """

    def on_trial_end(self, number: int, record: TrialRecord, space: ResolvedSpace) -> None:
        """Called when a trial has been recorded, measured or failed; number 0 is the baseline."""

    def on_rehearsal(self, config: Config, space: ResolvedSpace) -> None:
        """Called before a config is run through short epochs in a fresh process."""

    def on_confirmation(self, candidate: TrialRecord, space: ResolvedSpace) -> None:
        """Called before a candidate is compared with the baseline in fresh processes."""

    def on_process(self, process: ClaimProcess) -> None:
        """Called after each fresh process in which the candidate was compared."""

    def on_interrupt(self, requests: int, confirm_s: float) -> None:
        """Called from the signal handler for each Ctrl-C: 1 ends the search, 2 skips the claim.

        *confirm_s* is about how many seconds the claim that still follows takes; 0 if none does.
        """

    def on_search_end(self) -> None:
        """Called when a session is over, however it ended: with a result or with an error."""

    def on_result(self, result: SearchResult) -> None:
        """Called when the files of a result are written.

        A member that serves its study still goes on with that afterwards.
        """

    def note(self, text: str) -> None:
        """Called with a sentence that the user may want to know; it can be ignored safely."""

    def warn(self, text: str) -> None:
        """Called with a sentence that the user must not miss, such as a doubt about a result."""


def answer_to_interrupt(requests: int, confirm_s: float) -> str:
    """Return what a Ctrl-C does, as ``on_interrupt`` is told it."""
    if requests > 1:
        return "Ending now, without confirming more; Ctrl-C again aborts at once."
    if confirm_s:
        about = f"{confirm_s:.0f} s; Ctrl-C skips it"
        return f"Ending; if a config looks faster, it is confirmed ({about})."
    return "Ending; what was measured until now counts, and nothing more is confirmed."
