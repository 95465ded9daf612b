"""What a person sees on stderr while a search runs, on a terminal of 80 x 24 and in a pipe.

Searches run on the scripted machine, so each line can be compared with what is true.
"""

import io
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.live import _RefreshThread

from autotune.cli.console import Console
from autotune.cli.messages import Verbosity
from autotune.cli.phase_view import PhaseView
from autotune.measurement.outcome import Ending, Outcome
from autotune.results.finding import Finding
from autotune.results.result import SearchResult
from autotune.rig.wire import Progress
from autotune.tuning.budget import Budget, Missed, Reach
from autotune.tuning.choosing.diagnosis import Bottleneck, Diagnosis
from autotune.tuning.events import Events, Phase
from autotune.tuning.race import LEAST_ROUNDS
from tests.exports.stored import KNOBS
from tests.made import make_hardware, make_profile, make_space
from tests.scripted import Script, begin

WIDTH, HEIGHT, MOST_LINES = 80, 24, 10
FASTER = Script({"workers": {1: 1.5, 2: 1.3}})
TRIAL = re.compile(r"^ +(\d+)  about ([\d.]+)x  (.*)$", re.MULTILINE)


class Terminal(io.StringIO):
    """Standard error on a terminal."""

    def isatty(self) -> bool:
        return True


class Sampled(Console):
    """Takes the screen after each thing that a search tells."""

    def __init__(self, verbosity: Verbosity = Verbosity.NORMAL) -> None:
        super().__init__(verbosity)
        self.screens: list[list[str]] = []


def _sampling(name: str) -> Callable[..., None]:
    def told(self: Sampled, *args: Any) -> None:
        getattr(Console, name)(self, *args)
        self.screens.append(screen_of(self._view))

    return told


for hook in [name for name in vars(Events) if not name.startswith("_")]:
    setattr(Sampled, hook, _sampling(hook))


