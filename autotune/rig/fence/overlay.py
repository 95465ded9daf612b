"""The overlay fence: each rig sees the real files through overlays and writes to upper layers.

Files are read from the real folders at full speed. Writes, renames, links and deletions go to an
upper layer of the rig, whichever process makes them, and are thrown away with it. Needs Linux 5.11,
or root.

Not covered, and reported where it is noticed: a folder that cannot be the lower layer of an overlay
becomes read-only; renaming an existing folder fails with EXDEV (Python's own calls are mended by
``inside.seams.fencing``); of two hard links, only the one that is written to changes; a file is
copied completely when it is opened for writing; locks and inotify do not reach the real files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.files import scratch
from autotune.files.scratch import Scratch
from autotune.program.fence_options import FenceKind, FenceOptions
from autotune.rig.fence import kernel, room
from autotune.rig.fence.base import Fence, Refused, try_out
from autotune.rig.fence.caches import Prepared, cache_roots, told_of_unknown
from autotune.rig.fence.plan import Cover, Folders, Mount, Step, is_below, plan, read_mounts
from autotune.rig.fence.spec import EXERCISE, Covering, FenceSpec

LOOKED_AT, LOOKED_AT_DEPTH = 5_000, 2  # entries of the working directory to check: some 20 ms
MAX_LAYERS = 100  # layers of kept caches; the kernel limits mount options to 4 KiB
NO_SCRATCH = (
    "no folder outside of it is suitable for what trials write; name one with --scratch-dir"
)
WHOLE_RANGE = ["0", "0", "4294967295"]  # /proc/self/uid_map in the initial user namespace


@dataclass(frozen=True)
class Rights:
    """What this process may do unaided.

    Attributes:
        may_mount: It may mount without a user namespace, because it has CAP_SYS_ADMIN.
        is_root: It is root of the whole system, not only of a container's user namespace.
    """

    may_mount: bool
    is_root: bool

    @property
    def options(self) -> str:
        """Mount options of each overlay.

        Root's overlays can record renamed folders (``redirect_dir``). Without root the kernel keeps
        an overlay's marks in ``user.*`` attributes, because the usual ``trusted.*`` need root.
        """
        return ",index=off,metacopy=off" + (",redirect_dir=on" if self.is_root else ",userxattr")


def rights() -> Rights:
    """Return what this process may do, from its capabilities and its user namespace."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    uid_map = Path("/proc/self/uid_map").read_text(encoding="utf-8").split()
    may_mount = kernel.has_capability(kernel.CAP_SYS_ADMIN, status)
    return Rights(may_mount, is_root=may_mount and uid_map == WHOLE_RANGE)


