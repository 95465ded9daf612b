"""Tracker: logs the result of a search to a run of an experiment tracker.

A member of the family is one file. It imports its library when it is used, logs to the run that the
user has open, and never ends that run. What its tool cannot hold is listed with the reason.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from autotune.errors import UsageError
from autotune.integrations.tracked_result import TrackedResult


@dataclass(frozen=True)
class Logged:
    """Where a result was logged.

    Attributes:
        to: The run or the folder, as people look for it.
        left_out: What the tool cannot hold, with the reasons as clauses.
    """

    to: str
    left_out: Mapping[str, str] = field(default_factory=dict)


class Tracker(ABC):
    """Base class of the family.

    Attributes:
        name: What users type after ``--to``.
        tool: The tool as users call it.
        module: What is imported of it.
        extra: The extra of autotune that installs it.
    """

    name: ClassVar[str]
    tool: ClassVar[str]
    module: ClassVar[str]
    extra: ClassVar[str]

    def log(self, result: TrackedResult, run: object = None) -> Logged:
        """Log a result to a run.

        Args:
            result: What is logged.
            run: The run; None takes the one that is active in this process.

        Raises:
            UsageError: The library is not installed, no run is active, or the tool refuses.
        """
        with self._asked() as library:
            return self._log(library, result, run)

    @contextmanager
    def started(self, result: TrackedResult, folder: Path) -> Iterator[object]:
        """Provide a run for a result, as the command line needs one; it ends on leaving.

        Args:
            result: What will be logged; a new run is named after its search.
            folder: Where a tool that keeps its data in a folder writes them.

        Raises:
            UsageError: The library is not installed, or the tool refuses.
        """
        with self._asked() as library, self._start(library, result, folder) as run:
            yield run

    @abstractmethod
    def _log(self, library: Any, result: TrackedResult, run: object) -> Logged:
        """Log to a run; None means the active one."""

    @abstractmethod
    def _start(
        self, library: Any, result: TrackedResult, folder: Path
    ) -> AbstractContextManager[object]:
        """Return a context manager that starts a run and ends it."""

    @abstractmethod
    def _refusals(self, library: Any) -> tuple[type[Exception], ...]:
        """Return the exceptions by which the tool says that it does not take something."""

    @contextmanager
    def _asked(self) -> Iterator[Any]:
        """Import the library, and turn its refusals into messages."""
        try:
            library = importlib.import_module(self.module)
        except ImportError as error:
            raise UsageError(
                f"{self.tool} is not installed: pip install 'autotune-torch[{self.extra}]'."
            ) from error
        refusals: tuple[type[Exception], ...] = (*self._refusals(library), OSError)
        try:
            yield library
        except refusals as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UsageError(f"{self.tool} did not take the result: {lines[0]}") from error