def screen_of(view: PhaseView) -> list[str]:
    terminal = RichConsole(file=io.StringIO(), width=WIDTH, height=HEIGHT, color_system=None)
    with terminal.capture() as captured:
        terminal.print(view)
    return captured.get().splitlines()


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard error a terminal; no fixture, because pytest sets it after these."""
    seen = Terminal()
    monkeypatch.setattr("sys.stderr", seen)
    for name, value in (("COLUMNS", WIDTH), ("LINES", HEIGHT), ("TERM", "xterm")):
        monkeypatch.setenv(name, str(value))
    return seen


def searched(
    folder: Path, console: Console, script: Script = FASTER, budget_s: float = 300.0
) -> SearchResult:
    try:
        return begin(folder, script, KNOBS).go_on(budget_s, console)
    finally:
        console.end()
        for thread in threading.enumerate():  # rich lets the one that redraws end by itself
            if isinstance(thread, _RefreshThread):
                thread.join()


@pytest.mark.parametrize("budget_s", [30.0, 90.0, 300.0])
def test_a_terminal_shows_four_phases_in_ten_lines_of_80_columns_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget_s: float
) -> None:
    on_terminal(monkeypatch)
    console = Sampled()
    searched(tmp_path, console, replace(FASTER, noise=0.2), budget_s)
    assert len(console.screens) > 10
    for screen in console.screens:
        assert len(screen) <= MOST_LINES, screen
        assert all(cell_len(line) <= WIDTH for line in screen), screen
    during = [screen for screen in console.screens if any("━" in line for line in screen)]
    for screen in during:
        rows = [line.split(maxsplit=1)[1] for line in screen if re.match(r" \S ", line)]
        assert [phase for phase in Phase if any(row.startswith(phase) for row in rows)] == [*Phase]
    over = console.screens[-1]
    assert not any("━" in line for line in over)
    unknown = [line for line in over if line.startswith(" · ")]
    assert all("Not compared" in line or "not finished" in line for line in unknown), unknown


def test_what_stays_on_a_terminal_is_one_line_for_each_phase_and_each_doubt_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, console = on_terminal(monkeypatch), Sampled()
    doubt = "other programs use the CPU, " * 8 + "so the interval gets wider"
    begin_on = Sampled.on_phase

    def on_phase(self: Sampled, phase: Phase) -> None:
        begin_on(self, phase)
        if phase is Phase.TRY:
            self.on_interrupt(1, 46.0)
            self.warn(doubt)

    console.on_phase = on_phase.__get__(console)  # type: ignore[method-assign]
    searched(tmp_path, console)
    last = console.screens[-1]
    rows = [line for line in last if line.startswith(" ✓ ")]
    assert [row[3:18].strip() for row in rows] == [*Phase]
    assert all(re.search(r" \d+m? ?\d*s?$| \d+ s$", row) for row in rows), rows
    lines = [line for screen in console.screens for line in screen]
    assert any(line.startswith(" ! other programs") for line in lines)
    left = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert doubt in " ".join(left.split())
    assert any("Ctrl-C skips it" in line for line in lines)
    assert "Ctrl-C skips it" not in left.rpartition("confirm")[2], (
        "once the search is over, it skips nothing"
    )


def test_a_pipe_gets_one_line_for_each_phase_when_it_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    searched(tmp_path, Console())
    lines = capsys.readouterr().err.splitlines()
    head, rows = lines[:2], [line for line in lines if line.startswith(tuple(Phase))]
    assert head[0].startswith("autotune  train.py")
    assert "files are not touched" in head[1]
    assert [line[:15].strip() for line in rows] == [*Phase]
    assert re.search(r"^as written +[\d,]+ samples/s; .*\(\d+ s\)$", rows[0])
    assert "tried, best about 1.5x  workers 1" in rows[2]
    assert any(line.startswith("In 5m: workers, ") for line in lines)
    assert not any(TRIAL.match(line) for line in lines)


def test_a_search_that_goes_on_says_what_was_measured_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = begin(tmp_path, FASTER, KNOBS)
    search.go_on(60.0)
    search.go_on(200.0, Console())
    rows = [line for line in capsys.readouterr().err.splitlines() if line.startswith(tuple(Phase))]
    assert re.match(r"as written +[\d,]+ samples/s; .*\(0 s\)$", rows[0])
    (tried,) = (line for line in rows if line.startswith(Phase.TRY))
    assert int(tried.split()[2]) > 5, "those of both sessions"


def test_in_detail_each_trial_is_one_line_with_one_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = searched(tmp_path, Console(Verbosity.VERBOSE))
    said = capsys.readouterr().err
    rows = {int(nth): (float(speedup), its) for nth, speedup, its in TRIAL.findall(said)}
    assert rows.keys() == {n for n, r in enumerate(result.records) if n and r.speedup is not None}
    for nth, (speedup, its) in rows.items():
        record = result.records[nth]
        assert record.speedup is not None
        # Later rounds say more about it, so the record has moved on since
        assert 0.5 * record.speedup.low <= speedup <= 2.0 * record.speedup.high
        assert "samples/s" not in its
        for knob, value in record.config.changes_from(result.baseline).items():
            assert f"{knob} {value}" in its


def test_quiet_prints_warnings_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    searched(tmp_path, Console(Verbosity.QUIET), budget_s=25.0)
    said = capsys.readouterr().err
    assert said
    assert all(line.startswith("! ") for line in said.splitlines())


def test_a_best_config_is_shown_once_its_rounds_count(tmp_path: Path) -> None:
    class Best(Events):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def on_rounds(self, _best: object, speedup: float, _space: object) -> None:
            self.seen.append(speedup)

    best, search = Best(), begin(tmp_path, FASTER, KNOBS)
    search.go_on(120.0, best)
    answers = search.study.rounds  # each of some seconds
    assert 0 < len(best.seen) <= len(answers) - LEAST_ROUNDS + 1


def test_until_the_first_step_the_seconds_and_the_last_line_of_the_program_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now_s = [0.0]
    console = Console()
    console._view = PhaseView(Budget(180.0, clock=lambda: now_s[0]))
    console.on_phase(Phase.AS_WRITTEN)
    console.on_start(lambda: "Downloading: 40%")
    for now_s[0] in (5.0, 16.0, 20.0):
        console.on_progress(Progress("start-up", 0))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("16 s without a step yet; it printed: Downloading: 40%")
    console = Console()
    console._view = view = PhaseView(Budget(180.0, clock=lambda: now_s[0]))
    console.on_phase(Phase.AS_WRITTEN)
    console.on_start(lambda: "Downloading: 60%")
    assert any("it printed: Downloading: 60%" in line for line in screen_of(view))
    console.on_progress(Progress("start-up", 1))
    assert not any("Downloading" in line for line in screen_of(view))


def test_what_a_budget_holds_is_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    space = make_space(["workers"]).resolve(make_hardware(), make_profile())
    refused = {"pinning": "on the CPU", "batch_size": "sums", "cudnn": "on the CPU"}
    held = Reach(
        tuple(f"setting_{n}" for n in range(9)),
        (Missed("compile", 480.0), Missed("devices", 300.0)),
        ("allocator",),
    )
    console = Console(Verbosity.VERBOSE)
    console._view = PhaseView(Budget(180.0))
    diagnosis = Diagnosis(Bottleneck.INPUT_BOUND, "it waits", devices=())
    console.on_diagnosis(diagnosis, replace(space, refused=refused), held)
    lines = capsys.readouterr().err.splitlines()
    named = ", ".join(f"setting_{n}" for n in range(6))
    assert lines[:2] == [
        f"In 3m: {named} + 3 more",
        "Not in 3m: compile, devices (--budget 8m); only if time is left: allocator",
    ]
    assert lines[-2:] == [
        "  not searched: pinning, cudnn (on the CPU)",
        "  not searched: batch_size (sums)",
    ]


def test_where_the_program_fails_no_phase_is_left_on_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    script = Script(ends=lambda _: Ending(Outcome.RAN_OUT, "the program ended after 0 steps"))
    console = Sampled()
    with pytest.raises(Exception, match="nothing to measure"):
        searched(tmp_path, console, script)
    assert len(console.screens[-1]) == 2


def test_a_confirmation_that_ended_is_told_by_its_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = searched(tmp_path, Console())
    assert result.finding is Finding.FASTER
    fresh = sum(not process.is_of_search for process in result.claim)
    assert f"in {fresh} fresh processes" in capsys.readouterr().err


def test_a_phase_that_found_nothing_out_is_not_ticked_off() -> None:
    view = PhaseView()
    for phase, said in ((Phase.AS_WRITTEN, "9 samples/s"), (Phase.SAME_TRAINING, "Not compared")):
        view.rows[phase].said, view.rows[phase].took_s = said, 1.0
    ticked, told = screen_of(view)[:2]
    assert ticked.startswith(" ✓ as written")
    assert told.startswith(" · same training")
