from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import psutil
import pytest

from autotune.errors import ProgramError, RigError
from autotune.measurement.examination import StepBreakdown
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.turn import PlannedTurn, Taken, Turn
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.fence_options import FenceKind
from autotune.program.lr import LrRule
from autotune.program.program import LaunchPlan, parse_program
from autotune.program.rehearsal import RehearsalPlan, TracePlan
from autotune.program.sources import Sources
from autotune.rig import processes
from autotune.rig.fence import View
from autotune.rig.fence.spec import Door
from autotune.rig.open_rig import SILENT, OpenRig, Place, Reports
from autotune.rig.resource_monitor import ResourceMonitor
from autotune.rig.rig import Rig
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import Link, Progress, Ready, StepProfiled, TakeTurns, TookTurns, encode
from tests.made import PROGRAM, make_hardware, make_profile
from tests.rigging import (
    PROGRAMS,
    SHORT_S,
    applied_with,
    fence,
    is_running,
    never,
    open_rig,
    rig_on,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_starts")]

if TYPE_CHECKING:
    from autotune.rig.wire import Phase


def test_runs_whose_training_is_compared_round_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU convolutions compute in TF32 by default, but not all of cuDNN's kernels do."""
    variables: list[Mapping[str, str]] = []

    def start(plan: LaunchPlan, *_: object) -> None:
        variables.append(Door(plan.pass_fds[-1]).spec().env)
        raise InterruptedError

    monkeypatch.setattr(processes, "start", start)
    applied = AppliedConfig.as_written(Config({}), make_profile(), LrRule.NONE)
    compared, learns = TracePlan(), TracePlan(drops_out=True)
    for traces, tf32 in ((compared, "0"), (learns, None), (None, None)):
        with rig_on(tmp_path, "plain.py") as rig, pytest.raises(InterruptedError):
            rig.rehearse(applied, RehearsalPlan(traces=traces), never)
        assert variables[-1].get("NVIDIA_TF32_OVERRIDE") == tf32


@pytest.mark.real_starts
def test_a_program_that_writes_its_weights_itself_is_measured_and_gets_workers_live(
    tmp_path: Path,
) -> None:
    alone, driven = tmp_path / "alone.losses", tmp_path / "rig.losses"
    program = [sys.executable, str(PROGRAMS / "by_hand.py"), str(alone), "2"]
    subprocess.run(program, check=True, cwd=tmp_path)
    with open_rig(tmp_path, "by_hand.py", str(driven), "2") as opened:
        assert opened.profile.loop.steps_by_hand == "by_hand.py:33"
        assert opened.profile.device == "cpu"
        assert "optimizer" not in opened.base.baseline
        assert opened.rig.pid is not None
        process = psutil.Process(opened.rig.pid)
        as_written = opened.measured()
        losses = opened.seen(driven).read_text().splitlines()
        measured = opened.measured(workers=2, threads=1)
        assert len(process.children()) == 2
    expected = alone.read_text().splitlines()
    assert len(losses) > 8
    assert losses[: len(expected)] == expected[: len(losses)]
    for measurement in (as_written, measured):
        assert measurement.samples_per_step == measurement.largest_step == 16


IMPORTS = """
import time
from pathlib import Path
Path("made.py").write_text(f"AT = {time.time_ns()}")  # behind the fence, so it is not the user's
import made, model, torch
class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 10 ** 6
    def __getitem__(self, number):
        import item
        return torch.zeros(4)
for step, batch in enumerate(torch.utils.data.DataLoader(Items(), batch_size=8, num_workers=1)):
    if step == 12:
        import late
    model.optimizer.zero_grad()
    model.net(batch).sum().backward()
    model.optimizer.step()
"""
MODEL = "import torch\nnet = torch.nn.Linear(4, 1)\noptimizer = torch.optim.SGD(net.parameters())\n"


def test_what_a_program_imports_is_told_as_it_was_then_and_another_version_is_refused(
    tmp_path: Path,
) -> None:
    files = {"train.py": IMPORTS, "model.py": MODEL, "late.py": "", "item.py": ""}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    sources = Sources({})
    reports = replace(SILENT, sources=sources)
    for is_edited in (False, True):
        with open_rig(tmp_path, str(tmp_path / "train.py"), reports=reports) as opened:
            (tmp_path / "model.py").write_text("an edit after its import")
            if not is_edited:
                opened.measured()
                (tmp_path / "model.py").write_text(MODEL)
                (tmp_path / "late.py").write_text("EDITED = True")
                continue
            with pytest.raises(ProgramError, match=r"late\.py has changed"):
                opened.measured()
    assert {Path(path).name for path in sources.known} == {*files}


def test_leaving_the_loop_keeps_the_config_and_holds_the_schedule(tmp_path: Path) -> None:
    with open_rig(tmp_path, "loops.py", "breaks_out") as opened:
        assert [loader.batch_size for loader in opened.profile.loaders] == [16]
        written = opened.base.baseline.replace(batch_size=16)  # not offered: its schedule counts
        opened.base = replace(opened.base, config=written, baseline=written)
        larger = applied_with(opened.base, batch_size=32, workers=1)
        taken = opened.rig.take_turns([larger], [PlannedTurn(0, 60)], never, 60.0)
        again = opened.measured()
    assert isinstance(taken, Taken), taken
    assert Measurement.of(taken.turns, taken).samples_per_step == 32
    assert again.samples_per_step == 16
    # the loop fetches a 21st batch before it looks at the step number
    assert taken.samples_per_epoch == 21 * 32


@pytest.mark.parametrize(
    ("trouble", "outcome"),
    [
        ("memory", Outcome.OUT_OF_MEMORY),
        ("killed", Outcome.HOST_OUT_OF_MEMORY),
        ("crash", Outcome.CRASHED),
        ("hang", Outcome.HUNG),
    ],
)
def test_what_goes_wrong_under_a_config_is_told_apart(
    tmp_path: Path, trouble: str, outcome: Outcome
) -> None:
    with open_rig(tmp_path, "touchy.py", trouble) as opened:
        assert isinstance(opened.measure(), Measurement)
        ending = opened.measure(batch_size=32, silence_s=2.0)
    assert isinstance(ending, Ending)
    assert ending.outcome is outcome
    assert ending.reason
    if trouble == "crash":
        assert "expected 16 rows [not more]" in ending.reason
        assert "touchy.py" in ending.program_traceback
        assert "autotune/inside" not in ending.program_traceback.split("touchy.py")[0]
        assert len(ending.program_traceback) < 1 << 20
        assert opened.rig.log.stat().st_size < 10_000


def test_a_function_reads_its_config_and_the_seams_leave_that_knob_alone(tmp_path: Path) -> None:
    with open_rig(tmp_path, "functions.py:train_with_config") as opened:
        assert opened.profile.config_reads == {"batch_size": 16}
        base = opened.base
    applied = applied_with(base, batch_size=64)
    with open_rig(tmp_path, "functions.py:train_with_config", applied=applied) as opened:
        assert "batch size 64" in opened.rig.log_tail()
        taken = opened.rig.take_turns([applied], [PlannedTurn(0, 3)], never, 60.0)
    assert isinstance(taken, Taken), taken
    assert taken.turns[0].samples == (64, 64, 64)


@contextmanager
def played(folder: Path, reports: Reports = SILENT) -> Iterator[tuple[OpenRig, socket.socket]]:
    """An open rig whose other end is played: the inside of a rig answers each question once."""
    ours, theirs = socket.socketpair()
    view = cast("View", SimpleNamespace(own_dir=folder, overflow=never, error=never))
    place = Place(FenceKind.OVERLAY, view, folder / "log.txt", None, has_ranks=False)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process, ours, theirs:
        monitor = ResourceMonitor(process.pid, (), {})
        yield OpenRig(place, process, Link(ours), monitor, reports), theirs


def test_an_answer_to_an_earlier_question_is_dropped_and_silence_between_epochs_is_not_a_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played(tmp_path) as (rig, theirs):
        late = Taken((Turn(0, (1.0,), (8,), 0.0),))
        stale = TookTurns(late), StepProfiled(StepBreakdown())
        answer = TookTurns(replace(late, steps=2), 1)
        theirs.sendall(b"".join(encode(message) for message in (*stale, answer)))
        assert rig.ask(TakeTurns((), ()), TookTurns, never, 5.0) == answer
    monkeypatch.setattr("autotune.rig.open_rig.BETWEEN_EPOCHS_S", 1.0)
    for phase, silent_s in (("between epochs", 1), ("turns", 0)):
        with played(tmp_path) as (rig, theirs):
            theirs.sendall(encode(Progress(cast("Phase", phase))))
            ending = rig.wait(TookTurns, never, 0.2)
        assert isinstance(ending, Ending)
        assert ending.reason == f"no step for {silent_s} s"


@pytest.mark.parametrize("is_told", [True, False])
def test_a_program_that_the_signal_to_autotune_has_ended_too_has_not_failed(
    tmp_path: Path, *, is_told: bool
) -> None:
    asked = Ending(Outcome.INTERRUPTED, "ended by SIGTERM")
    with played(tmp_path, Reports(signalled=lambda: asked if is_told else None)) as (rig, theirs):
        rig.process.terminate()
        theirs.close()
        ending = rig.wait(TookTurns, never, 5.0)
    assert isinstance(ending, Ending)
    assert (ending == asked) is is_told, ending


def test_the_processes_of_a_program_outlive_the_signal_by_which_a_job_is_asked_to_leave(
    tmp_path: Path,
) -> None:
    """Slurm sends it to every process of a job step; autotune answers it and ends the rig."""
    losses = tmp_path / "rig.losses"
    with open_rig(tmp_path, "by_hand.py", str(losses), "2") as opened:
        opened.measured(workers=2, threads=1)
        assert opened.rig.pid is not None
        process = psutil.Process(opened.rig.pid)
        tree = [process, *process.children(recursive=True)]
        assert len(tree) >= 3
        for one in tree:
            one.send_signal(signal.SIGUSR1)
        opened.measured(workers=2, threads=1)
        assert process.children()


def test_a_log_without_end_costs_neither_memory_nor_disk(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with log.open("wb") as file:
        file.truncate(1 << 40)  # a hole, which takes no space
        file.seek(0, os.SEEK_END)
        file.write(b"last words")
    with played(tmp_path) as (rig, _):
        ending = rig.wait(TookTurns, never, 0.2)
        assert isinstance(ending, Ending)
        assert ending.program_traceback.endswith("last words")
        assert log.stat().st_size < 10_000
        with log.open("a") as writer:  # as the program has it open
            writer.write(" and more")
        assert rig.log_tail().endswith("last words and more")


def test_a_rig_that_is_not_open_says_so_and_may_be_closed_twice(tmp_path: Path) -> None:
    rig = Rig(PROGRAM, tmp_path / "rig", tmp_path / "cache", fence())
    with pytest.raises(RigError, match=r"please report it: .* is not running"):
        rig.profile_step(SHORT_S, never, 1.0)
    rig.close()
    rig.close()


def test_rigs_whose_parent_is_killed_end_with_workers_and_ranks_in_a_terminal_too(
    tmp_path: Path,
) -> None:
    parent = psutil.Popen([sys.executable, "-c", _PARENT, str(tmp_path)])
    pid_file = tmp_path / "pids"
    while not pid_file.exists():
        assert parent.poll() is None, "the parent should live until it is killed"
        time.sleep(0.05)
    pids = [int(pid) for pid in pid_file.read_text().split()]
    assert len(pids) >= 3 + 3, "a rig with two workers, and two ranks with their launcher"
    parent.kill()
    parent.wait()
    gone, alive = psutil.wait_procs(
        [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=10
    )
    assert not alive, gone


_PARENT = """
import sys, time
from pathlib import Path
import psutil
from dataclasses import replace
from autotune.measurement.outcome import RunMode
from autotune.program.program import parse_program
from autotune.rig.rig import Rig
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import Ready
from tests.rigging import PROGRAMS, fence, never, open_rig
directory = Path(sys.argv[1])
subject = parse_program(str(PROGRAMS / "own_ddp.py"), (), directory)
subject = replace(subject, ranks=2, mode=RunMode(terminal=True))
ranks = Rig(subject, directory / "ranks", directory / "cache", fence())
with open_rig(directory, "slow_items.py") as opened, ranks:
    opened.measured(workers=2)
    assert isinstance(ranks.open(None, never, 60.0), Ready)
    rigs = [psutil.Process(pid) for pid in (opened.rig.pid, ranks.pid)]
    trees = [(rig, *rig.children(recursive=True)) for rig in rigs]
    pids = [process.pid for tree in trees for process in tree]
    (directory / "part").write_text(" ".join(map(str, pids)))
    (directory / "part").rename(directory / "pids")
    time.sleep(600)
"""


def test_a_program_is_taken_apart_while_it_trains_and_trains_on(tmp_path: Path) -> None:
    with open_rig(tmp_path, "slow_items.py") as rig:
        before = rig.measured()
        breakdown = rig.profile_step()
        after = rig.measured()
    assert breakdown.split is not None
    assert breakdown.split.step_s > 16 * 0.001, "what its items sleep"
    assert breakdown.synthetic_data_throughput is not None
    assert breakdown.loader_throughput is not None
    assert breakdown.split.wait_s > 0.5 * 16 * 0.001, "most of what its items sleep"
    assert after.samples_per_step == before.samples_per_step


def test_a_program_with_its_own_autocast_is_recognised(tmp_path: Path) -> None:
    with open_rig(tmp_path, "loops.py", "own_autocast") as opened:
        assert opened.profile.precision.autocast == "bfloat16"
        assert opened.base.baseline["precision"] == "bf16"
        assert opened.base.traits.program_autocast
        opened.measured(precision="fp32")


def test_a_fence_that_fails_once_is_raised_anew_and_an_urgent_end_is_put_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is made: what a mount that somebody makes meanwhile does depends on the machine."""
    fenced, views = View.fenced, list[View]()

    def fails_once(view: View, plan: LaunchPlan, own: Sequence[Path]) -> LaunchPlan:
        views.append(view)
        plan = fenced(view, plan, own)
        if len(views) > 1:
            return plan
        assert view._door is not None
        view._door.answer(error="Invalid argument")
        return replace(plan, argv=("/bin/false",))

    monkeypatch.setattr(View, "fenced", fails_once)
    program = parse_program(str(PROGRAMS / "plain.py"), ["-"], tmp_path)
    calm = iter([False] * 3)  # the signal comes while the program is given time to end
    reports = Reports(is_urgent=lambda: next(calm, True))
    with RigFactory(program, tmp_path, make_hardware(), reports) as rigs:
        first = rigs.fence
        rig = rigs.new()
        assert isinstance(rig.open(None, never, 60.0), Ready)
        assert rig.pid is not None
        assert rigs.fence is not first
        os.kill(rig.pid, signal.SIGSTOP)  # it answers nothing
        rig.close()
        assert any(any(folder.iterdir()) for folder in rigs.fence.folders), "for the result's sake"
    assert not is_running(rig.pid)
    assert not any(folder.exists() for folder in (*first.folders, *rigs.fence.folders))
