"""Overlays as rigs use them, and what they do otherwise than plain files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.errors import FenceError
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.fence_options import FenceKind, FenceOptions
from autotune.program.program import LaunchPlan, parse_program
from autotune.rig.fence import raise_fence
from autotune.rig.fence.overlay import OverlayFence
from autotune.rig.fence.plan import Cover, Step
from autotune.rig.processes import start
from autotune.rig.rig import Rig
from autotune.rig.wire import Ready
from tests import rigging
from tests.pictures import picture
from tests.rigging import never

pytestmark = pytest.mark.slow


@pytest.fixture
def fence() -> OverlayFence:
    found = rigging.fence()
    if not isinstance(found, OverlayFence):
        pytest.skip(f"no overlays here: {found.warnings}")
    return found


def run_in(view: Any, cwd: Path, code: str) -> str:
    plan = view.fenced(LaunchPlan((sys.executable, "-c", code), str(cwd)), [])
    done = subprocess.run(
        plan.argv, cwd=cwd, pass_fds=plan.pass_fds, capture_output=True, text=True, check=False
    )
    assert view.error() is None
    return done.stdout + done.stderr


def test_what_was_downloaded_before_the_first_step_is_there_in_the_next_rig(
    fence: OverlayFence, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    first = fence.view()
    run_in(first, tmp_path, "open('data/digits', 'w').write('all'); open('out', 'w').write('x')")
    assert first.prepared([tmp_path / "data"], tmp_path) is None
    first.close()
    second = fence.view()
    seen = run_in(second, tmp_path, "import os; print(os.listdir(), open('data/digits').read())")
    second.close()  # 'out' is not there: what one rig writes no other rig sees
    assert seen == "['data'] all\n"
    assert not list((tmp_path / "data").iterdir())


def test_data_that_is_prepared_anew_by_each_trial_is_told_of_and_kept_where_that_is_asked_for(
    fence: OverlayFence, tmp_path: Path
) -> None:
    prepare = (
        "import os; os.makedirs('data/train')\n"
        "for n in range(600): open(f'data/train/{n}', 'w').write('x')"
    )
    view = fence.view()
    run_in(view, tmp_path, prepare)
    said = view.prepared([], tmp_path)
    view.close()
    assert said is not None
    assert "600 files" in said
    assert f"--cache-dir {tmp_path / 'data'}" in said
    with raise_fence(FenceOptions(caches=(tmp_path / "data",)), tmp_path) as keeping:
        first, second = keeping.view(), keeping.view()
        run_in(first, tmp_path, prepare)
        assert first.prepared([], tmp_path) is None
        first.close()
        second.close()
        third = keeping.view()
        count = run_in(third, tmp_path, "import os; print(len(os.listdir('data/train')))")
        third.close()
    assert count == "600\n"
    assert not (tmp_path / "data").exists()


def test_a_program_that_writes_where_the_fence_answers_has_entered_it_all_the_same(
    tmp_path: Path,
) -> None:
    writes = (
        "import os, sys; os.chdir(sys.argv[1])\n"
        "open('answer', 'w').write('{\"error\": \"mine\"}')\n"
        "for number in os.listdir('/proc/self/fd'):\n"
        '    try: os.pwrite(int(number), b\'{"error": "mine"}\', 0)\n'
        "    except OSError: pass\n"
    )
    view = rigging.fence().view()
    argv = (sys.executable, "-c", writes, str(view.own_dir))
    plan = view.fenced(LaunchPlan(argv, str(tmp_path)), [])
    done = subprocess.run(plan.argv, pass_fds=plan.pass_fds, capture_output=True, check=False)
    assert (done.returncode, view.error()) == (0, None)
    view.close()


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_folder_that_somebody_removes_meanwhile_keeps_no_trial_from_starting(
    fence: OverlayFence, tmp_path: Path, *, is_planned: bool
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    fence._steps += (Step(Cover.OVERLAY, str(gone)),)
    view = fence.view()
    if not is_planned:
        gone.rmdir()
    plan = view.fenced(LaunchPlan((sys.executable, "-c", "print('ran')"), str(tmp_path)), [])
    if is_planned:
        gone.rmdir()
    done = subprocess.run(
        plan.argv, cwd=tmp_path, pass_fds=plan.pass_fds, capture_output=True, text=True, check=False
    )
    assert (view.error(), done.stdout) == (None, "ran\n")
    assert view.prepared([], tmp_path) is None
    view.close()


@pytest.mark.usefixtures("warm_starts")
def test_a_trial_that_writes_too_much_ends_and_the_file_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time\n"
        "with open('huge.bin', 'wb') as f:\n"
        "    for _ in range(40):\n        f.write(os.urandom(1 << 20)); f.flush()\n"
        "        time.sleep(0.1)\n"
        "time.sleep(60)\n"
    )
    before = picture(script)
    options = FenceOptions(max_scratch_bytes=5 << 20)
    with raise_fence(options, tmp_path) as small:
        program = parse_program(str(script), [], tmp_path)
        with Rig(program, tmp_path / "rig", tmp_path / "cache", small) as rig:
            ending = rig.open(None, never, 60.0)
    assert not isinstance(ending, Ready)
    assert isinstance(ending, Ending)
    assert ending.outcome is Outcome.SCRATCH_FULL
    assert "huge.bin" in ending.reason
    assert picture(script) == before


@pytest.mark.usefixtures("warm_starts")
def test_a_daemon_that_left_its_session_and_its_environment_ends_with_its_rig(
    fence: OverlayFence, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.execve('/bin/sleep', ['sleep', '321.5'], {})\n    os._exit(0)\n"
        "os.wait()\ntime.sleep(2)\n"
    )
    program = parse_program(str(script), [], tmp_path)

    def sleeping() -> list[psutil.Process]:
        found = psutil.process_iter(["cmdline"])
        return [p for p in found if p.info["cmdline"] == ["sleep", "321.5"]]

    with Rig(program, tmp_path / "rig", tmp_path / "cache", fence) as rig:
        rig.open(None, never, 60.0)
        assert sleeping()
    assert not sleeping()


def test_a_variable_of_the_program_loads_code_behind_the_fence_only(
    fence: OverlayFence, tmp_path: Path
) -> None:
    code = f"open({str(tmp_path / 'touched')!r}, 'a').write('x')"
    (tmp_path / "sitecustomize.py").write_text(code)
    view = fence.view()
    plan = LaunchPlan(
        (sys.executable, "-c", "import os; print('ran', os.path.exists('touched'))"),
        str(tmp_path),
        {"PYTHONPATH": str(tmp_path)},
    )
    assert start(view.fenced(plan, []), tmp_path / "log").wait() == 0
    assert (tmp_path / "log").read_text() == "ran True\n"
    view.close()
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("kind", ["landlock", "overlay"])
def test_a_fence_that_is_denied_is_refused_with_the_reason_and_the_mend(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.rig.fence.kernel.landlock_version", lambda: 0)
    monkeypatch.setattr("autotune.rig.fence.kernel.has_capability", lambda *_: False)
    monkeypatch.setattr("os.geteuid", lambda: 0)  # a container's root
    with pytest.raises(FenceError, match="--fence guard") as refused:
        raise_fence(FenceOptions(kind=FenceKind(kind)), tmp_path)
    assert f"  {kind}: " in str(refused.value)
    with raise_fence(FenceOptions(FenceKind.GUARD), tmp_path) as fence:
        assert fence.kind is FenceKind.GUARD
        assert "C libraries and subprocesses" in fence.sentence


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes to the root folder")
def test_a_program_that_stands_in_the_root_folder_is_not_put_behind_overlays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir("/")
    with raise_fence(FenceOptions(), tmp_path) as fence:
        assert fence.kind is FenceKind.LANDLOCK
        assert "/ cannot be covered: it is read-only inside" in fence.warnings[0]
