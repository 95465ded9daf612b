"""Caches: files that a program downloads before its first step are kept for later rigs of a run.

The overlay fence throws the writes of a rig away. Without this module each rig would download the
data set and the pretrained model, and compile kernels, again. Only files below the folders of known
caches are kept, and of these only files that were complete before the first step and did not change
after it. Outputs and checkpoints are never kept.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from autotune.files.scratch import opened_folder, walk
from autotune.rig.fence.kernel import by_fd

# Each variable is from the documentation of the library that reads it.
VARIABLES = (
    "HF_DATASETS_CACHE",
    "HF_HOME",
    "HF_HUB_CACHE",
    "KERAS_HOME",
    "NLTK_DATA",
    "SCIKIT_LEARN_DATA",
    "TORCH_EXTENSIONS_DIR",
    "TORCH_HOME",
    "TRITON_CACHE_DIR",
    "XDG_CACHE_HOME",
)
# The defaults of the same libraries, in the home directory; .nv is CUDA's cache of kernels.
FOLDERS = (".cache", ".keras", ".nv", ".triton", "nltk_data", "scikit_learn_data")
MANY_FILES, MANY_BYTES = 500, 20 << 20  # from here on, writing them again takes seconds
BYTECODE = "__pycache__"  # always safe to keep: Python checks it against the source

Fingerprint = tuple[int, int]  # size in bytes, modification time in ns


def cache_roots(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders in which libraries keep what they download and compile."""
    home = Path(os.path.expanduser("~"))
    named = [Path(environment[name]) for name in VARIABLES if environment.get(name)]
    places = [*named, *(home / name for name in FOLDERS)]
    real = dict.fromkeys(Path(os.path.realpath(place)) for place in places)
    in_use = [Path(os.path.realpath(place)) for place in (home, os.curdir)]
    return tuple(root for root in real if not any(p.is_relative_to(root) for p in in_use))


@dataclass
class Prepared:
    """The files that one overlay of a rig holds when the program makes its first step.

    Attributes:
        upper: The overlay's upper layer, which holds what the rig wrote.
        others: Number and bytes of all other files, by the real folder by which they are counted:
            an immediate folder of the working directory, or the folder that they lie in.
    """

    covered: Path
    upper: Path
    files: dict[str, Fingerprint] = field(default_factory=dict)
    others: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def note(self, roots: Sequence[Path], here: Path) -> None:
        """Record the files that exist now."""
        for path, _, names, folder in walk(self.upper):
            for name in names:
                real = self.covered / path.relative_to(self.upper) / name
                found = _fingerprint(name, folder)
                if found is None:
                    continue
                if real.parent.name == BYTECODE or any(real.is_relative_to(r) for r in roots):
                    self.files[str(real.relative_to(self.covered))] = found
                    continue
                parts = real.relative_to(here).parts if real.is_relative_to(here) else ()
                counted = here / parts[0] if len(parts) > 1 else real.parent
                count, size = self.others.get(counted, (0, 0))
                self.others[counted] = (count + 1, size + found[0])

    def keep(self, layer: Path) -> bool:
        """Move what has not changed since ``note()`` into a layer; return if anything was.

        Call it after the rig has ended: the files leave the upper layer. The program may have put
        links to the user's folders there, so each folder is opened from the one above it, and a
        link is no folder. Its mounts do not matter: they are in the rig's own namespace.
        """
        kept = False
        in_folders = sorted(self.files, key=os.path.dirname)
        for folder, files in groupby(in_folders, os.path.dirname):
            with suppress(OSError), ExitStack() as opened:  # later rigs prepare the files again
                source, target = self._open(folder, layer, opened)
                # A folder that is not writable would keep its files. Its mode is copied already,
                # and it is removed with the upper layer.
                os.fchmod(source, 0o700)
                for name, before in ((os.path.basename(file), self.files[file]) for file in files):
                    with suppress(OSError):
                        if _fingerprint(name, source) == before:
                            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
                            kept = True
        return kept

    def _open(self, folder: str, layer: Path, opened: ExitStack) -> tuple[int, int]:
        """Open a folder of the upper layer, and the same one of a layer, which is made like it."""
        source = opened.enter_context(opened_folder(self.upper))
        target = opened.enter_context(opened_folder(layer))
        for name in Path(folder).parts:
            source = opened.enter_context(opened_folder(name, source))
            try:
                os.mkdir(name, dir_fd=target)
            except FileExistsError:  # its source may have another mode by now
                target = opened.enter_context(opened_folder(name, target))
            else:
                target = opened.enter_context(opened_folder(name, target))
                shutil.copystat(by_fd(source), by_fd(target))
                os.fchmod(target, stat.S_IMODE(os.fstat(target).st_mode) | 0o700)
        return source, target


def told_of_unknown(prepared: Iterable[Prepared]) -> str | None:
    """Return a sentence about the folder to which a program wrote most, unless it is a known cache.

    None if writing the files again in each trial would take less than seconds.
    """
    found = [(*size, folder) for each in prepared for folder, size in each.others.items()]
    files, size, folder = max(found, default=(0, 0, Path()))
    if files < MANY_FILES and size < MANY_BYTES:
        return None
    return (
        f"The program wrote {files:,} files, {size / 2**20:,.0f} MiB, to {folder} before its first "
        "step, and does so again in each process of the search. If they are prepared data, not "
        f"results: --cache-dir {folder}"
    )


def _fingerprint(name: str, folder: int) -> Fingerprint | None:
    """Return a file's size and modification time; None unless it is a file or a link.

    Overlays mark a deleted file by a character device of the same name.
    """
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    is_kept = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
    return (status.st_size, status.st_mtime_ns) if is_kept else None