class OverlayFence(Fence):
    """Covers everything that this user may write by overlays.

    Folders that cannot be covered become read-only and are listed in ``warnings``.

    Raises:
        Refused: when overlays do not work here, or the working directory cannot be covered.
    """

    kind = FenceKind.OVERLAY

    def __init__(self, options: FenceOptions, run_dir: Path) -> None:
        self._rights = rights()
        if not self._rights.may_mount and os.geteuid() == 0:
            raise Refused("root without CAP_SYS_ADMIN, as in most containers, may not mount")
        super().__init__()
        self._prepared: dict[str, list[Prepared]] = {}  # by the rig's name
        self._layers: dict[str, tuple[str, ...]] = {}
        try:
            mounts = read_mounts(
                Path("/proc/self/mountinfo").read_text("utf-8", errors="surrogateescape")
            )
            near = [str(_real(place)) for place in (Path.cwd(), Path(os.path.expanduser("~")))]
            self._steps = plan(mounts, Folders(), is_root=self._rights.is_root, towards=near)
            failed = self._find_scratches(room.candidates(options.scratch_dir, run_dir))
            self.warnings = self._make_read_only_what_fails(mounts)
        except BaseException:
            self.close()
            raise
        named = options.scratch_dir
        if named is not None and _real(named) in failed:
            self.warnings += (f"--scratch-dir {named} is not used: {failed[_real(named)]}.",)
        self.rooms = room.rooms(self.folders, options.max_scratch_bytes)
        self._roots = (*cache_roots(os.environ), *map(_real, options.caches))

    @property
    def sentence(self) -> str:
        """What the fence does, as a sentence that the user reads before the first trial."""
        places = ", ".join(str(folder.parent) for folder in self.folders[1:])
        return (
            "Trials see your files through overlays and leave them as they are. What they write "
            f"goes to temporary folders of autotune's in {places}, deleted when the trial ends."
        )

    @property
    def shadow_place(self) -> Path:
        """The scratch folder for trackers that write; upper layers take everything else."""
        return self.folders[0]

    def spec(self, name: str, own: Sequence[Path] = ()) -> FenceSpec:
        """Return what a process that enters the fence has to do, and make the folders for it."""
        coverings = []
        for number, step in enumerate(self._steps):
            if not os.path.exists(step.path):  # removed since the plan was made
                continue
            if step.cover is Cover.READ_ONLY:
                coverings.append(Covering(step))
                continue
            place = self._scratch_for(step.path) / name / str(number)
            coverings.append(Covering(step, str(place), self._layers.get(step.path, ())))
            _make_folders(step, place)
        # A socket cannot be connected to through an overlay, so the folders of CUDA's MPS and of X
        # stay real: Multi-Process Service, section CUDA_MPS_PIPE_DIRECTORY; X(7)
        pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108
        sockets = Path(pipes), Path("/tmp/.X11-unix")  # noqa: S108
        passed = (self.folders[0] / name, *own, *map(_real, sockets))
        return FenceSpec(
            coverings=tuple(coverings),
            passed_through=tuple(str(path) for path in passed if path.is_dir()),
            in_user_namespace=not self._rights.may_mount,
            overlay_options=self._rights.options,
        )

    def prepared(self, name: str, roots: Sequence[Path], here: Path) -> str | None:
        """Keep the cache files that the program made before its first step, for later rigs.

        Returns:
            A sentence for the user if it also prepared much data outside of known caches.
        """
        found = [
            Prepared(Path(step.path), self._scratch_for(step.path) / name / str(number) / "upper")
            for number, step in enumerate(self._steps)
            if step.cover is Cover.OVERLAY
        ]
        for each in found:
            each.note((*self._roots, *map(_real, roots)), here)
        self._prepared[name] = found
        return told_of_unknown(found)

    def clear(self, name: str) -> None:
        """Throw away what a rig wrote, except for the cache files that later rigs can use.

        These become a layer between the real folder and the upper layer. Beyond ``MAX_LAYERS``
        nothing more is kept for a folder.
        """
        try:
            for prepared in self._prepared.pop(name, ()):
                path = str(prepared.covered)
                if not prepared.files or len(self._layers.get(path, ())) >= MAX_LAYERS:
                    continue
                layer = self._scratch_for(path) / "layers" / f"{name}-{prepared.upper.parent.name}"
                layer.mkdir(parents=True)
                if prepared.keep(layer):
                    _make_like(layer, prepared.covered)
                    self._layers[path] = (str(layer), *self._layers.get(path, ()))
        finally:
            super().clear(name)

    def _scratch_for(self, path: str) -> Path:
        """Return the first scratch folder outside of a covered folder.

        An overlay refuses an upper layer that lies within its lower layer.
        """
        return next(f for f in self.folders[1:] if not is_below(str(f), path))

    def _find_scratches(self, places: Sequence[Path]) -> dict[Path, str]:
        """Make scratch folders in the first places whose file system can hold upper layers."""
        failed: dict[Path, str] = {}
        for place in places:
            try:
                made = Scratch(place)
            except OSError as error:
                failed[place] = str(error)
                continue
            self._scratches.append(made)
            if reason := _tries_overlay(made.path, self._rights):
                self._scratches.remove(made)
                made.close()
                failed[place] = reason
            elif all(map(self._has_place, self._steps)):
                break
        if len(self._scratches) == 1:
            told = "; ".join(f"{place}: {reason}" for place, reason in failed.items())
            raise Refused(
                f"no folder is suitable for what trials write ({told}); name one with --scratch-dir"
            )
        return failed

    def _make_read_only_what_fails(self, mounts: Sequence[Mount]) -> tuple[str, ...]:
        """Make read-only what cannot be covered; return a sentence for the user for each folder."""
        steps = self._steps
        lost = {s.path: NO_SCRATCH for s in steps if not self._has_place(s)}
        self._steps = tuple(s for s in steps if s.path not in lost)
        here = _real(Path.cwd())
        if not self._rights.may_mount:
            _insist_on_own(here)
        exercised = (str(here),) if os.access(here, os.W_OK) else ()
        lost |= try_out(replace(self.spec("tried"), exercised=exercised))
        self.clear("tried")
        # It would become read-only, and most programs write there: another fence serves better.
        for path, reason in lost.items():
            if here.is_relative_to(path):
                raise Refused(f"{path} cannot be covered: {reason}")
        kept = tuple(s for s in self._steps if s.path not in lost)
        # A trial cannot change what this user cannot reach, so it needs no cover.
        lost = {path: reason for path, reason in lost.items() if os.access(path, os.F_OK)}
        self._steps = (*kept, *(Step(Cover.READ_ONLY, path) for path in lost))
        if lost:  # the plan has changed, so it is tried again
            try_out(self.spec("tried"), "true")
            self.clear("tried")
        kinds = {mount.path: f" ({mount.file_system})" for mount in mounts}
        return tuple(
            f"Trials can read but not write {path}{kinds.get(path, '')}: {reason}."
            for path, reason in lost.items()
        )

    def _has_place(self, step: Step) -> bool:
        return step.cover is Cover.READ_ONLY or any(
            not is_below(str(folder), step.path) for folder in self.folders[1:]
        )


