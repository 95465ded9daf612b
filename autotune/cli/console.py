"""Console: what a person sees on stderr while a search runs.

Three lines open a search: the machine, the program, and what is tuned. On a terminal a live view
follows, above which a line stays for each config that is better than all before it. Elsewhere a
plain line is printed for each trial. stdout stays free for results.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO, cast

from rich.console import Console as RichConsole
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from autotune.cli.messages import Messages, Verbosity, plain
from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.measurement import warnings_of
from autotune.program.config import Config
from autotune.program.fence_options import FenceKind
from autotune.results.record import SearchInfo, TrialRecord
from autotune.results.verdict import changes_of
from autotune.results.wording import by_reason, format_duration, rate
from autotune.rig.fence import Fence
from autotune.tuning.budget import Budget
from autotune.tuning.choosing.diagnosis import Diagnosis
from autotune.tuning.events import Events

BAR = 28  # columns of the budget's bar


@dataclass
class LiveView:
    """What a search does at present, which the console keeps up to date.

    Attributes:
        budget: Wall time used and left; None before the search begins.
        best: The best config so far with its speedup; empty before one was measured.
        now: The present config; empty between two.
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


NAMED = 6  # knobs in the opening lines; -v lists the values of all
WHOLE = 10_000  # columns; more than any line has
PADDING = re.compile(r" +(?=\n)")
SAFE = {
    FenceKind.OVERLAY: "trials leave your files as they are",
    FenceKind.LANDLOCK: "trials cannot write to your files",
    FenceKind.GUARD: "Python's writes to your files are kept apart, those of C libraries are not",
}


