"""Caches: files that a program downloads before its first step are kept for later rigs of a run.

The overlay fence throws the writes of a rig away. Without this module each rig would download the
data set and the pretrained model, and compile kernels, again. Only files below the folders of known
caches are kept, and of these only files that were complete before the first step and did not change
after it. Outputs and checkpoints are never kept.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
    """Return the folders in which libraries keep what they download and compile.

    A folder that contains the home or the working directory is left out, because the program's
    results are there too.

    Args:
        environment: Variables by which users move these caches (``HF_HOME`` and others).
    """
    home = Path(os.path.expanduser("~"))
    named = [Path(environment[name]) for name in VARIABLES if environment.get(name)]
    places = [*named, *(home / name for name in FOLDERS)]
    real = dict.fromkeys(Path(os.path.realpath(place)) for place in places)
    in_use = [Path(os.path.realpath(place)) for place in (home, os.curdir)]
    return tuple(root for root in real if not any(p.is_relative_to(root) for p in in_use))


@dataclass
class Prepared:
    """The cache files that one overlay of a rig holds when the program makes its first step.

    Attributes:
        covered: The real folder that the overlay covers.
        upper: The overlay's upper layer, which holds what the rig wrote.
        files: Size and modification time of the cache files, by path below the upper layer.
    """

    covered: Path
    upper: Path
    files: dict[str, Fingerprint] = field(default_factory=dict)

    def note(self, roots: Iterable[Path]) -> None:
        """Record the cache files that exist now.

        Args:
            roots: Folders of caches, as real absolute paths.
        """
        self.files = dict(_below(self.upper, self.covered, tuple(roots)))

    def keep(self, layer: Path) -> bool:
        """Move the files that have not changed since ``note()`` into a layer for later rigs.

        Call it after the rig has ended: the files leave the upper layer.

        Args:
            layer: Folder that later overlays put on top of the real one.

        Returns:
            Whether any file was moved.
        """
        kept = False
        for relative, before in self.files.items():
            source = self.upper / relative
            if _fingerprint(source) != before:
                continue
            target = layer / relative
            try:
                _make_folders(target.parent, layer, self.upper)
                # A folder that is not writable would keep the file. Its mode is copied already, and
                # it is removed with the upper layer.
                source.parent.chmod(0o700)
                os.rename(source, target)
            except OSError:  # later rigs prepare the file again
                continue
            kept = True
        return kept


@dataclass(frozen=True)
class Heap:
    """The files outside of known caches that a program wrote to one folder before its first step.

    Attributes:
        folder: The real folder.
        files: Number of files.
        total_bytes: Their size.
    """

    folder: Path
    files: int
    total_bytes: int

    @property
    def is_worth_keeping(self) -> bool:
        """Whether preparing the files again in each trial would cost seconds."""
        return self.files >= MANY_FILES or self.total_bytes >= MANY_BYTES


def heaviest(prepared: Iterable[Prepared], here: Path) -> Heap | None:
    """Return the folder to which a program wrote the most files that are not known as a cache.

    It is probably prepared data, which the user can have kept by ``--cache-dir``. Files below the
    working directory are counted by its immediate folders, others by the folder that they lie in.

    Args:
        prepared: The overlays of one rig, after ``note()``.
        here: The working directory.

    Returns:
        None if the program wrote no such files.
    """
    heaps: dict[Path, Heap] = {}
    for each in prepared:
        for relative, (size, _) in _all_files(each.upper):
            if str(relative) in each.files:
                continue
            folder = _folder_of(each.covered / relative, here)
            before = heaps.get(folder, Heap(folder, 0, 0))
            heaps[folder] = Heap(folder, before.files + 1, before.total_bytes + size)
    return max(heaps.values(), key=lambda heap: (heap.files, heap.total_bytes), default=None)


def _folder_of(real: Path, here: Path) -> Path:
    """Return the folder by which a file is counted."""
    if real.is_relative_to(here) and len(parts := real.relative_to(here).parts) > 1:
        return here / parts[0]
    return real.parent


def _all_files(upper: Path) -> Iterator[tuple[Path, Fingerprint]]:
    for path, _, names in os.walk(upper):
        for name in names:
            fingerprint = _fingerprint(Path(path, name))
            if fingerprint is not None:
                yield Path(path, name).relative_to(upper), fingerprint


def _below(
    upper: Path, covered: Path, roots: tuple[Path, ...]
) -> Iterator[tuple[str, Fingerprint]]:
    for path, _, names in os.walk(upper):
        folder = covered / os.path.relpath(path, upper)
        for real in (folder / name for name in names):
            if folder.name == BYTECODE or any(real.is_relative_to(root) for root in roots):
                fingerprint = _fingerprint(upper / real.relative_to(covered))
                if fingerprint is not None:
                    yield str(real.relative_to(covered)), fingerprint


def _fingerprint(path: Path) -> Fingerprint | None:
    """Return a file's size and modification time; None unless it is a file or a link.

    Overlays mark a deleted file by a character device of the same name.
    """
    try:
        status = path.lstat()
    except OSError:
        return None
    is_kept = path.is_symlink() or path.is_file()
    return (status.st_size, status.st_mtime_ns) if is_kept else None


def _make_folders(folder: Path, layer: Path, upper: Path) -> None:
    """Make a folder of a layer, and those above it, with the modes and times of the originals."""
    if folder.is_dir():
        return
    if folder != layer:
        _make_folders(folder.parent, layer, upper)
    folder.mkdir()
    shutil.copystat(upper / folder.relative_to(layer), folder)
    folder.chmod(folder.stat().st_mode | 0o200)  # files are moved into it next
