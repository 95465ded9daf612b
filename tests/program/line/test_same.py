"""A program sees the same however it is started: by its own line, and by autotune for that line."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.train import run_plan
from autotune.machine import hardware
from autotune.program.line import Shell, read
from autotune.results import bestfile
from autotune.rig.rig import Rig
from autotune.rig.torchrun_plan import with_ranks
from autotune.rig.wire import Ready
from tests.rigging import PROGRAMS, fence, never, write_best

pytestmark = pytest.mark.slow

PROBE = Path(__file__).with_name("probe.py")
FORMS = (
    "python probe.py --lr 1",
    "python ./sub/../linked.py",
    "python -u -O -W error::UserWarning -X dev probe.py",
    "python -m probe --lr 1",
    "python -um package.train x",
    "python -m package",
    "A='b c' python -P probe.py",
    "PYTHONPATH=sub python -m inner",
    "probe-train --lr 1",
    "cd sub && python ../probe.py",
)

TRAINS = "autotune.inside.train"
# What it does, but for torch and a config
START = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from autotune.inside import run_program
from autotune.program.line import read
del sys.path[0]
run_program.run(read(sys.argv[2:]).program, run_program.RecordedConfig({{}}))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the probe as script, link, modules and console script, and a shell's PATH."""
    home = tmp_path / "a place"
    for file in ("probe.py", "package/train.py", "package/__main__.py", "sub/inner.py"):
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROBE, home / file)
    (home / "package" / "__init__.py").touch()
    (home / "linked.py").symlink_to(home / "package" / "train.py")
    script = home / "bin" / "probe-train"  # as pip writes it, in ~/.local/bin say
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\n{PROBE.read_text()}")
    script.chmod(0o755)
    monkeypatch.chdir(home)
    path = os.pathsep.join((str(script.parent), str(Path(sys.executable).parent), "/usr/bin:/bin"))
    monkeypatch.setenv("PATH", path)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    return home


def outputs(command: list[str], **options: Any) -> list[dict[str, Any]]:
    """Run a command and return what each process of it saw, by rank."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(seen, key=lambda s: s["env"]["RANK"] or "")


def by_autotune(line: str, best: Path) -> list[dict[str, Any]]:
    """Return what the processes see that ``autotune run BEST -- LINE`` starts, without torch."""
    program = read(shlex.split(line)).program
    plan = run_plan(bestfile.read(best), best, program, hardware.detect())
    if TRAINS in plan.argv:
        before, after = plan.argv[: plan.argv.index("-m")], plan.argv[plan.argv.index("-m") + 2 :]
        plan = replace(plan, argv=(*before, "-c", START, *after))
    plan = with_ranks(plan)
    return outputs(list(plan.argv), env={**os.environ, **plan.env})


@pytest.mark.usefixtures("warm_starts")
def test_a_rig_starts_the_ranks_and_the_module_of_a_line(tmp_path: Path) -> None:
    program = (PROGRAMS / "own_ddp.py").read_text()
    (tmp_path / "ddp.py").write_text(f"import os, sys\nprint(os.environ['A'], sys.argv)\n{program}")
    line = "A=seven torchrun --nproc-per-node 2 -m ddp --lr 1"
    subject = read(shlex.split(line), Shell.here(cwd=tmp_path)).program
    with Rig(subject, tmp_path / "rig", tmp_path / "cache", fence()) as rig:
        ready = rig.open(None, never, 120.0)
        said = rig.log.read_text()
    assert isinstance(ready, Ready), ready
    assert ready.profile.ranks.world_size == 2
    assert ready.profile.settings.threads == 1, "torchrun gives each rank one"
    assert f"seven ['{tmp_path / 'ddp.py'}', '--lr', '1']" in said


def test_a_program_sees_what_its_own_line_shows_it(place: Path) -> None:
    bests = place / "nothing.yaml", place / "best.yaml"
    for best, fewer in zip(bests, (0, 1), strict=True):
        write_best(best, {"threads": 2}, threads=2 - fewer)
    for line in (*FORMS, "torchrun --nproc-per-node 2 --standalone probe.py --lr 1"):
        folder, _, typed = line.rpartition(" && ")
        os.chdir(place / folder.removeprefix("cd "))
        native = outputs(["bash", "-c", line], cwd=place)
        for best in bests:
            seen = by_autotune(typed, best)
            differs = {k for a, b in zip(native, seen, strict=True) for k in a if a[k] != b[k]}
            assert not differs, (line, [[(one[k]) for k in differs] for one in (*native, *seen)])
    os.chdir(place)
    # A file that changes nothing starts the program without autotune
    for best, line, is_bare in (
        (bests[0], "A=1 python -u probe.py x", True),
        (bests[0], "probe.py:main", False),
        (bests[1], "A=1 python -u probe.py x", False),
    ):
        plan = run_plan(
            bestfile.read(best), best, read(shlex.split(line)).program, hardware.detect()
        )
        assert (plan.argv == (sys.executable, "-u", "probe.py", "x")) is is_bare, plan
        assert is_bare or TRAINS in plan.argv
        assert plan.env["AUTOTUNE_RUN"] == "1", "an autotune.apply() in it does nothing"
