"""Caches: files that a program downloads before its first step are kept for later rigs of a run.

The overlay fence throws the writes of a rig away. Without this module each rig would download the
data set and the pretrained model, and compile kernels, again. Only files below the folders of known
caches are kept, and of these only files that were complete before the first step and did not change
after it. Outputs and checkpoints are never kept.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
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
        for path, _, names in os.walk(self.upper):
            for relative in (Path(path, name).relative_to(self.upper) for name in names):
                found, real = _fingerprint(self.upper / relative), self.covered / relative
                if found is None:
                    continue
                if real.parent.name == BYTECODE or any(real.is_relative_to(r) for r in roots):
                    self.files[str(relative)] = found
                    continue
                parts = real.relative_to(here).parts if real.is_relative_to(here) else ()
                folder = here / parts[0] if len(parts) > 1 else real.parent
                count, size = self.others.get(folder, (0, 0))
                self.others[folder] = (count + 1, size + found[0])

    def keep(self, layer: Path) -> bool:
        """Move what has not changed since ``note()`` into a layer; return if anything was.

        Call it after the rig has ended: the files leave the upper layer.
        """
        kept = False
        for relative, before in self.files.items():
            source = self.upper / relative
            # A program may have put a link to a real folder there.
            if source.parent.resolve() != source.parent or _fingerprint(source) != before:
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
