"""RunMode: how rigs must run a program so that it trains in them as it does by itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Epochs(StrEnum):
    """What a rig does where a training loader has no more batches."""

    ENDLESS = "endless"
    """The loader starts over under the program's loop, which never ends."""
    TRUE = "true"
    """The epoch ends as the program expects, and loaders that train nothing are cut short."""
    WHOLE = "whole"
    """The epoch ends, and every other loader is iterated to its end, too."""


@dataclass(frozen=True)
class RunMode:
    """Traits of a program that its first rigs have shown, the same for every config.

    Attributes:
        terminal: It trains only where its input and output are a terminal.
        epochs: How its epochs end.
        brief: It ends within seconds: each config is measured in a process of its own, over all of
            its life.
    """

    terminal: bool = False
    epochs: Epochs = Epochs.ENDLESS
    brief: bool = False
