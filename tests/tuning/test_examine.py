"""``autotune doctor PROGRAM``: on the scripted machine, and on real programs."""

import json

import pytest

from autotune.cli.doctor_report import show_program
from autotune.errors import ProgramError
from autotune.machine.hardware import detect
from autotune.measurement.examination import Operators, StepBreakdown, StepParts
from autotune.program.program import parse_program
from autotune.results.advice import advise
from autotune.tuning.events import Events
from autotune.tuning.examine import examine
from tests.made import HARDWARE, PROGRAM
from tests.rigging import PROGRAMS, run_command
from tests.scripted import CRASH, Script, ScriptedMachine

MANY_OPERATORS = StepBreakdown(
    StepParts(0.0, 0.0, 0.09, 0.01, 0.0, 0.0, 10), operators=Operators(1000, 1e-4, 0.1)
)
pytestmark = pytest.mark.slow


def test_what_was_seen_becomes_a_table_and_advice(capsys: pytest.CaptureFixture[str]) -> None:
    machine = ScriptedMachine(Script(breakdown=MANY_OPERATORS))
    report = examine(PROGRAM, HARDWARE, Events(), surroundings=machine.surroundings)
    assert "launch-bound" in [advice.name for advice in advise(report)]
    show_program(report)
    printed = capsys.readouterr().out
    for word in ("samples/s", "data wait", "optimizer", "data always ready", "at most", "1. The"):
        assert word in printed


def test_a_program_that_fails_is_told_as_a_search_tells_it() -> None:
    machine = ScriptedMachine(Script(ends=lambda question: CRASH))
    with pytest.raises(ProgramError):
        examine(PROGRAM, HARDWARE, Events(), surroundings=machine.surroundings)


@pytest.mark.usefixtures("warm_starts", "workplace")
def test_a_loop_that_feeds_its_own_loader_is_measured_although_the_loader_is_silent_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("autotune.tuning.examine.PATIENCE_S", 4.0)
    program = parse_program(str(PROGRAMS / "feeds_its_loader.py"))
    report = examine(program, detect(), Events())
    assert report.breakdown == StepBreakdown()
    show_program(report)
    assert "could not be profiled" in capsys.readouterr().out


@pytest.mark.usefixtures("workplace")
def test_a_program_that_prompts_is_told_with_its_question_and_its_own_traceback() -> None:
    done = run_command("doctor", str(PROGRAMS / "first_contact.py"), "input")
    assert done.returncode == 2
    told = " ".join(done.stderr.split())
    assert "first_contact.py" in told
    asked = 'it asks for input ("Where is the data set?"), got none and ended: EOFError'
    assert asked in told
    assert "pass the answer by a flag" in told


@pytest.mark.usefixtures("workplace")
def test_a_real_program_with_a_fault_gets_advice_with_its_line() -> None:
    done = run_command("doctor", "--json", "--quiet", str(PROGRAMS / "faulty.py"), "sleep")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    advice = {one["name"]: one for one in found["program"]["advice"]}
    assert advice["input-bound: waiting"]["where"].startswith("faulty.py:")
    assert sum(found["program"]["parts"].values()) == pytest.approx(
        found["program"]["step_s"], rel=0.5
    )
    assert found["machine"]["conditions"]["cores"] >= 1
