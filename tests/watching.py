"""A program's source run under seams in the test's own process, until its profile is known."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import pytest
import torch

from autotune.inside.hubs.saving import SaveHub, SaveListener
from autotune.inside.listener import Listener
from autotune.inside.ranks.group import ALONE
from autotune.inside.seam_set import SeamSet
from autotune.inside.steering import Steering
from autotune.inside.step_counts import Step
from autotune.inside.step_tracker import Rank, StepTracker
from autotune.measurement.outcome import Epochs
from autotune.program.applied_config import AppliedConfig
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


class Acts(Protocol):
    """A seam, or a set of them."""

    def install(self) -> None: ...

    def remove(self) -> None: ...


S = TypeVar("S", bound=Acts)


class Enough(Exception):
    """The profile is known."""


class Watching(Rank):
    """Watches a program, and the borders that follow its profile.

    Args:
        borders: After so many of them the program is ended; None lets it go on.
        epochs: How its epochs end.

    Attributes:
        tracker: The listener of the seams.
        profile: What the first steps revealed, None before.
        ended: The steps that ended since.
    """

    def __init__(self, borders: int | None = None, epochs: Epochs = Epochs.ENDLESS) -> None:
        self.tracker = StepTracker(None, ALONE, self, epochs)
        self._borders = borders
        self.profile: Profile | None = None
        self.ended: list[Step] = []

    @property
    def samples(self) -> list[int]:
        """Of the steps that ended."""
        return [step.samples for step in self.ended]

    @contextmanager
    def installed(self) -> Iterator[Self]:
        """Install the seams as a rig does."""
        seams = self.tracker.seams
        seams.install()
        seams.watch()
        try:
            yield self
        finally:
            seams.remove()
            del self.tracker.first  # it knows the last feed, which keeps its workers
            self.tracker.epoch.feed = None

    def observed(self) -> None:
        self.profile = self.tracker.profile()
        self._end()

    def on_step_end(self, step: Step) -> None:
        self.ended.append(step)
        self._end()

    def _end(self) -> None:
        if self._borders is not None and len(self.ended) >= self._borders:
            raise Enough


def watched(tmp_path: Path, source: str, *args: str, borders: int = 0) -> Watching:
    """Run a source after OPENING, until so many borders have followed its profile, or its end."""
    path = tmp_path / "train.py"
    path.write_text(OPENING + source)
    watching = Watching(borders)
    names: dict[str, Any] = {"__name__": "__main__"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # beside other tests, threads wait for each other
    with pytest.MonkeyPatch.context() as patch, watching.installed():
        patch.setattr(sys, "argv", [str(path), *args])
        try:
            exec(compile(path.read_text(), str(path), "exec"), names)
        except Enough:
            pass
        finally:
            torch.set_num_threads(threads)
    return watching


def profile_of(tmp_path: Path, source: str, *args: str) -> Profile:
    """Return what the first steps of a source reveal."""
    profile = watched(tmp_path, source, *args).profile
    assert profile is not None, "it made too few steps"
    return profile


@contextmanager
def installed(seam: S) -> Iterator[S]:
    """Let a seam act, alone; one that acts where a program saves gets a hub for it."""
    saving = SaveHub()
    if isinstance(seam, SaveListener):
        saving.join(seam)
    seam.install()
    try:
        yield seam
    finally:
        seam.remove()
        saving.remove()


@contextmanager
def running(applied: AppliedConfig, listener: Listener | None = None) -> Iterator[SeamSet]:
    """Install the seams as ``autotune run`` does; with a listener, as a rig does."""
    seams = SeamSet(listener, applied.traits.loader)
    Steering(seams).apply(applied)
    with installed(seams):
        yield seams
