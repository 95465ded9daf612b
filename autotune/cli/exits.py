"""Errors become messages and exit statuses here, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from autotune.errors import AutotuneError, ProgramError

if TYPE_CHECKING:
    from autotune.cli.messages import Messages

FAILED = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


@contextmanager
def errors_told(messages: Messages, *, resumable: bool = False) -> Iterator[None]:
    """Turn autotune's errors into a message and an exit status.

    Any other exception passes through: it is a defect of autotune and needs its traceback.

    Args:
        messages: Shows the message.
        resumable: ``autotune resume`` can continue the command after Ctrl-C.
    """
    try:
        yield
    except AutotuneError as error:
        traceback = error.program_traceback if isinstance(error, ProgramError) else ""
        messages.error(str(error), traceback)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        mend = " 'autotune resume' goes on from here." if resumable else ""
        messages.error(f"Interrupted.{mend}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        messages.end()
