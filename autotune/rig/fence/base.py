"""A fence: what keeps the trials of a run from changing the user's files."""

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
    """What one rig sees of the file system; closed, nothing of its writes is left.

    Attributes:
        shadow_dir: Where the guard inside the program puts files, for fences that need it.
        own_dir: Of the rig's own: real inside and outside, with a short path.
    """

    shadow_dir: Path
    own_dir: Path

    @abstractmethod
    def fenced(self, plan: LaunchPlan, own: Sequence[Path]) -> LaunchPlan:
        """Return the plan that starts a process inside.

        Args:
            plan: What to start.
            own: Folders of autotune's own that stay real inside.
        """

    @abstractmethod
    def overflow(self) -> str | None:
        """Say what wrote more than the scratch folders may hold; None while all is well."""

    @abstractmethod
    def prepared(self, roots: Sequence[Path], here: Path) -> str | None:
        """Take note that the program makes its first step now; return what the user should know.

        Args:
            roots: Folders to which it was seen to download.
            here: Its working directory.
        """

    @abstractmethod
    def error(self) -> str | None:
        """Return why a started process could not enter, None if it could."""

    @abstractmethod
    def close(self) -> None:
        """Throw the writes away; its processes have ended."""


class Fence(ABC):
    """Makes views, one for each rig.

    Attributes:
        kind: Which fence it is.
        open_places: Of a guard: folders that trials may change.
        devices: Of overlays: the device numbers of what they cover, by path.
        max_scratch_bytes: What a trial may write.
        doubts: What it cannot cover, as sentences for the user.
    """

    kind: FenceKind
    open_places: tuple[Path, ...] = ()
    devices: Mapping[str, int] = {}
    max_scratch_bytes: int
    doubts: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._views = 0
        self._own = Scratch(short_place())
        _make_gpu_nodes()

    def new_own_dir(self) -> Path:
        """Return a folder for the next rig's own files."""
        self._views += 1
        folder = self._own.path / str(self._views)
        folder.mkdir()
        return folder

    @property
    @abstractmethod
    def folders(self) -> tuple[Path, ...]:
        """The scratch folders."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    @abstractmethod
    def sentence(self) -> str:
        """What the user is told before the first trial."""

    @abstractmethod
    def view(self) -> View:
        """Return a view in which nothing has been written yet."""

    def close(self) -> None:
        """Remove all scratch folders."""
        self._own.close()


def entering(spec_path: Path, plan: LaunchPlan) -> LaunchPlan:
    """Return the plan that fences its process first."""
    entry = python_plan(ENTER, str(spec_path), "--", cwd=plan.cwd)
    return replace(plan, argv=(*entry.argv, *plan.argv))


def _make_gpu_nodes() -> None:
    """Let NVIDIA's helper make device nodes now: it is set-user-ID, and so of no use inside."""
    helper = shutil.which("nvidia-modprobe")
    if helper is not None and Path("/proc/driver/nvidia/version").exists():
        subprocess.run(
            [helper, "-u", "-c", "0"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,  # without it the driver's own nodes may be there all the same
        )
