"""The checks of ``benchmarks/gpu``: they pass, and fail where what they look at is broken.

They run as in a rehearsal, on the CPU, and on a GPU where there is one. A process of its own runs
each of them, as its seams and its switches of torch are those of a whole process.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.gpu import checks, program_check, rigs
from benchmarks.gpu.bench import Bench, Finding, Status
from benchmarks.gpu.checks import Check
from benchmarks.gpu.listed import FOLDER, PROGRAMS
from tests.inside.on_device import PARTS

ROOT = Path(__file__).parents[1]
# The others compile, or run many processes. So many findings of these are looked at; what each
# setting does on a CPU, tests/knobs/test_effects.py shows, and one of them compiles.
QUICK = {"early": 2, "memory": 2, "settings": 1}
ON_CPU = [(name, "cpu") for name in QUICK]
ON_GPU = [pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in rigs.CHECKS]


@dataclass(frozen=True)
class Broken:
    """What is broken where a check looks.

    Attributes:
        code: What the process of the check does first.
        starts: What each process of a program does first.
        script: The program that has other text.
        text: What stands there, and what instead.
    """

    code: str = ""
    starts: str = ""
    script: str = ""
    text: tuple[str, str] = ("", "")


# Compiled code is compared as strategies are, by the same function
FAULTS = {
    "fence": Broken("os.environ['CXX'] = '/nowhere'"),
    "early": Broken(
        starts="import sys\nif any('autotune.inside' in word for word in sys.orig_argv):\n"
        "    import torch\n    torch.cuda.is_available()"
    ),
    "settings": Broken(script="conv.py", text=("in Clock", "in (lambda *a: 1 / 0)() or Clock")),
    "memory": Broken("rigs._limit, rigs.BEYOND = lambda _: None, 2"),  # which trains
    "canary": Broken(
        "rigs.self_check.STEP_S = 1.0",  # few steps
        script="training.py",
        text=(
            "self.labels[which]",
            "self.labels[which] // bool(torch.utils.data.get_worker_info())",
        ),
    ),
    "strategies": Broken(
        script="habits.py",
        text=("loss.backward()", "(loss * (1 + torch.distributed.is_initialized())).backward()"),
    ),
}

# What each part of the check of the seams looks at, in their order
NO_SEAMS = """
from itertools import count
from types import SimpleNamespace
from autotune.inside import readings
from autotune.inside.seams import forward, optimizer, parts, scaling, torch_settings, transfer
from autotune.machine import hardware
from autotune.rig import failures
hardware.detect = lambda: SimpleNamespace(gpus=(None,))
torch_settings.Switch.__call__ = lambda self, value: None
optimizer._use_implementation = lambda optimizer, *_: optimizer.state.clear()
forward.ForwardSeam._lay_out = lambda self, module: None
scaling._Part.overflows = lambda self, scaler: []
transfer.target_of_to = None
parts.PartsClock.ground = lambda self, part: None
readings.Readings.activity = lambda self, counter=count(): next(counter)
failures.ROOM = ()
"""


def findings(check: str, folder: Path, broken: Broken, device: str = "cpu") -> Generator[Status]:
    """Yield how the findings of a check end, as soon as they are found."""
    programs, starts = folder / "programs", folder / "starts"
    shutil.copytree(FOLDER, programs)
    if broken.script:
        path = programs / broken.script
        old, new = broken.text
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    starts.mkdir()
    if broken.starts:
        (starts / "sitecustomize.py").write_text(broken.starts)
    # so that what comes after the first fault is not begun
    one_by_one = "rigs.ThreadPoolExecutor = lambda: nullcontext(SimpleNamespace(map=map))\n"
    env, words = {**os.environ, "PYTHONPATH": str(starts)}, [check]
    if device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
        words.append("--rehearse")
    # Rigs that start as copies do not show what is broken in each start; "inside" starts none
    is_real = device != "cpu" or broken.starts or check == "inside"
    begin = "nullcontext" if is_real else "copies"
    code = (
        "import os; from contextlib import nullcontext; from functools import partial\n"
        "from pathlib import Path; from types import SimpleNamespace\n"
        "from benchmarks.gpu import rigs\n"
        f"rigs.Place = partial(rigs.Place, programs=Path({str(programs)!r}))\n"
        f"{one_by_one}{broken.code}\n"
        f"from tests.warm import copies\nwith {begin}():\n    rigs.main({words})"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    yield Status(json.loads(line)["status"])
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # it closes its rigs


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_each_part_of_the_seams_passes(part: Callable[[str], Finding]) -> None:
    found = part("cpu")
    assert found.status is Status.PASS, found.text


@pytest.mark.slow
@pytest.mark.parametrize(("check", "device"), [*ON_CPU, *ON_GPU])
def test_what_is_sound_passes(check: str, device: str, tmp_path: Path) -> None:
    found = findings(check, tmp_path, Broken(), device)
    with contextlib.closing(found):
        assert set(islice(found, QUICK[check]) if device == "cpu" else found) == {Status.PASS}


@pytest.mark.slow
@pytest.mark.parametrize("check", FAULTS)
def test_what_is_broken_fails(check: str, tmp_path: Path) -> None:
    with contextlib.closing(findings(check, tmp_path, FAULTS[check])) as found:
        assert Status.FAIL in found


@pytest.mark.slow
def test_each_part_of_the_seams_fails_without_what_it_looks_at(tmp_path: Path) -> None:
    assert set(findings("inside", tmp_path, Broken(NO_SEAMS))) == {Status.FAIL}


@pytest.mark.slow
def test_commands_that_fail_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = sys.executable, "-c", "raise SystemExit(1)"
    monkeypatch.setattr(checks, "AUTOTUNE", broken)
    monkeypatch.setattr(program_check, "AUTOTUNE", broken)
    monkeypatch.setattr(program_check, "_rates", lambda *_: {})  # which runs no command
    unknown = checks._apart("unknown", 60.0)
    gpt = next(program for program in PROGRAMS if program.name == "gpt")
    search = Check("gpt", lambda _: 0.0, partial(program_check.found, replace(gpt, settings=())))
    for check in (checks.CHECKS["energy"], checks.CHECKS["doctor"], unknown, search):
        bench = Bench(tmp_path / check.name, 120.0, rehearsal=True)
        found = [finding.status for finding in check.found(bench)]
        assert Status.FAIL in found, check.name
