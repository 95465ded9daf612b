"""Run directories: ``.autotune/<name>/`` below the current directory; one holds one search."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from autotune.errors import RunDirectoryError, did_you_mean
from autotune.machine.hardware import Hardware
from autotune.results.record import SearchInfo
from autotune.tuning.study import Study

HOME = ".autotune"
STUDY_NAME = "autotune"
FILE = "study.db"


@dataclass(frozen=True)
class SearchDir:
    """One run's directory."""

    path: Path

    @property
    def name(self) -> str:
        """Its name, by which ``resume`` finds it."""
        return self.path.name

    @property
    def storage(self) -> str:
        """Optuna's URL of the study in it."""
        return f"sqlite:///{self.path / FILE}"

    def create_study(self, head: SearchInfo) -> Study:
        """Begin the record; its file appears when it is whole, so that no reader finds a half."""
        part = self.path / "study.db.part"
        Study.create(f"sqlite:///{part}", STUDY_NAME, head)
        part.rename(self.path / FILE)
        return self.load_study()

    def load_study(self) -> Study:
        """Open the record of an earlier search.

        Raises:
            RunDirectoryError: when there is none, or a later autotune wrote it.
        """
        if not (self.path / FILE).is_file():
            raise RunDirectoryError(
                f"There is no record of a search in '{self.path}'. "
                "'autotune search PROGRAM' starts one."
            )
        return Study.load(self.storage, STUDY_NAME)


def new(name: str | None, program_name: str, base: Path | None = None) -> SearchDir:
    """Return a new, empty run directory.

    Without a name it is called after the program, with a number when that is taken: an earlier
    search is never overwritten.

    Raises:
        RunDirectoryError: when *name* is taken.
    """
    home = (base or Path.cwd()) / HOME
    path = home / (name or program_name)
    number = 2
    while name is None and path.exists():
        path = home / f"{program_name}-{number}"
        number += 1
    if path.exists():
        raise RunDirectoryError(_taken(SearchDir(path)))
    path.mkdir(parents=True)
    (home / ".gitignore").write_text("*\n", encoding="utf-8")
    return SearchDir(path)


def find(name: str | None, base: Path | None = None) -> SearchDir:
    """Return an existing run by name or path; without one, the run that was worked on last.

    Raises:
        RunDirectoryError: when there is none.
    """
    home = (base or Path.cwd()) / HOME
    runs = sorted(home.glob(f"*/{FILE}"), key=lambda p: p.stat().st_mtime)
    if name is None:
        if not runs:
            raise RunDirectoryError(
                f"There is no run in {home}. 'autotune search PROGRAM' starts one."
            )
        return SearchDir(runs[-1].parent)
    for path in (home / name, Path(name).resolve()):
        if (path / FILE).is_file():
            return SearchDir(path)
    names = [p.parent.name for p in runs]
    raise RunDirectoryError(
        f"There is no run '{name}' in {home}.{did_you_mean(name, names)} "
        f"Runs here: {', '.join(names) or 'none'}."
    )


def check_unchanged(head: SearchInfo, hardware: Hardware) -> None:
    """Raise a RunDirectoryError when what was measured says nothing of program or machine today."""
    changes = head.hardware.differences(hardware)
    if head.program.has_changed:
        changes.insert(0, f"{head.program.name} has changed since the search began")
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
