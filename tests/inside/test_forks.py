"""Forked processes: the guard knows them apart, and hears of those that train."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType

import pytest

from autotune.inside.processes.reporter import describe
from autotune.inside.ranks import forks
from autotune.inside.ranks.forks import ForkGuard


class Owner:
    """Who is told in a forked process."""

    def __init__(self) -> None:
        self.was_told = False
        self.guard = ForkGuard(self.forked)

    def forked(self) -> None:
        self.was_told = True


@contextmanager
def forked(act: Callable[[], bool]) -> Iterator[int]:
    """Fork a process that does something and then waits to be ended; it says how that went."""
    reading, writing = os.pipe()
    answers, answer = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(answer, b"y" if act() else b"n")
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        assert os.read(answers, 1) == b"y"
        yield pid
    finally:
        for end in (reading, writing, answers, answer):
            os.close(end)
        os.waitpid(pid, 0)


def test_a_forked_process_knows_that_it_is_one_and_is_heard_of_when_it_trains_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forks, "PATIENCE_S", 0.2)
    owner = Owner()

    def train() -> bool:
        owner.guard.tell_step()
        return owner.guard.is_child and owner.was_told

    with forked(train):
        assert not owner.guard.is_child
        assert not owner.was_told
    answers = iter([False, False, True, True])  # the main process steps after the other's end
    assert owner.guard.wait_for_trainer(lambda: next(answers)) is None
    with forked(train) as pid:
        assert owner.guard.wait_for_trainer(lambda: False) == pid
    assert owner.guard.trainer == pid


PACKAGES = Path(sysconfig.get_path("purelib"))
STDLIB = Path(sysconfig.get_path("stdlib"))


def stack(*files: Path | str) -> list[tuple[CodeType, int]]:
    return [(compile("0", str(file), "eval").replace(co_name="main"), 7) for file in files]


@pytest.mark.parametrize(
    ("inner", "what"),
    [
        ([PACKAGES / "numpy" / "core.py"], "was busy in main (train.py:7)"),
        ([], "was busy in main (train.py:7)"),
        (
            [STDLIB / "multiprocessing" / "queues.py", PACKAGES / "torch/utils/data/dataloader.py"],
            "waited for a batch of its DataLoader in main (train.py:7)",
        ),
        (
            [STDLIB / "multiprocessing" / "popen_fork.py", STDLIB / "multiprocessing/process.py"],
            "waited for processes that it had started itself in main (train.py:7)",
        ),
        (
            [PACKAGES / "torch" / "multiprocessing" / "spawn.py"],
            "waited for processes that it had started itself in main (train.py:7)",
        ),
    ],
)
def test_where_a_program_stands_is_said_by_its_own_line(inner: list[Path], what: str) -> None:
    assert describe(stack(*inner, "/home/user/train.py")) == what
