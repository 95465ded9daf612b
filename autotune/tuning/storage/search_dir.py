"""Search directories: ``.autotune/<name>/`` below the current directory, one per search.

A directory holds the record (``study.db``), the logs of all rigs, and best.yaml at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from autotune.errors import RunDirectoryError, did_you_mean
from autotune.files import HOME
from autotune.program.sources import changed, listed

if TYPE_CHECKING:
    from autotune.machine.hardware import Hardware
    from autotune.results.record import SearchInfo
    from autotune.tuning.storage.study import Study

STUDY_NAME = "autotune"
FILE = "study.db"


@dataclass(frozen=True)
class SearchDir:
    """The directory of one search, which may not contain a record yet."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the search, by which ``autotune resume`` finds it."""
        return self.path.name

    @property
    def storage(self) -> str:
        """Optuna's storage URL of the study in this directory."""
        return f"sqlite:///{self.path / FILE}"

    def create_study(self, head: SearchInfo) -> Study:
        """Start the record and return it."""
        from autotune.tuning.storage.study import Study

        # renamed when it is complete, so that another process never reads half of it
        part = self.path / "study.db.part"
        Study.create(f"sqlite:///{part}", STUDY_NAME, head)
        part.rename(self.path / FILE)
        return self.load_study()

    def load_study(self) -> Study:
        """Open the record of an earlier search.

        Raises:
            RunDirectoryError: when there is no record, or another version of autotune wrote it.
        """
        # It loads optuna, and shells complete the names of runs on every Tab
        from autotune.tuning.storage.study import Study

        if not (self.path / FILE).is_file():
            raise RunDirectoryError(
                f"There is no record of a search in '{self.path}'. "
                "'autotune search PROGRAM' starts one."
            )
        return Study.load(self.storage, STUDY_NAME)


def new(name: str | None, program_name: str, base: Path | None = None) -> SearchDir:
    """Create and return a new, empty search directory in *base* or the current directory.

    An earlier search is never overwritten. Git ignores everything in ``.autotune``.

    Raises:
        RunDirectoryError: when *name* is taken, or nothing can be written there.
    """
    home = (base or Path.cwd()) / HOME
    path = home / (name or program_name)
    number = 2
    while name is None and path.exists():
        path = home / f"{program_name}-{number}"
        number += 1
    if path.exists():
        raise RunDirectoryError(_taken(SearchDir(path)))
    try:
        path.mkdir(parents=True)
        (home / ".gitignore").write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise RunDirectoryError(
            f"A search keeps its record in '{home}', which autotune cannot create "
            f"({error.strerror}). Start it in a folder where you may write; the program itself may "
            "lie elsewhere."
        ) from error
    return SearchDir(path)


def every(base: Path | None = None) -> list[SearchDir]:
    """Return the searches in a folder, the one whose record changed last first."""
    records = ((base or Path.cwd()) / HOME).glob(f"*/{FILE}")
    newest_first = sorted(records, key=lambda path: path.stat().st_mtime, reverse=True)
    return [SearchDir(path.parent) for path in newest_first]


def find(name: str | None, base: Path | None = None) -> SearchDir:
    """Return the directory of an existing search.

    Raises:
        RunDirectoryError: when there is no such search; it lists those that exist.
    """
    home, runs = (base or Path.cwd()) / HOME, every(base)
    if name is None:
        if not runs:
            raise RunDirectoryError(
                f"There is no run in {home}. 'autotune search PROGRAM' starts one."
            )
        return runs[0]
    for path in (home / name, Path(name).resolve()):
        if (path / FILE).is_file():
            return SearchDir(path)
    names = [run.name for run in runs]
    raise RunDirectoryError(
        f"There is no run '{name}' in {home}.{did_you_mean(name, names)} "
        f"Runs here: {', '.join(names) or 'none'}."
    )


def check_unchanged(study: Study, hardware: Hardware) -> None:
    """Check that earlier measurements still describe the program and the machine of today.

    Raises:
        RunDirectoryError: when a file that it imported, the hardware, Python or torch has changed.
    """
    names = changed(study.files)
    changes = study.head.hardware.differences(hardware)
    if names:
        verb = "has" if len(names) == 1 else "have"
        changes.insert(0, f"{listed(names)} {verb} changed since the search began")
    if changes:
        raise RunDirectoryError(
            f"This run cannot go on: {'; '.join(changes)}. Its measurements no longer count; "
            "start a new search."
        )


def _taken(run: SearchDir) -> str:
    try:
        owner = f" It is a search of: {run.load_study().head.program}."
    except RunDirectoryError:
        owner = ""
    return (
        f"The run directory '{run.path}' exists.{owner} Continue it with "
        f"'autotune resume {quote(run.name)}', or choose another --name."
    )
