"""The first start of a program: its mode, or whose fault it is that it does not train."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Self, cast

import pytest

from autotune.errors import UsageError
from autotune.machine.hardware import Hardware
from autotune.measurement.outcome import Cause, Ending, Outcome, RunMode
from autotune.program.program import Program
from autotune.rig.failures import having_asked, program_error
from autotune.rig.open_rig import Reports, ShouldStop
from autotune.rig.rig_factory import RigFactory
from autotune.rig.terminal import Asked
from autotune.rig.wire import Ready
from autotune.tuning.budget import Until
from autotune.tuning.start.first_start import Started, examined, is_piped, observe
from tests.gpu_fakes import MIG_GPU, unused
from tests.made import A100, H100, HARDWARE, PROGRAM, make_hardware, make_profile
from tests.rigging import PROGRAMS, run_command

pytestmark = pytest.mark.usefixtures("warm_starts")

READY = Ready(make_profile(), 1.0)
ENDED = Ending(Outcome.RAN_OUT, "the program ended after 0 steps")
OTHERWISE = Ending(Outcome.CRASHED, "OSError: no such folder", 'File "/home/user/train.py", line 9')
FAILED = Ending(Outcome.CRASHED, "ValueError: not enough", 'File "/home/user/train.py", line 3')
LIVES = None  # until it is given up
OUT_OF_TIME = Ending(Outcome.OUT_OF_TIME, "the budget is used up")

Start = Ready | Ending | None


@dataclass
class ScriptedRig:
    """In a rig's place: a start of a real one takes seconds, and says one thing."""

    start: Start
    asked: Asked | None = None
    is_closed: bool = False

    def open(self, *_: object) -> Start:
        return self.start

    def run_bare(self, should_stop: ShouldStop) -> Ending:
        while self.start is LIVES:
            if ending := should_stop():
                return ending
        assert isinstance(self.start, Ending)
        return self.start

    def log_tail(self) -> str:
        return "usage: train.py [-h] --data DATA\ntrain.py: error: --data is missing"

    def close(self) -> None:
        self.is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class ScriptedRigs:
    """Gives rigs that come out as planned, and notes the modes in which they began."""

    starts: Sequence[Start]
    asked: Asked | None = None
    program: Program = PROGRAM
    hardware: Hardware = HARDWARE
    notes: list[str] = field(default_factory=list)
    terminals: list[bool] = field(default_factory=list)
    made: list[ScriptedRig] = field(default_factory=list)
    remembered: RunMode | None = None
    clock: Callable[[], float] = monotonic

    @property
    def reports(self) -> Reports:
        return Reports(note=self.notes.append)

    @property
    def mode(self) -> RunMode:
        return self.program.mode

    def take_mode(self, mode: RunMode) -> None:
        self.remembered = mode
        self.program = replace(self.program, mode=mode)

    def learn(self, ending: Ending, *, as_written: bool = True) -> bool:
        assert ending.suspect is None, "tests/test_modes.py has those"
        return False

    def new(self) -> ScriptedRig:
        self.terminals.append(self.program.mode.terminal)
        self.made.append(ScriptedRig(self.starts[len(self.made)], self.asked))
        return self.made[-1]

    def observed(self, should_stop: ShouldStop = lambda: None) -> Started | Ending:
        return observe(cast("RigFactory", self), should_stop)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lives on is seen to do so within a moment."""
    monkeypatch.setattr("autotune.tuning.start.first_start.MIN_BARE_S", 0.02)
    monkeypatch.setattr("autotune.tuning.start.first_start.is_piped", lambda: False)


def test_the_gpus_are_those_that_the_program_sees_from_its_first_start_on() -> None:
    seen = (unused(H100), MIG_GPU)
    for ready, gpus in ((replace(READY, devices=seen), seen), (READY, (A100,))):
        rigs = ScriptedRigs([ready], hardware=make_hardware(gpus=(A100,)))
        rigs.observed()
        assert rigs.hardware.gpus == gpus


def test_a_program_that_trains_in_a_terminal_keeps_it_and_its_user_is_told() -> None:
    rigs = ScriptedRigs([FAILED, READY])
    assert isinstance(rigs.observed(), Started)
    assert rigs.made[0].is_closed
    assert rigs.terminals == [False, True]
    assert rigs.remembered == rigs.program.mode == RunMode(terminal=True), "a resume knows it"
    assert rigs.notes[-1] == (
        "train.py needs a terminal: its trials get a terminal of 40 rows and 120 columns."
    )


@pytest.mark.parametrize(
    ("bare", "cause", "said"),
    [
        (FAILED, Cause.PROGRAM, "train fails by itself, before autotune changed anything"),
        (
            OTHERWISE,
            Cause.UNCLEAR,
            "Without autotune it fails in another way: OSError",
        ),
        (replace(FAILED, program_traceback='File "/b.py", line 4'), Cause.UNCLEAR, "another way"),
        (ENDED, Cause.AUTOTUNE, "train fails under autotune only: ValueError: not enough"),
        (LIVES, Cause.AUTOTUNE, "Without autotune it still ran after"),
        (
            Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C"),
            None,
            "Stopped before train",
        ),
    ],
)
def test_whose_fault_a_failure_is_says_a_start_without_seams(
    bare: Start, cause: Cause | None, said: str
) -> None:
    rigs = ScriptedRigs([FAILED, FAILED, bare])
    ending = rigs.observed()
    assert isinstance(ending, Ending)
    assert ending.cause is cause
    assert said in str(program_error(PROGRAM, ending))
    assert rigs.terminals == [False, True, True]
    assert all(rig.is_closed for rig in rigs.made)


def test_what_no_terminal_mends_is_not_tried_in_one() -> None:
    for said in (
        "ModuleNotFoundError: No module named 'timm'",
        "the process died of SIGSEGV",
        "SystemExit: 2",  # after argparse's usage
    ):
        ending = Ending(Outcome.CRASHED, said)
        rigs = ScriptedRigs([ending, ending])
        judged = rigs.observed()
        assert isinstance(judged, Ending)
        assert judged.cause is Cause.PROGRAM
        assert rigs.terminals == [False, True], "without seams, as its user starts it"
        assert not rigs.program.mode.terminal


def test_nobody_is_blamed_where_the_fence_is_in_the_way_or_time_is_up() -> None:
    refused = Ending(Outcome.CRASHED, "OSError: [Errno 30] Read-only file system: '/srv/out'")
    rigs = ScriptedRigs([refused, refused])
    ending = rigs.observed()
    assert isinstance(ending, Ending)
    assert ending.cause is None
    assert "the fence around trials forbids that write" in str(program_error(PROGRAM, ending))
    slow = ScriptedRigs([FAILED])
    judged = examined(cast("RigFactory", slow), FAILED, 300.0, lambda: None)
    assert isinstance(judged, Ending)
    assert judged.cause is Cause.PROGRAM, "a slow start is no reason not to look"
    soon_over = Until(lambda: None, lambda: 50.0, "the budget is used up")
    unclear = examined(cast("RigFactory", ScriptedRigs([])), FAILED, 100.0, soon_over)
    assert unclear.cause is Cause.UNCLEAR
    for took_s, cause in {0.015: Cause.UNCLEAR, 0.001: Cause.AUTOTUNE}.items():
        rigs = ScriptedRigs([LIVES])
        until = Until(lambda: None, lambda: 0.02, "the budget is used up")
        assert examined(cast("RigFactory", rigs), FAILED, took_s, until).cause is cause
    said = str(program_error(PROGRAM, unclear))
    assert "Without autotune there was no time to start it.\nRun it once without autotune" in said


def test_a_program_that_reads_piped_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked("Where?", 0.0, 1)
    assert isinstance(ScriptedRigs([READY], asked).observed(), Started)
    monkeypatch.setattr("autotune.tuning.start.first_start.is_piped", lambda: True)
    assert isinstance(ScriptedRigs([READY]).observed(), Started)
    rigs = ScriptedRigs([READY], asked)
    with pytest.raises(UsageError, match=r"train\.py reads its standard input\. What is piped"):
        rigs.observed()
    assert rigs.made[0].is_closed
    ending = ScriptedRigs([having_asked(FAILED, 0.1, "Where?")]).observed()
    assert isinstance(ending, Ending)
    assert "What is piped into autotune is not passed on" in str(program_error(PROGRAM, ending))


def test_a_pipe_and_a_file_are_piped_and_a_terminal_and_nothing_are_not(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    reading, writing = os.pipe()
    file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    nothing = os.open(os.devnull, os.O_RDONLY)
    opened = {ours: False, theirs: False, reading: True, writing: True, file: True, nothing: False}
    assert {number: is_piped(number) for number in opened} == opened
    for number in opened:
        os.close(number)
    assert not is_piped(file)


def test_a_program_that_asks_for_its_terminal_gets_one(workplace: Path) -> None:
    done = run_command("search", "--dry-run", "-v", str(PROGRAMS / "first_contact.py"), "terminal")
    assert done.returncode == 0, done.stderr
    assert "first_contact.py failed before it trained (ValueError: not enough values" in done.stderr
    assert "first_contact.py needs a terminal: its trials get a terminal of 40 rows" in done.stderr
    assert "batch_size" in done.stdout
