"""RunMode: how rigs must run a program so that it trains in them as it does outside of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Epochs(StrEnum):
    """What a rig does when the training loader has no more batches."""

    ENDLESS = "endless"
    """The loader starts over, so that the program's training loop never ends. The default."""
    TRUE = "true"
    """The epoch ends as the program expects, and what lies between epochs runs as it is."""


@dataclass(frozen=True)
class RunMode:
    """How rigs run a program. The first rigs find out what it needs, and it holds for every config.

    Attributes:
        terminal: Whether the program trains only if its input and output are a terminal.
        epochs: How its epochs end.
    """

    terminal: bool = False
    epochs: Epochs = Epochs.ENDLESS
