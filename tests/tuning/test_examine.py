"""``autotune doctor PROGRAM``: on the scripted machine, and on a real program with a fault."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from autotune.errors import ProgramError
from autotune.measurement.examination import Examination, KeptGraphs
from autotune.tuning.events import Events
from autotune.tuning.examine import examine
from tests.made import HARDWARE, PROGRAM
from tests.rigging import PROGRAMS
from tests.scripted import CRASH, Script, ScriptedMachine

KEPT = Examination(kept_graphs=KeptGraphs(30, 30, "train.py:9"))


def test_what_was_seen_becomes_advice() -> None:
    machine = ScriptedMachine(Script(examination=KEPT))
    report = examine(PROGRAM, HARDWARE, Events(), surroundings=machine.surroundings)
    assert "kept graphs" in [advice.name for advice in report.advice]


def test_a_program_that_fails_is_told_as_a_search_tells_it() -> None:
    machine = ScriptedMachine(Script(ends=lambda question: CRASH))
    with pytest.raises(ProgramError):
        examine(PROGRAM, HARDWARE, Events(), surroundings=machine.surroundings)


@pytest.mark.slow
@pytest.mark.usefixtures("workplace")
def test_a_real_program_with_a_fault_gets_advice_with_its_line() -> None:
    command = [sys.executable, "-m", "autotune", "doctor", "--json", "--quiet"]
    command += [str(PROGRAMS / "faulty.py"), "kept_graphs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    advice = {one["name"]: one for one in found["program"]["advice"]}
    assert advice["kept graphs"]["where"].startswith("faulty.py:")
    assert found["machine"]["conditions"]["cores"] >= 1
