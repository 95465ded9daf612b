"""Output: what autotune writes where people look for it, and what it leaves alone there.

A file is replaced by one of its kind alone: a best.yaml of the same program, a report, an export.
What people may have edited in it, or still need, is kept as ``NAME.1``. Files do not say which of
them is better: a smaller gain that is newer replaces a larger one, which is kept.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from autotune.errors import FileFormatError, UsageError
from autotune.files import access
from autotune.program.config import KnobValue
from autotune.program.program import Program
from autotune.results import bestfile
from autotune.results.bestfile import BestFile
from autotune.results.wording import as_typed

BEST = Path("best.yaml")


class Foreign(StrEnum):
    """What becomes of a file at the place of an output that is not autotune's to replace.

    - ``LEFT``: it stays, and so does a link; where the result is then is said.
    - ``REFUSED``: the command is refused before it starts: a user named the file.
    - ``REPLACED``: it is replaced, because the user said so.
    """

    LEFT = "left"
    REFUSED = "refused"
    REPLACED = "replaced"


@dataclass(frozen=True)
class Output:
    """A file for people that a command writes."""

    path: Path
    foreign: Foreign

    @classmethod
    def typed(cls, path: str | os.PathLike[str] | None, *, force: bool = False) -> Output:
        """Return the output that a user named; None stands for the best.yaml that nobody named."""
        if path is None:
            return cls(BEST, Foreign.LEFT)
        return cls(Path(path), Foreign.REPLACED if force else Foreign.REFUSED)

    def check(self, text: str = bestfile.HEADER, program: Program | None = None) -> None:
        """Check now what a search of minutes must not end with.

        Args:
            text: What will be written, or how it begins.
            program: The one that is searched; None if this is no best.yaml, or not known yet.

        Raises:
            UsageError: A user named a place where nothing can be written, or where a file lies that
                must not be replaced.
        """
        if self.foreign is not Foreign.LEFT and (why := self._why_left(text, program)):
            can_force = self.foreign is Foreign.REFUSED and self._target.is_file()
            force = ", or replace it with --force" if can_force else ""
            raise UsageError(
                f"'{self.path}' cannot be written: {why}. Name another --output{force}."
            )

    def write(self, text: str) -> str:
        """Write a report or an export.

        Returns:
            A sentence about the file that was there, if it is kept; else empty.

        Raises:
            UsageError: It cannot be written, or what is there must not be replaced.
        """
        self.check(text)
        try:
            kept = self._replace(text)
        except OSError as error:
            raise UsageError(
                f"'{self.path}' cannot be written: {error.strerror}. Name another --output."
            ) from error
        return f"What {self.path} held is kept as {kept}." if kept else ""

    def take(self, best: BestFile, program: Program, own: Path) -> str:
        """Write best.yaml, if what is there may be replaced; nothing is raised.

        Args:
            own: The best.yaml in the search's folder.

        Returns:
            A sentence about what was left alone or kept; else empty.
        """
        text = best.text(self.path.name)
        instead = f"This search's result is in {own}." if own.is_file() else ""
        try:
            if why := self._why_left(text, program, best):
                return f"{self.path} is left as it is: {why}. {instead}".rstrip()
            before = _read(self._target)
            was = None if isinstance(before, str) or not any(_configs(before)) else before
            kept = self._replace(text, keeps=was is not None and _configs(was) != _configs(best))
        except OSError as error:
            return f"{self.path} cannot be written: {error.strerror}. {instead}".rstrip()
        if was is None or kept is None:
            return ""
        now, then = (f"{one.speedup.estimate:.2f}x" for one in (best, was))
        return f"{self.path} now holds {now}; the {then} that it held is kept as {kept}."

    def holds(self, best: BestFile) -> bool:
        """Return whether the file is there with this content."""
        with suppress(OSError):
            return self._target.read_bytes() == best.text(self.path.name).encode()
        return False

    @property
    def _target(self) -> Path:
        """The file itself; a link is followed only where the user typed it."""
        if self.foreign is Foreign.LEFT:
            return self.path
        return Path(os.path.realpath(self.path))

    @property
    def _kept(self) -> Path:
        return self._target.with_name(f"{self._target.name}.1")

    def _why_left(self, text: str, program: Program | None, best: BestFile | None = None) -> str:
        """Return why what is there must stay, as a clause; empty if it need not."""
        why = next(_obstacles(self._target), "")
        if why or self.foreign is Foreign.REPLACED:
            return why
        return next(self._reasons(text, program, best), "")

    def _reasons(self, text: str, program: Program | None, best: BestFile | None) -> Iterator[str]:
        """Yield why what is there must stay; each reason supposes that those before do not hold."""
        path, kept = self._target, self._kept
        if path.is_symlink():
            yield f"it is a link, which '-o {self.path}' would follow"
        if _is_empty(path):
            return
        if not access.is_ours(path, text):
            yield "nothing in it says that autotune wrote it"
        if not _may_go(kept, text):
            yield f"what it holds would be kept as {kept.name}, which is not autotune's"
        if program is None:
            return
        before = _read(path)
        if isinstance(before, str):
            yield f"it cannot be read ({before})"
        elif not before.searched.is_same(program):
            yield f"it is about another program ({before.program})"
        elif best is not None and best.applied.is_as_written and not before.applied.is_as_written:
            gain = f"{before.speedup.estimate:.2f}x"
            yield f"it gave {gain}, and this search confirmed a gain with a larger batch alone"

    def _replace(self, text: str, *, keeps: bool = True) -> Path | None:
        """Write the text, and return where the file that was there is kept."""
        path, kept = self._target, None
        keeps = keeps and access.is_ours(path, text) and _may_go(self._kept, text)
        if keeps and (old := path.read_bytes()) != text.encode():
            kept = self._kept
            access.write(kept, old, private=True)
            kept.chmod(stat.S_IMODE(path.stat().st_mode))
        access.write(path, text)
        return kept and as_typed(kept)


def write_own(path: Path, text: str) -> None:
    """Write a file in the folder of a search; a ``UsageError`` says why it cannot be written."""
    try:
        access.write(path, text, private=True)
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written: {error.strerror}.") from error


def _obstacles(path: Path) -> Iterator[str]:
    """Yield why nothing can be written at a path, whoever wrote what is there."""
    # Folders that are missing are made when the file is written
    above = next(one for one in path.absolute().parents if os.access(one, os.F_OK))
    if not above.is_dir():
        yield f"'{above}' is not a folder"
    if not os.access(above, os.W_OK | os.X_OK):
        yield f"'{above}' may not be written"
    if path.is_dir():
        yield "it is a folder"
    if path.exists() and not path.is_file():
        yield "it is not a regular file"


def _is_empty(path: Path) -> bool:
    """Return whether nothing is at a path, or an empty file, such as those of ``mktemp``."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True
    return stat.S_ISREG(status.st_mode) and not status.st_size


def _configs(best: BestFile) -> tuple[Mapping[str, KnobValue], ...]:
    """Return all configs that a file holds; empty ones where it would change nothing."""
    return best.applied.changes(), *best.others


def _may_go(path: Path, text: str) -> bool:
    return _is_empty(path) or access.is_ours(path, text)


def _read(path: Path) -> BestFile | str:
    """Return a best.yaml, or why it cannot be read."""
    try:
        return bestfile.read(path)
    except FileFormatError as error:
        return str(error).splitlines()[0]