def _insist_on_own(here: Path) -> None:
    """Refuse overlays if the working directory holds writable files of another user or group.

    In a user namespace only the user's own ids exist, so the kernel cannot copy a file of another
    owner or group to an upper layer: writing to it would fail, but only behind the fence. The check
    ends after ``LOOKED_AT`` entries, for speed.
    """
    ours = (os.geteuid(), os.getegid())
    depth = len(here.parts)
    looked_at = 0
    for path, folders, files in os.walk(here):
        folders[:] = [name for name in folders if not os.path.ismount(os.path.join(path, name))]
        if len(Path(path).parts) - depth >= LOOKED_AT_DEPTH:
            folders.clear()
        for inner in (Path(path, name) for name in (*folders, *files)):
            looked_at += 1
            status = inner.lstat()
            is_ours = (status.st_uid, status.st_gid) == ours or inner.is_symlink()
            if not is_ours and os.access(inner, os.W_OK):
                raise Refused(f"{inner} belongs to another user or group")
        if looked_at > LOOKED_AT:
            return


def _tries_overlay(place: Path, own: Rights) -> str | None:
    """Try an overlay whose lower and upper layers are in a place; return why it fails, or None.

    The file below the overlay must not change, which is checked too.
    """
    lower = place / "probe" / "lower"
    lower.mkdir(parents=True)
    (lower / EXERCISE).write_text("some", encoding="utf-8")
    step = Step(Cover.OVERLAY, str(lower))
    _make_folders(step, place / "probe")
    spec = FenceSpec(
        coverings=(Covering(step, str(place / "probe")),),
        in_user_namespace=not own.may_mount,
        overlay_options=own.options,
    )
    failures = try_out(spec)
    is_whole = (lower / EXERCISE).read_text(encoding="utf-8") == "some"
    scratch.remove(place / "probe")
    return failures.get(str(lower)) or (None if is_whole else "writes went to the real file")


def _make_folders(step: Step, place: Path) -> None:
    is_overlay = step.cover is Cover.OVERLAY
    for name in ("upper", "work") if is_overlay else ("rebuilt", "original"):
        (place / name).mkdir(parents=True)
    if is_overlay:
        _make_like(place / "upper", Path(step.path))


def _make_like(folder: Path, real: Path) -> None:
    """Give a layer the mode, times and, if permitted, the owner of the folder that it covers."""
    status = real.stat()
    with suppress(OSError):  # in some containers most owners have no id that could be set
        os.chown(folder, status.st_uid, status.st_gid)
    shutil.copystat(real, folder)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
