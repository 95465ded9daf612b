"""Processes that a program starts: which are taken in, and who is heard when they train."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing
from torch.utils.data import DataLoader

from autotune.inside.processes.children import Children
from autotune.inside.seams.started import PROCESS, Act, Host, Script, StartedSeam, Starting
from autotune.measurement.turn import Taken
from autotune.program.fence_options import FenceKind
from autotune.program.program import parse_program
from autotune.rig.wire import Close, Link, ProfileStep, Progress, Start, TookTurns, ToRig
from tests.rigging import PROGRAMS
from tests.watching import installed

FORK = get_context("fork")


class Recorder(Host):
    """A host that notes what starts, and takes it in as it is."""

    def __init__(self) -> None:
        self.starting: list[Starting] = []
        self.scripts: list[tuple[Starting, tuple[str, ...]]] = []
        self.started = 0

    def process_starts(self, starting: Starting, act: Act) -> Act | None:
        self.starting.append(starting)
        return None if starting.pools else act

    def process_started(self, starting: Starting, process: BaseProcess, act: Act) -> None:
        assert process.pid is not None
        assert (starting, act) == (self.starting[-1], leave)
        self.started += 1

    def script_starts(self, starting: Starting, args: Sequence[str]) -> Script:
        self.scripts.append((starting, tuple(args)))
        return Script((sys.executable, "-c", "import os; print(os.environ['TOLD'])"), {"TOLD": "x"})

    def script_started(self, starting: Starting, process: subprocess.Popen[Any]) -> None:
        assert starting == self.scripts[-1][0]
        self.started += 1


@contextmanager
def recording() -> Iterator[Recorder]:
    host = Recorder()
    with installed(StartedSeam(host)):
        yield host


def leave(*_: object) -> None:
    """End a forked process before it can end what pytest has."""
    os._exit(0)


def test_processes_are_told_of_with_how_many_start_together_and_workers_of_loaders_are_not() -> (
    None
):
    with recording() as host:
        torch.multiprocessing.start_processes(leave, nprocs=2, start_method="fork")  # type: ignore[attr-defined, no-untyped-call]
        for daemon in (False, True):
            process = FORK.Process(target=leave, daemon=daemon)
            process.start()
            process.join()
        next(iter(DataLoader(range(4), num_workers=1, multiprocessing_context="fork")))  # type: ignore[arg-type]
    by = "torch.multiprocessing.start_processes"
    together = [Starting(rank, 2, by, forks=True) for rank in (0, 1)]
    alone = [Starting(0, 1, PROCESS, forks=True, pools=daemon) for daemon in (False, True)]
    assert host.starting == [*together, *alone]
    assert host.started == 3


def test_a_script_that_starts_itself_as_a_rank_is_told_of_and_other_commands_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    monkeypatch.setattr(sys, "argv", [str(script)])
    own = [sys.executable, str(script), "--epochs", "3"]
    ranked = {**os.environ, "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    with recording() as host:
        for command, env in (
            ([sys.executable, "-c", "print(1)"], ranked),
            ([*own[:1], "--version"], None),
        ):
            assert subprocess.run(command, env=env, check=True, capture_output=True).stdout
        told = subprocess.run(own, env=ranked, check=True, capture_output=True, text=True).stdout
    assert told == "x\n"
    assert [(s.rank, s.ranks, args) for s, args in host.scripts] == [(1, 2, ("--epochs", "3"))]
    assert host.started == 1


class Watcher:
    """Who looks after the program in the rig's first process; a LeadRank's threads never end."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.stands_aside = False
        self.seams = self
        self.downloads = self
        self.places = {"/data"}

    def stand_aside(self) -> None:
        self.stands_aside = True


@contextmanager
def relaying(
    steps: int, tmp_path: Path
) -> Iterator[tuple[Watcher, Link, Link, queue.SimpleQueue[ToRig]]]:
    """A rig's first process with one child: gives its watcher, the parent, the child, the queue."""
    ours, parent = socket.socketpair()
    theirs, child = socket.socketpair()
    start = Start(parse_program(str(PROGRAMS / "plain.py")), None, "", FenceKind.OVERLAY)
    watcher = Watcher(steps)
    commands: queue.SimpleQueue[ToRig] = queue.SimpleQueue()
    children = Children(Link(ours), commands, start, 0.0, watcher, tmp_path)  # type: ignore[arg-type]
    starting = Starting(0, 2, "torch.multiprocessing.spawn")
    relay = threading.Thread(target=children._relay, args=(Link(theirs), starting))
    relay.start()
    try:
        yield watcher, Link(parent), Link(child), commands
    finally:
        child.close()
        relay.join()
        for end in (ours, parent, theirs):
            end.close()


def test_a_child_is_heard_from_its_first_step_on_and_hears_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr("autotune.inside.processes.children.quit_process", ended.set)
    asked, answer = ProfileStep(0.5, 7), TookTurns(Taken(()), 7)
    with relaying(0, tmp_path) as (watcher, parent, child, commands):
        child.send(Progress("start-up", 0, 1.0, "imports"))
        assert not watcher.stands_aside
        child.send(Progress("start-up", 1))
        assert parent.receive(10) == Progress("start-up", 1)
        assert watcher.stands_aside
        commands.put(asked)
        assert child.receive(10) == asked
        child.send(answer)
        assert parent.receive(10) == answer
        commands.put(Close())
        assert ended.wait(10), "the rig's first process ends, and with it all that it started"


def test_a_child_that_trains_beside_the_first_process_goes_on_unmeasured(tmp_path: Path) -> None:
    with relaying(3, tmp_path) as (watcher, parent, child, _):
        child.send(Progress("start-up", 1))
        assert child.receive(10) == Close()
        assert parent.receive(0.05) is None
        assert not watcher.stands_aside


LEAVES = """
import os, sys, threading, time
from multiprocessing import get_context
from autotune.inside.ranks.group import Group
from autotune.inside.processes.rank_process import quit_process, run

def late():
    time.sleep(0.5)
    os.write(1, b"trained\\n")

def act():
    threading.Thread(target=late).start()
    get_context("fork").Process(target=late).start()
    get_context("fork").Process(target=time.sleep, args=(600,), daemon=True).start()

assert run(None, act, Group())[0].exit_code == 0
quit_process(0)
"""


def test_what_a_program_leaves_training_is_waited_for_and_daemons_are_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "trained\n" * 2
