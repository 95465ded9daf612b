"""Console: what a person sees on stderr while a search runs.

On a terminal a few lines are redrawn in place: program and machine, what the budget holds, and the
four phases, each of which shrinks to one line when it is over. Doubts show where they arise, and
are printed whole at the end. Elsewhere each phase is one line, printed when it ends. stdout stays
free for results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.live import Live

from autotune.cli.messages import Messages, Verbosity, plain
from autotune.cli.phase_view import NAME, PhaseView
from autotune.knobs.space.space import HELD, ResolvedSpace
from autotune.program.config import Config
from autotune.program.fence_options import FenceKind
from autotune.program.flags import as_text
from autotune.results.record import ClaimProcess, SearchInfo, TrialRecord
from autotune.results.wording import by_reason, format_duration, listing, number, typed_duration
from autotune.rig.fence import Fence
from autotune.rig.wire import Progress
from autotune.tuning.budget import Budget
from autotune.tuning.choosing.diagnosis import Diagnosis
from autotune.tuning.events import Events, Phase, answer_to_interrupt

if TYPE_CHECKING:  # it loads numpy
    from autotune.results.result import SearchResult
    from autotune.tuning.budget import Reach

LINE = 80  # columns of an opening line; -v lists all settings with their values
SILENT_S = 15.0  # without a step, after which a pipe is told so, once
SAFE = {
    FenceKind.OVERLAY: "files are not touched",
    FenceKind.LANDLOCK: "your files cannot be written",
    FenceKind.GUARD: "C libraries may write to your files",
}


class Talk(Messages, Events):
    """Prints on stderr what a command tells that measures and does not search."""

    def on_fence(self, fence: Fence) -> None:
        """Print what keeps the program from changing files, and what that does not cover."""
        safe = fence.sentence if self._verbosity is Verbosity.VERBOSE else SAFE[fence.kind]
        self._say(plain(safe))
        for warning in fence.warnings:
            self.warn(warning)


class Console(Messages, Events):
    """Prints on stderr what happens in a search.

    It is the ``Events`` of the command line; the search calls its hooks on the main thread.

    Attributes:
        show: Prints a result.
    """

    def __init__(self, verbosity: Verbosity = Verbosity.NORMAL) -> None:
        super().__init__(verbosity)
        self.show: Callable[[SearchResult], None] = lambda _: None
        self._view = PhaseView()
        self._live: Live | None = None
        self._phase: Phase | None = None
        self._tried = self._failed = 0
        self._fresh: list[float] = []  # speedups in fresh processes
        self._doubts: list[str] = []  # to be printed whole

    def on_search_start(self, head: SearchInfo, run: str, budget: Budget) -> None:
        """Introduce program and machine."""
        self._view = PhaseView(budget)
        self._phase, self._tried, self._failed, self._fresh = None, 0, 0, []
        hardware = head.hardware
        gpus = ", ".join(gpu.name for gpu in hardware.gpus) or "no GPU"
        cores = f"{hardware.cpu_quota} core{'s' * (hardware.cpu_quota != 1)}"
        machine = f"{hardware.cpu_name}, {cores}, {gpus}"
        self._view.head = [f"autotune  {head.program}  ·  {machine}"]
        if (sharing := head.options.sharing) is not None:
            verb = "serves" if sharing.serves else "joins"
            self._view.head.append(f"{verb} the study '{sharing.name}' at {sharing.storage}")
        self._detail(f"search {run}, torch {hardware.versions.get('torch', '')}")
        for warning in hardware.warnings:
            self.warn(warning)

    def on_fence(self, fence: Fence) -> None:
        """End the introduction, and show the phases on a terminal."""
        budget = self._view.budget
        total = "" if budget is None else f"{format_duration(budget.total_s)}  ·  "
        self._view.head += [f"{total}{SAFE[fence.kind]}  ·  Ctrl-C ends early, keeps the best"]
        self._detail(fence.sentence)
        if self._talk.is_terminal and self._verbosity > Verbosity.QUIET:
            self._live = Live(self._view, console=self._talk, refresh_per_second=4)
            self._live.start()
        else:
            for line in self._view.head:
                self._say(plain(line))
        for warning in fence.warnings:
            self.warn(warning)

    def on_start(self, printed: Callable[[], str]) -> None:
        """Show what the program prints, until it makes a step."""
        self._view.waits_for = printed

    def on_progress(self, progress: Progress) -> None:
        """Note the first step; where nothing is redrawn, say once that it takes long."""
        view = self._view
        if view.waits_for is None:
            return
        if progress.steps or progress.phase != "start-up":
            view.waits_for = None
        elif self._live is None and view.spent_s > SILENT_S:
            self._say(f"{Phase.AS_WRITTEN:<{NAME}} {plain(view.waited)}")
            view.waits_for = None

    def on_phase(self, phase: Phase) -> None:
        """Show which phase begins; the one before it is over."""
        if phase is self._phase:
            return
        self._end_phase()
        view, self._phase = self._view, phase
        row = view.rows[phase]
        row.began_s, row.took_s, view.now = view.spent_s - (row.took_s or 0.0), None, ""

    def on_resume(self, records: Sequence[TrialRecord]) -> None:
        """Take what earlier sessions measured."""
        self._phase = Phase.AS_WRITTEN
        self._view.rows[self._phase].began_s = self._view.spent_s
        for nth, record in enumerate(records):
            self._count(nth, record)

    def on_diagnosis(self, diagnosis: Diagnosis, space: ResolvedSpace, held: Reach) -> None:
        """Say what limits the program, and what the budget holds; in detail also the values."""
        row = self._view.rows[Phase.AS_WRITTEN]
        row.said = f"{row.said}; {diagnosis.short}"
        self._end_phase()
        budget = self._view.budget
        for line in told_of(held, 0.0 if budget is None else budget.total_s):
            self._view.head.append(line)
            if self._live is None:
                self._say(plain(line))
        self._detail(f"{diagnosis.verdict}: {diagnosis.evidence}")
        for knob, domain in space.domains.items():
            values = ", ".join(map(str, domain.values))
            self._detail(f"{knob}: {values} (now {space.baseline[knob]})")
        for reason, knobs in by_reason(space.refused).items():
            self._detail(f"not searched: {', '.join(knobs)} ({reason})")

    def on_trial_start(self, config: Config, why: str, space: ResolvedSpace) -> None:  # noqa: ARG002
        """Show the config that enters."""
        self._view.now = f"now {named(config, space)}"

    def on_trial_end(self, number: int, record: TrialRecord, space: ResolvedSpace) -> None:
        """Count a trial; in detail, print its speedup."""
        self._count(number, record)
        if not number or self._verbosity is not Verbosity.VERBOSE:
            return
        changes, speedup = plain(named(record.config, space)), record.speedup
        if speedup is None:
            reason = record.ending.reason if record.ending else ""
            self._say(f"  {number:3d}  {record.outcome}: {plain(reason)}  {changes}")
            return
        may_win = "  [green]may be the fastest[/]" if speedup.low > 1 else ""
        self._say(f"  {number:3d}  about {speedup.estimate:.2g}x  {changes}{may_win}")

    def on_rounds(self, best: Config, speedup: float, space: ResolvedSpace) -> None:
        """Show the best config."""
        self._view.now = ""
        self._view.best = f"about {speedup:.2g}x  {named(best, space)}"

    def on_rehearsal(self, config: Config, space: ResolvedSpace) -> None:
        """Show which config is run with short epochs, beyond its training loop."""
        self._view.now = f"short epochs of {named(config, space)}"

    def on_confirmation(self, candidate: TrialRecord, space: ResolvedSpace) -> None:
        """Show which config is compared with the program as written in fresh processes."""
        self._view.rows[Phase.CONFIRM].said = ""
        self._view.now = f"as written against {named(candidate.config, space)}"

    def on_process(self, process: ClaimProcess) -> None:
        """Show what each fresh process says."""
        self._fresh.append(process.ratio.interval.estimate)
        figures = " ".join(f"{speedup:.2g}x" for speedup in self._fresh)
        self._view.now = f"{_processes(len(self._fresh))}: {figures}"

    def on_interrupt(self, requests: int, confirm_s: float) -> None:
        """Tell the user what Ctrl-C does, which means nothing once the search is over."""
        self._show(answer_to_interrupt(requests, confirm_s))

    def on_result(self, result: SearchResult) -> None:
        """Leave the screen to the result."""
        self.end()
        self.show(result)

    def on_search_end(self) -> None:
        """End the last phase, and leave the screen to the result."""
        if self._view.waits_for is None and self._view.rows[Phase.AS_WRITTEN].said:
            self._end_phase()
        self.end()

    def end(self) -> None:
        """Leave the last lines as they are, and print whole what they cut; harmless twice."""
        live, self._live = self._live, None
        if live is None:
            return
        self._view.doubt, self._view.is_over = "", True
        live.stop()
        while self._doubts:
            self.warn(self._doubts.pop(0))
        self._say("")  # before the result

    def note(self, text: str) -> None:
        """Show a sentence that may be missed, in the row of the phase that it is of."""
        self._detail(text)
        # Of these two phases it is what they have found
        if self._phase in {Phase.SAME_TRAINING, Phase.CONFIRM}:
            self._view.rows[self._phase].said = text.rstrip(".")
        else:
            self._view.now = text

    def warn(self, text: str) -> None:
        """Show a doubt in the view, and print it whole at the end; elsewhere, print it now."""
        self._show(text)
        if self._live is not None and text not in self._doubts:
            self._doubts.append(text)

    def _show(self, doubt: str) -> None:
        if self._live is None:
            super().warn(f"! {doubt}")
        else:
            self._view.doubt = doubt

    def _end_phase(self) -> None:
        phase, self._phase = self._phase, None
        if phase is None:
            return
        view, row = self._view, self._view.rows[phase]
        row.took_s, view.waits_for = view.spent_s - (row.began_s or 0.0), None
        if phase is Phase.TRY:
            row.said = self._of_trials()
        elif phase is Phase.CONFIRM and self._fresh:
            row.said = f"in {_processes(len(self._fresh))}"
        if self._live is None:
            said = f"{plain(row.said)}  " if row.said else ""
            self._say(f"{phase:<{NAME}} {said}[dim]({format_duration(row.took_s)})[/]")

    def _count(self, nth: int, record: TrialRecord) -> None:
        rows = self._view.rows
        if not nth and record.measurement is not None:
            rate = number(record.measurement.throughput.estimate)
            rows[Phase.AS_WRITTEN].said = f"{rate} samples/s"
        self._tried += bool(nth)
        self._failed += bool(nth) and record.measurement is None
        rows[Phase.TRY].said = f"{self._tried} tried" if self._tried else ""

    def _of_trials(self) -> str:
        failed = f" ({self._failed} without a result)" if self._failed else ""
        best = f", best {self._view.best}" if self._view.best else ""
        return f"{self._tried} tried{failed}{best}"


def told_of(held: Reach, total_s: float) -> Iterator[str]:
    """Yield what a budget holds of the settings, and what it does not, as two lines at most."""
    budget = format_duration(total_s)
    if held.tried:
        before = f"In {budget}: "
        yield before + listing(held.tried, LINE - len(before))
    said = ""
    if held.spare:
        said = f"only if time is left: {listing(held.spare, LINE // 4)}"
    if held.missed:
        known = (one.budget_s for one in held.missed if math.isfinite(one.budget_s))
        needed = max(known, default=0.0)
        typed = f" (--budget {typed_duration(needed)})" if needed else ""
        before, after = f"Not in {budget}: ", "; ".join(filter(None, [typed, said]))
        names = [one.what for one in held.missed]
        said = before + listing(names, LINE - len(before + after)) + after
    if said:
        yield said[0].upper() + said[1:]


def _processes(count: int) -> str:
    return "1 fresh process" if count == 1 else f"{count} fresh processes"


def named(config: Config, space: ResolvedSpace) -> str:
    """Return what a config changes: ``workers 1 · precision bf16``; ``as written`` if nothing."""
    changes = config.changes_from(space.baseline).items()
    told = [f"{knob} {as_text(value)}" for knob, value in changes if knob not in HELD]
    return " · ".join(told) or "as written"
