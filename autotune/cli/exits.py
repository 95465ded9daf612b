"""Errors become messages and exit statuses here, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from autotune.errors import AutotuneError, ProgramError

if TYPE_CHECKING:
    from autotune.cli.messages import Messages

FAILED = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class errors_told:  # noqa: N801 - reads as a statement
    """Context manager that turns autotune's errors into a message and an exit status.

    Any other exception passes through: it is a defect of autotune and needs its traceback.

    Args:
        resumable: ``autotune resume`` can continue the command after Ctrl-C.
    """

    def __init__(self, messages: Messages, *, resumable: bool = False) -> None:
        self._messages = messages
        self._resumable = resumable

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._messages.end()
        match error:
            case ProgramError():
                self._messages.error(str(error), error.program_traceback)
                raise typer.Exit(FAILED)
            case AutotuneError():
                self._messages.error(str(error))
                raise typer.Exit(FAILED)
            case KeyboardInterrupt():
                mend = " 'autotune resume' goes on from here." if self._resumable else ""
                self._messages.error(f"Interrupted.{mend}")
                raise typer.Exit(INTERRUPTED)
