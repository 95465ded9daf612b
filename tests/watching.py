"""A program's source run under seams in the test's own process, until its profile is known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.inside.ranks.group import ALONE
from autotune.inside.step_counts import Step
from autotune.inside.step_tracker import StepTracker
from autotune.program.profile import Profile

OPENING = """
import argparse, sys
from itertools import count, cycle, islice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
loader = DataLoader(TensorDataset(torch.randn(96, 4), torch.randint(2, (96,))), 8)
"""


class Enough(Exception):
    """The profile is known."""


class Watching(StepTracker):
    """Watches a program, and the borders that follow its profile.

    Attributes:
        profile: What the first steps revealed, None before.
        samples: Of the steps that ended since.
    """

    def __init__(self, borders: int = 0) -> None:
        super().__init__(None, ALONE)
        self._borders = borders
        self.profile: Profile | None = None
        self.samples: list[int] = []

    def observed(self) -> None:
        self.profile = self.observer.profile({})
        self._end()

    def on_step_end(self, step: Step) -> None:
        self.samples.append(step.samples)
        self._end()

    def _end(self) -> None:
        if len(self.samples) >= self._borders:
            raise Enough


def watched(tmp_path: Path, source: str, *args: str, borders: int = 0) -> Watching:
    """Run a source after OPENING, until so many borders have followed its profile, or its end."""
    path = tmp_path / "train.py"
    path.write_text(OPENING + source)
    watching = Watching(borders)
    watching.seams.install()
    watching.seams.watch()
    names: dict[str, Any] = {"__name__": "__main__"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # beside other tests, threads wait for each other
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(path), *args])
        try:
            exec(compile(path.read_text(), str(path), "exec"), names)
        except Enough:
            pass
        finally:
            torch.set_num_threads(threads)
            watching.seams.remove()
    return watching


def profile_of(tmp_path: Path, source: str, *args: str) -> Profile:
    """Return what the first steps of a source reveal."""
    profile = watched(tmp_path, source, *args).profile
    assert profile is not None, "it made too few steps"
    return profile