class Console(Messages, Events):
    """Prints on stderr what happens in a search.

    It is the ``Events`` of the command line; the search calls its hooks on the main thread.
    """

    def __init__(self, verbosity: Verbosity = Verbosity.NORMAL) -> None:
        super().__init__(verbosity)
        self._view = LiveView()
        self._live: Live | None = None
        self._program = ""
        self._most = 1.0  # speedup of the best config that was printed

    def on_search_start(self, head: SearchInfo, run: str, budget: Budget) -> None:
        """Introduce machine and program, and start the live view on a terminal."""
        self._view.budget = budget
        hardware = head.hardware
        gpus = ", ".join(g.name for g in hardware.gpus) or "no GPU"
        torch = hardware.versions.get("torch", "")
        self._say(
            f"[bold]machine[/]  {plain(hardware.cpu_name)}, {hardware.cpu_quota} cores, "
            f"{plain(gpus)}, torch {plain(torch)}"
        )
        self._program = f"{head.program} (run {run})"
        for warning in hardware.warnings:
            self.warn(warning)
        if self._talk.is_terminal and self._verbosity > Verbosity.QUIET:
            self._live = Live(self._view, console=self._talk, refresh_per_second=4, transient=True)
            self._live.start()

    def end(self) -> None:
        """Remove the live view; harmless if there is none."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def on_phase(self, name: str) -> None:
        """Show which phase of the search begins."""
        self._view.phase, self._view.now, self._view.why = name, "", ""
        if self._live is None:
            self._say(f"[bold]{name}[/]")

    def on_resume(self, records: Sequence[TrialRecord]) -> None:
        """Print how many trials earlier sessions left."""
        self._say(f"[bold]resumed[/] with {len(records)} trials")

    def on_diagnosis(self, diagnosis: Diagnosis, space: ResolvedSpace) -> None:
        """Print what is tuned and for how long; in detail also the values, and why not the rest."""
        budget = self._view.budget
        left = "" if budget is None else f", {format_duration(budget.left_s)} left"
        named = ", ".join([*space.domains][:NAMED])
        more = len(space.domains) - NAMED
        self._say(
            f"[bold]tuned[/]    {plain(named)}{f' and {more} more' if more > 0 else ''}{left}; "
            "Ctrl-C ends it early with the best so far"
            + (
                f" [dim](-v: values, and why {len(space.refused)} knobs are not searched)[/]"
                if self._verbosity < Verbosity.VERBOSE
                else ""
            )
        )
        self._say(f"  {diagnosis.verdict}: {diagnosis.evidence}")
        for knob, domain in space.domains.items():
            values = ", ".join(map(str, domain.values))
            self._detail(f"{knob}: {values} (now {space.baseline[knob]})")
        for reason, knobs in by_reason(space.refused).items():
            self._detail(f"not searched: {', '.join(knobs)} ({reason})")

    def on_trial_end(self, number: int, record: TrialRecord, space: ResolvedSpace) -> None:
        """Print the result of a trial; on a terminal only of the baseline and of failures.

        Trial 0 is the baseline, which is shown in samples/s. Later ones show their speedup over it.
        """
        changes = plain(difference(record.config, space))
        if record.measurement is None or record.speedup is None:
            reason = record.ending.reason if record.ending else ""
            self._say(f"  {number:3d}  {record.outcome}: {plain(reason)}  [dim]{changes}[/]")
            return
        measured = record.measurement.throughput
        if number == 0:
            self._say(f"    0  {plain(rate(measured))} samples/s as written")
            for warning in warnings_of([record.measurement]):
                self.warn(f"       {warning}")
            return
        if self._live is not None and self._verbosity is not Verbosity.VERBOSE:
            return
        style = "green" if record.speedup.low > 1 else "default"
        compilation = record.measurement.compilation
        beside = f", {compilation}" if compilation is not None and compilation.graphs else ""
        if (share := record.measurement.communication_share) is not None:
            beside += f", communication {share:.0%} of a step"
        self._say(
            f"  {number:3d}  about [{style}]{record.speedup.estimate:.2f}x[/]  "
            f"{measured.estimate:,.0f} samples/s  {changes}  [dim]{record.cost_s:.1f}s{beside}[/]"
        )

    def on_trial_start(self, config: Config, why: str, space: ResolvedSpace) -> None:
        """Show the config that is measured, and why."""
        self._view.now, self._view.why = difference(config, space), why

    def on_rounds(self, best: Config, speedup: float, space: ResolvedSpace) -> None:
        """Show the best config; on a terminal, a line stays of each that is better than before."""
        before, changes = self._view.best, difference(best, space)
        self._view.best = f"about {speedup:.2g}x  {changes}"
        self._view.now, self._view.why = "configs take turns", ""
        is_new = before.partition("  ")[2] != changes
        if is_new and speedup > self._most and self._live is not None:
            self._say(f"  {plain(self._view.best)}")
        self._most = max(self._most, speedup)

    def on_rehearsal(self, config: Config, space: ResolvedSpace) -> None:
        """Print which config is run with short epochs, beyond its training loop."""
        self._view.now = difference(config, space)
        self._say(
            f"  {plain(self._view.now)}: running short epochs, to check the code that runs after "
            "an epoch"
        )

    def on_confirmation(self, candidate: TrialRecord, space: ResolvedSpace) -> None:
        """Print which config is compared with the baseline in fresh processes."""
        self._view.now = difference(candidate.config, space)
        self._say(f"  baseline against {plain(self._view.now)}, in fresh processes")

    def on_interrupt(self, requests: int) -> None:
        """Tell the user what Ctrl-C does."""
        self.warn(
            "Ending the search. A config that looks faster is still confirmed; Ctrl-C again skips "
            "that."
            if requests == 1
            else "Skipping the confirmation. Ctrl-C again aborts at once."
        )

    def on_fence(self, fence: Fence) -> None:
        """Print what keeps trials from changing the user's files, and what that does not cover."""
        safe = fence.sentence if self._verbosity is Verbosity.VERBOSE else SAFE[fence.kind]
        about = f"[bold]program[/]  {plain(self._program)}; " if self._program else ""
        self._say(f"{about}{plain(safe)}")
        for warning in fence.warnings:
            self.warn(warning)


def difference(config: Config, space: ResolvedSpace) -> str:
    """Return how a config differs from the program as written; ``baseline`` if it does not."""
    return changes_of(config, space.baseline) or "baseline"


def results_console() -> RichConsole:
    """Return the console for results on stdout.

    On a terminal, tables and sentences are folded at its width. Elsewhere each line stays whole,
    so that other programs can read it.
    """
    found = RichConsole(highlight=False)
    if found.is_terminal:
        return found
    file = cast("TextIO", _WithoutPadding())
    return RichConsole(highlight=False, soft_wrap=True, width=WHOLE, file=file)


class _WithoutPadding:
    """Standard output, whose lines end where their text does: tables pad their last column."""

    def __getattr__(self, name: str) -> Any:  # its encoding, and to flush it
        return getattr(sys.stdout, name)

    def write(self, text: str) -> int:
        return sys.stdout.write(PADDING.sub("", text))
