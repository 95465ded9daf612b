"""The interface of fences: a ``Fence`` per run, and a ``View`` of the file system per rig.

No list of requirements is complete: kernel versions, security modules, containers and file systems
all may refuse a fence. So one is used only after a short process has entered it (``try_out()``).
"""

from __future__ import annotations

import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from autotune.files import scratch
from autotune.files.scratch import Scratch, short_place
from autotune.program.fence_options import FenceKind
from autotune.program.program import LaunchPlan, python_plan
from autotune.program.short_process import answer_of
from autotune.rig.fence.room import Room
from autotune.rig.fence.spec import Door, FenceSpec

ENTER = "autotune.rig.fence.enter"
PATIENCE_S = 30.0  # a covered network file system may be slow to answer


class Refused(Exception):
    """A fence cannot be used here; the message is the reason, as a clause for the user."""


class Fence(ABC):
    """Makes the views of a run, one for each rig.

    Use it as a context manager; closing it removes the scratch folders.

    Attributes:
        open_places: Folders that trials may change, for a guard; empty for overlays.
        rooms: How much trials may write, by file system.
        warnings: What the fence cannot cover, as sentences for the user.
    """

    kind: FenceKind
    open_places: tuple[Path, ...] = ()
    rooms: tuple[Room, ...] = ()
    warnings: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._views = 0
        # The first one is for autotune's files: its path is short enough for sockets, and the same
        # inside and outside of the fence.
        self._scratches = [Scratch(short_place())]
        make_gpu_nodes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def folders(self) -> tuple[Path, ...]:
        """The scratch folders, in each of which every rig has a folder of the same name."""
        return tuple(each.path for each in self._scratches)

    @property
    @abstractmethod
    def sentence(self) -> str:
        """What the fence does, as a sentence that the user reads before the first trial."""

    @property
    @abstractmethod
    def shadow_place(self) -> Path:
        """The scratch folder for what the guard inside the program redirects."""

    @abstractmethod
    def spec(self, name: str, own: Sequence[Path]) -> FenceSpec:
        """Return what a process that enters the fence has to do, and make the folders for it."""

    def prepared(self, name: str, roots: Sequence[Path], here: Path) -> str | None:  # noqa: ARG002
        """Note that a program has started to train, as ``View.prepared()`` says."""
        return None

    def clear(self, name: str) -> None:
        """Throw away what a rig wrote."""
        for folder in self.folders:
            scratch.remove(folder / name)

    def view(self) -> View:
        """Return a view in which nothing has been written yet."""
        self._views += 1
        return View(self, str(self._views))

    def close(self) -> None:
        """Remove all scratch folders, with everything that trials wrote."""
        for each in self._scratches:
            each.close()


class View:
    """What one rig sees of the file system; its writes are gone once it is closed.

    Attributes:
        own_dir: The rig's folder for autotune's own files.
        shadow_dir: Folder in which the guard inside the program puts redirected files.
    """

    def __init__(self, fence: Fence, name: str) -> None:
        self._fence, self._name = fence, name
        self.own_dir = fence.folders[0] / name
        self.own_dir.mkdir()
        self.shadow_dir = fence.shadow_place / name / "files"
        self._rooms = [room.of(name) for room in fence.rooms]
        self._door: Door | None = None

    def fenced(self, plan: LaunchPlan, own: Sequence[Path]) -> LaunchPlan:
        """Return the plan that starts a process behind the fence."""
        self._door = Door.to(replace(self._fence.spec(self._name, own), env=plan.env))
        return _entering(self._door, plan)

    def overflow(self) -> str | None:
        """Return how much the trial wrote, if that is more than it may; None if it is not.

        Called about twice a second while a rig works.
        """
        return next(filter(None, (room.overflow() for room in self._rooms)), None)

    def prepared(self, roots: Sequence[Path], here: Path) -> str | None:
        """Note that the program has started to train, so its downloads and caches are complete."""
        return self._fence.prepared(self._name, roots, here)

    def error(self) -> str | None:
        """Return why a started process could not enter the fence; None if it could."""
        error: str | None = self._door.said("error") if self._door is not None else None
        return error

    def close(self) -> None:
        """Throw the writes away. All processes of the rig must have ended before."""
        if self._door is not None:
            self._door.close()
            self._door = None
        self._fence.clear(self._name)


def try_out(spec: FenceSpec, *command: str) -> dict[str, str]:
    """Enter a fence by a short process; return the folders that could not be covered, with why.

    Raises:
        Refused: when it cannot be entered at all, or the command fails or takes too long.
    """
    door = Door.to(spec)
    plan = _entering(door, LaunchPlan(command, "/"))
    try:
        done = answer_of(plan.argv, PATIENCE_S, plan.cwd, pass_fds=plan.pass_fds)
        error, failures = door.said("error"), door.said("failures")
    except subprocess.TimeoutExpired as error:
        raise Refused(f"entering it took over {PATIENCE_S:.0f} s") from error
    finally:
        door.close()
    if error is not None or done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise Refused(error or f"trying it ended with {said[-1]}")
    found: dict[str, str] = failures or {}
    return found


def _entering(door: Door, plan: LaunchPlan) -> LaunchPlan:
    """Return a plan whose process enters the fence behind a door, then runs the command."""
    entry = python_plan(ENTER, str(door.number), "--", cwd=plan.cwd)
    argv, pass_fds = (*entry.argv, *plan.argv), (*plan.pass_fds, door.number)
    return replace(plan, argv=argv, pass_fds=pass_fds, env={})


def make_gpu_nodes(driver: Path = Path("/proc/driver/nvidia")) -> None:
    """Have NVIDIA's helper make the GPU device nodes before a rig starts.

    CUDA starts the helper if the nodes are missing. It is a set-user-ID program, and those have no
    effect behind a fence, so a trial that came first after a boot would find no GPU.
    """
    helper = shutil.which("nvidia-modprobe")
    if helper is None or not (driver / "version").exists():
        return
    # Its option -u means unified memory instead of GPUs, of which 255 is the control node
    # (https://github.com/NVIDIA/nvidia-modprobe, nvidia-modprobe.c).
    minors = [255, *range(len([*driver.glob("gpus/*")]))]
    gpus = [word for minor in minors for word in ("-c", str(minor))]
    for options in (gpus, ["-u", "-c", "0"]):
        subprocess.run(
            [helper, *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,  # it may fail although the nodes are there
        )
