"""The interface of fences: a ``Fence`` per run, and a ``View`` of the file system per rig."""

from __future__ import annotations

import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from autotune.program.fence_options import FenceKind
from autotune.program.program import LaunchPlan, python_plan
from autotune.rig.fence.scratch import Scratch, short_place

ENTER = "autotune.rig.fence.enter"


class View(ABC):
    """What one rig sees of the file system; its writes are gone once it is closed.

    Attributes:
        shadow_dir: Folder in which the guard inside the program puts redirected files.
        own_dir: The rig's folder for autotune's own files. It is the same inside and outside of
            the fence, and its path is short enough for sockets.
    """

    shadow_dir: Path
    own_dir: Path

    @abstractmethod
    def fenced(self, plan: LaunchPlan, own: Sequence[Path]) -> LaunchPlan:
        """Return the plan that starts a process behind the fence.

        Args:
            plan: What to start.
            own: Folders of autotune's, such as the compile cache, whose writes stay real.
        """

    @abstractmethod
    def overflow(self) -> str | None:
        """Return how much the trial wrote, if that is more than it may; None if it is not.

        Called about twice a second while a rig works.
        """

    @abstractmethod
    def prepared(self, roots: Sequence[Path], here: Path) -> str | None:
        """Note that the program has started to train, so its downloads and caches are complete.

        Args:
            roots: Folders to which the program was seen to download.
            here: The program's working directory.

        Returns:
            A sentence for the user about data that each trial prepares again; None if there are
            none.
        """

    @abstractmethod
    def error(self) -> str | None:
        """Return why a started process could not enter the fence; None if it could."""

    @abstractmethod
    def close(self) -> None:
        """Throw the writes away. All processes of the rig must have ended before."""


class Fence(ABC):
    """Makes the views of a run, one for each rig.

    Use it as a context manager; closing it removes the scratch folders.

    Attributes:
        kind: Which kind of fence it is.
        open_places: Folders that trials may change, for a guard; empty for overlays.
        devices: Device numbers of the folders that overlays cover, by path; the program needs them
            to tell which renames the real files would allow. Empty for a guard.
        max_scratch_bytes: How much one trial may write.
        warnings: What the fence cannot cover, as sentences for the user.
    """

    kind: FenceKind
    open_places: tuple[Path, ...] = ()
    devices: Mapping[str, int] = {}
    max_scratch_bytes: int
    warnings: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._views = 0
        self._own = Scratch(short_place())
        _make_gpu_nodes()

    def new_own_dir(self) -> Path:
        """Make and return the folder for autotune's files of the next rig."""
        self._views += 1
        folder = self._own.path / str(self._views)
        folder.mkdir()
        return folder

    @property
    @abstractmethod
    def folders(self) -> tuple[Path, ...]:
        """The scratch folders, in each of which every rig has a folder of the same name."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    @abstractmethod
    def sentence(self) -> str:
        """What the fence does, as a sentence that the user reads before the first trial."""

    @abstractmethod
    def view(self) -> View:
        """Return a view in which nothing has been written yet."""

    def close(self) -> None:
        """Remove all scratch folders, with everything that trials wrote."""
        self._own.close()


def entering(spec_path: Path, plan: LaunchPlan) -> LaunchPlan:
    """Return a plan whose process enters the fence that a file describes, then runs the command."""
    entry = python_plan(ENTER, str(spec_path), "--", cwd=plan.cwd)
    return replace(plan, argv=(*entry.argv, *plan.argv))


def _make_gpu_nodes() -> None:
    """Have NVIDIA's helper make the GPU device nodes before a rig starts.

    CUDA starts the helper if the nodes are missing. It is a set-user-ID program, and those have no
    effect behind a fence, so a trial that came first after a boot would find no GPU.
    """
    helper = shutil.which("nvidia-modprobe")
    if helper is not None and Path("/proc/driver/nvidia/version").exists():
        subprocess.run(
            [helper, "-u", "-c", "0"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,  # it may fail although the nodes are there
        )
