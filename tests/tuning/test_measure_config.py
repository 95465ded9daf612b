"""`autotune measure` and `autotune doctor`, as they are typed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from autotune.cli import fact_sheet
from autotune.errors import ProgramError
from autotune.machine.hardware import detect
from autotune.measurement.interval import Interval
from autotune.measurement.step_breakdown import StepBreakdown
from autotune.program.config import Config
from autotune.program.program import parse_program
from autotune.results.measure_report import MeasureReport
from autotune.tuning.events import Events
from autotune.tuning.measure_config import measure_config
from autotune.tuning.noise_floor import NoiseFloor, measure_noise_floor
from tests.made import A100, HARDWARE, PROGRAM, make_hardware, make_measurement, make_profile
from tests.rigging import PROGRAMS, open_rig, write_best
from tests.scripted import Script, ScriptedMachine

pytestmark = pytest.mark.usefixtures("warm_starts")

KEYS = (
    "command config hardware profile measurements breakdown machine_warnings throughput "
    "tokens_per_s step_s joules_per_sample split roofline_share warnings"
)
SCRIPT = str(PROGRAMS / "slow_items.py")


def autotune(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autotune", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_measure_under_a_config_gives_json_for_scripts(workplace: Path) -> None:
    with open_rig(workplace / "rig", "slow_items.py") as rig:
        loader = rig.profile.training_loader
        write_best(Path("best.yaml"), dict(rig.base.baseline), loader, workers=2)
    done = autotune("measure", "--processes", "1", "--config", "best.yaml", "--json", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert "process 1 of 1" in done.stderr
    facts = json.loads(done.stdout)
    assert " ".join(facts) == KEYS
    assert facts["config"]["workers"] == 2
    assert len(facts["measurements"]) == 1
    assert sum(facts["split"].values()) == pytest.approx(facts["step_s"], rel=0.5)
    assert facts["throughput"]["low"] <= facts["throughput"]["estimate"]


def test_a_program_that_prompts_is_told_with_its_question_and_its_own_traceback(
    workplace: Path,
) -> None:
    done = autotune("measure", str(PROGRAMS / "first_contact.py"), "input")
    assert done.returncode == 2
    assert "first_contact.py" in done.stderr
    asked = 'it asks for input ("Where is the data set?"), got none and ended: EOFError'
    assert asked in done.stderr
    assert "pass the answer by a flag" in done.stderr


def test_doctor_describes_the_machine_and_wants_a_program_for_aa(workplace: Path) -> None:
    done = autotune("doctor")
    assert done.returncode == 0, done.stderr
    assert "cores for this process" in done.stdout
    assert autotune("doctor", "--aa").returncode == 2


def test_doctor_measures_the_noise_floor(capsys: pytest.CaptureFixture[str]) -> None:
    machine = ScriptedMachine(Script(ratio_noise=0.05), seed=3)
    floor = measure_noise_floor(
        PROGRAM, HARDWARE, 300.0, Events(), surroundings=machine.surroundings
    )
    assert floor.processes >= 2
    assert floor.processes_spread_pct is not None
    assert 0 < floor.error_pct < 5
    assert floor.ratio.low <= 1 <= floor.ratio.high
    assert not floor.claims_a_difference
    fact_sheet.show_noise_floor(floor)
    said = capsys.readouterr().out
    assert "The program against itself: " in said
    assert "cannot be told from noise" in said


def test_the_smallest_speedup_that_can_be_shown_is_the_wider_side_of_the_interval(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for ratio, said in (
        (Interval(1.0, 0.98, 1.02), "below about 1.02x"),
        (Interval(2.0, 0.4, 10.0), "below about 5.00x"),
    ):
        fact_sheet.show_noise_floor(NoiseFloor(ratio, 1.0, 1.0, 3))
        printed = capsys.readouterr().out
        assert said in printed
        assert ("Close other programs" in printed) is ("5.00x" in said)


def test_the_facts_of_a_script_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    machine = ScriptedMachine(Script())
    report = measure_config(PROGRAM, None, HARDWARE, 1, Events(), surroundings=machine.surroundings)
    fact_sheet.show(report)
    printed = capsys.readouterr().out
    for word in ("samples/s", "data wait", "optimizer", "data always ready"):
        assert word in printed


def test_a_loop_that_feeds_its_own_loader_is_measured_although_the_loader_is_silent_alone(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("autotune.tuning.live_rig.PROFILE_SILENCE_S", 4.0)
    program = parse_program(str(PROGRAMS / "feeds_its_loader.py"))
    report = measure_config(program, None, detect(), 1, Events())
    assert report.breakdown == StepBreakdown()
    fact_sheet.show(report)
    assert "could not be profiled" in capsys.readouterr().out


def test_later_processes_are_announced_with_how_long_the_earlier_ones_took() -> None:
    class Listens(Events):
        said: ClassVar[list[str]] = []

        def on_phase(self, name: str) -> None:
            self.said.append(name)

    machine = ScriptedMachine(Script(start_s=40.0))
    measure_config(PROGRAM, None, HARDWARE, 3, Listens(), surroundings=machine.surroundings)
    first, second, _third = Listens.said
    assert first == "process 1 of 3"
    found = re.fullmatch(r"process 2 of 3, about (4\d|5\d)s", second)
    assert found, second


def test_ctrl_c_in_a_later_process_keeps_what_the_earlier_ones_gave() -> None:
    class Interrupts(Events):
        def on_phase(self, name: str) -> None:
            if name.startswith("process 3 of 3"):
                signal.raise_signal(signal.SIGINT)

    machine = ScriptedMachine(Script())
    report = measure_config(
        PROGRAM, None, HARDWARE, 3, Interrupts(), surroundings=machine.surroundings
    )
    assert len(report.measurements) == 2


def test_ctrl_c_in_the_first_process_leaves_nothing_to_report() -> None:
    class Interrupts(Events):
        def on_phase(self, name: str) -> None:
            signal.raise_signal(signal.SIGINT)

    machine = ScriptedMachine(Script())
    with pytest.raises(ProgramError):
        measure_config(PROGRAM, None, HARDWARE, 3, Interrupts(), surroundings=machine.surroundings)


def test_arithmetic_is_compared_with_the_peak_of_its_own_type() -> None:
    profile = make_profile(device="cuda", autocast="bfloat16")
    measurement = make_measurement()
    flops = 0.4 * 312e12 * measurement.step_s  # A100: 312 TFLOP/s in bf16
    config = Config({"precision": "fp32"})
    facts = MeasureReport(
        "train.py", config, make_hardware(gpus=(A100,)), profile, (measurement,),
        StepBreakdown(flops_per_step=flops),
    )  # fmt: skip
    assert facts.dtype == "bf16"
    assert facts.roofline_share == pytest.approx(0.4)
    on_cpu = MeasureReport(
        "train.py", config, HARDWARE, make_profile(), (measurement,), facts.breakdown
    )
    assert on_cpu.roofline_share is None


def test_processes_that_differ_are_a_doubt() -> None:
    measurements = tuple(make_measurement(r) for r in (1500.0, 1300.0, 1600.0))
    facts = MeasureReport("train.py", Config({}), HARDWARE, make_profile(), measurements)
    assert facts.throughput == Interval(1500.0, 1300.0, 1600.0)
    assert any("Fresh processes differ by 20 %" in warning for warning in facts.warnings)
