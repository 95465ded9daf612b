"""Console: what a person sees on stderr while a search runs.

On a terminal a live line shows the phase, the time left, the current config and the best speedup so
far. Elsewhere, plain lines are printed as things happen. stdout stays free for results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console as RichConsole
from rich.live import Live
from rich.text import Text

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.interval import Interval
from autotune.program.config import Config
from autotune.results.record import SearchInfo, TrialRecord
from autotune.rig.fence import Fence
from autotune.rig.wire import Progress
from autotune.tuning.budget import Budget, format_duration
from autotune.tuning.choosing.bounds import bounded, sentences
from autotune.tuning.choosing.diagnosis import Diagnosis
from autotune.tuning.events import Events


@dataclass
class _State:
    """The contents of the live line."""

    budget: Budget | None = None
    phase: str = "starting"
    config: str = ""
    samples_per_s: float | None = None
    best: Interval | None = None

    def __rich__(self) -> Text:
        left = f"{format_duration(self.budget.left_s)} left" if self.budget else ""
        rate = f"{self.samples_per_s:,.0f} samples/s" if self.samples_per_s else ""
        best = f"best {self.best.estimate:.2f}x" if self.best else ""
        parts = [p for p in (self.phase, left, best, rate, self.config) if p]
        # A config may be longer than the terminal is wide: then it is cut, not wrapped.
        return Text(" · ".join(parts), style="dim", no_wrap=True, overflow="ellipsis")


UNKNOWN = 100.0  # ratio of the bounds of an interval from which its figures mean nothing


class Console(Events):
    """Prints on stderr what happens in a search.

    It is the ``Events`` of the command line; the search calls its hooks on the main thread.
    """

    def __init__(self) -> None:
        self._talk = RichConsole(stderr=True, highlight=False, soft_wrap=True)
        self._state = _State()
        self._live: Live | None = None

    def on_search_start(self, head: SearchInfo, run: str, budget: Budget) -> None:
        """Introduce the search, and start the live line on a terminal."""
        hardware = head.hardware
        gpus = ", ".join(g.name for g in hardware.gpus) or "no GPU"
        self._state.budget = budget
        self._say(f"[bold]autotune[/] {plain(head.program)} · {hardware.cpu_quota} cores, {gpus}")
        self._say(
            f"  run {plain(run)}, budget {format_duration(budget.total_s)}; Ctrl-C ends it early "
            "with the best so far"
        )
        for warning in hardware.warnings:
            self.warn(warning)
        if self._talk.is_terminal:
            self._live = Live(self._state, console=self._talk, refresh_per_second=4, transient=True)
            self._live.start()

    def end(self) -> None:
        """Remove the live line; harmless if there is none."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def on_phase(self, name: str) -> None:
        """Print which phase of the search begins."""
        self._state.phase, self._state.config, self._state.samples_per_s = name, "", None
        self._say(f"[bold]{name}[/]")

    def on_resume(self, records: Sequence[TrialRecord]) -> None:
        """Print how many trials earlier sessions left."""
        self._say(f"[bold]resumed[/] with {len(records)} trials")

    def on_diagnosis(self, diagnosis: Diagnosis, space: ResolvedSpace) -> None:
        """Print where the baseline's time goes, and which knobs are searched or not."""
        self._say(f"  {diagnosis.verdict}: {diagnosis.evidence}")
        for knob, domain in space.domains.items():
            values = ", ".join(map(str, domain.values))
            now = space.baseline[knob]
            self._say(f"  [dim]{plain(f'{knob}: {values} (now {now})')}[/]")
        for reason, knobs in _by_reason(space.refused).items():
            self._say(f"  [dim]not searched: {', '.join(knobs)} ({plain(reason)})[/]")
        in_vain = bounded(diagnosis.shares, asked=space.asked | space.requested)
        searched = {knob: share for knob, share in in_vain.items() if knob in space.domains}
        for sentence in sentences(searched):
            self._say(f"  [dim]not tried at first: {plain(sentence)}[/]")

    def on_trial_start(self, config: Config, why: str, space: ResolvedSpace) -> None:
        """Show the config that is being measured in the live line."""
        self._state.config = f"{_changes(config, space)}  ({why})"
        self._state.samples_per_s = None

    def on_progress(self, progress: Progress) -> None:
        """Show the throughput of the latest block in the live line."""
        self._state.samples_per_s = progress.samples_per_s

    def on_trial_end(self, number: int, record: TrialRecord, space: ResolvedSpace) -> None:
        """Print the result of a trial.

        Trial 0 is the baseline, which is shown in samples/s. Later ones show their speedup over it.
        """
        changes = plain(_changes(record.config, space)) + (" again" if record.is_again else "")
        if record.measurement is None or record.speedup is None:
            reason = record.ending.reason if record.ending else ""
            self._say(f"  {number:3d}  {record.outcome}: {plain(reason)}  [dim]{changes}[/]")
            return
        rate = record.measurement.throughput
        if number == 0:
            self._say(f"    0  {rate.estimate:,.0f} samples/s as written {bounds(rate)}")
            for warning in record.measurement.warnings:
                self.warn(f"       {warning}")
            return
        best = self._state.best
        # Lower bounds are compared: the highest estimate is often the noisiest one.
        is_best = best is None or record.speedup.low > best.low
        if is_best:
            self._state.best = record.speedup
        style = "bold green" if is_best and record.speedup.low > 1 else "default"
        compilation = record.measurement.compilation
        beside = f", {compilation}" if compilation is not None and compilation.graphs else ""
        if (share := record.measurement.communication_share) is not None:
            beside += f", communication {share:.0%} of a step"
        self._say(
            f"  {number:3d}  [{style}]{record.speedup.estimate:.2f}x[/] {bounds(record.speedup)}  "
            f"{rate.estimate:,.0f} samples/s  {changes}  [dim]{record.cost_s:.1f}s{beside}[/]"
        )

    def on_rehearsal(self, config: Config, space: ResolvedSpace) -> None:
        """Print which config is run with short epochs, beyond its training loop."""
        self._state.config = _changes(config, space)
        self._say(
            f"  {plain(_changes(config, space))}: running short epochs, to check the code "
            "that runs after an epoch"
        )

    def on_confirmation(self, candidate: TrialRecord, space: ResolvedSpace) -> None:
        """Print which config is compared with the baseline in fresh processes."""
        self._state.config = _changes(candidate.config, space)
        self._say(
            f"  baseline against {plain(_changes(candidate.config, space))}, in fresh processes "
            "that alternate"
        )

    def on_interrupt(self, requests: int) -> None:
        """Tell the user what Ctrl-C does."""
        self.warn(
            "Ending the search. A config that looks faster is still confirmed; Ctrl-C again skips "
            "that."
            if requests == 1
            else "Skipping the confirmation."
        )

    def on_fence(self, fence: Fence) -> None:
        """Print what keeps trials from changing the user's files, and what that does not cover."""
        self.note(fence.sentence)
        for warning in fence.warnings:
            self.warn(warning)

    def note(self, text: str) -> None:
        """Print a sentence of information."""
        self._say(f"  {plain(text)}")

    def warn(self, text: str) -> None:
        """Print a sentence that the user should not miss."""
        self._say(f"[yellow]{plain(text)}[/]")

    def error(self, message: str, program_traceback: str = "") -> None:
        """Print an error; the program's own traceback comes first."""
        self.end()
        if program_traceback:
            self._talk.print(Text(program_traceback.rstrip()))
        self._talk.print(Text("autotune: ", style="bold red") + Text(message))

    def _say(self, markup: str) -> None:
        self._talk.print(markup)


def plain(value: object) -> str:
    """Return text with its square brackets escaped, so that rich does not read them as markup."""
    return str(value).replace("[", r"\[")


def bounds(interval: Interval) -> str:
    """Return an interval's bounds as text, escaped for rich, with decimals that fit its size.

    Bounds that are far apart say no more than that nothing is known.
    """
    if interval.high > UNKNOWN * interval.low:
        return r"\[too uncertain to say]"
    digits = 2 if interval.estimate < 100 else 0
    return rf"\[{interval.low:,.{digits}f}, {interval.high:,.{digits}f}]"


def _changes(config: Config, space: ResolvedSpace) -> str:
    changes = config.changes_from(space.baseline)
    return " ".join(f"{knob}={value}" for knob, value in changes.items()) or "baseline"


def _by_reason(refused: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the refused knobs grouped by reason, so that each reason is printed once."""
    found: dict[str, list[str]] = {}
    for knob, reason in refused.items():
        found.setdefault(reason, []).append(knob)
    return found
