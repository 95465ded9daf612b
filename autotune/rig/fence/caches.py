"""Caches: what a program downloads before its first step is kept for later rigs of the run.

Without this each rig would download a data set, a pretrained model or compiled kernels again. Only
files below the roots of known caches are kept, and of these only what was complete before the first
step and did not change after it: outputs and checkpoints never.
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
FOLDERS = (".cache", ".keras", ".nv", ".triton", "nltk_data", "scikit_learn_data")  # of the home
MANY_FILES, MANY_BYTES = 500, 20 << 20
BYTECODE = "__pycache__"  # Python checks it against the source before it uses it

Fingerprint = tuple[int, int]  # bytes, time of change in ns


def cache_roots(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders in which libraries keep what they download and compile.

    A folder in which the home or the working directory lies is none: results lie there too.
    """
    home = Path(os.path.expanduser("~"))
    named = [Path(environment[name]) for name in VARIABLES if environment.get(name)]
    places = [*named, *(home / name for name in FOLDERS)]
    real = dict.fromkeys(Path(os.path.realpath(place)) for place in places)
    in_use = [Path(os.path.realpath(place)) for place in (home, os.curdir)]
    return tuple(root for root in real if not any(p.is_relative_to(root) for p in in_use))


@dataclass
class Prepared:
    """What one view holds of caches when its program makes its first step.

    Attributes:
        covered: The folder that the overlay covers.
        upper: Its upper layer.
        files: What lies in it, by paths relative to it.
    """

    covered: Path
    upper: Path
    files: dict[str, Fingerprint] = field(default_factory=dict)

    def note(self, roots: Iterable[Path]) -> None:
        """Note what is there now below the roots of caches."""
        self.files = dict(_below(self.upper, self.covered, tuple(roots)))

    def keep(self, layer: Path) -> bool:
        """Move what has not changed since into a layer for later views; tell whether any has."""
        kept = False
        for relative, before in self.files.items():
            source = self.upper / relative
            if _fingerprint(source) != before:
                continue
            target = layer / relative
            try:
                _make_folders(target.parent, layer, self.upper)
                source.parent.chmod(0o700)  # it goes in any case; the layer's has the right mode
                os.rename(source, target)
            except OSError:  # then later views prepare it again
                continue
            kept = True
        return kept


@dataclass(frozen=True)
class Heap:
    """Many files that a program wrote into one folder before its first step."""

    folder: Path
    files: int
    total_bytes: int

    @property
    def is_worth_keeping(self) -> bool:
        """Writing it again for each trial takes time: seconds, for this much."""
        return self.files >= MANY_FILES or self.total_bytes >= MANY_BYTES


def heaviest(prepared: Iterable[Prepared], here: Path) -> Heap | None:
    """Return the folder with most new files that is no cache, by folders of the working directory.

    Args:
        prepared: What views hold, noted.
        here: The working directory.
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
    """None for what is no file or link: the kernel marks deletions by devices."""
    try:
        status = path.lstat()
    except OSError:
        return None
    is_kept = path.is_symlink() or path.is_file()
    return (status.st_size, status.st_mtime_ns) if is_kept else None


def _make_folders(folder: Path, layer: Path, upper: Path) -> None:
    """Make a folder of a layer, and those above it, with the modes of the real ones."""
    if folder.is_dir():
        return
    if folder != layer:
        _make_folders(folder.parent, layer, upper)
    folder.mkdir()
    shutil.copystat(upper / folder.relative_to(layer), folder)
    folder.chmod(folder.stat().st_mode | 0o200)  # to move into
