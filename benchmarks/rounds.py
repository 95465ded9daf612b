"""Speeds of configs that took turns, compared within rounds.

A round gives each config one turn, so what the machine does to a whole round is common to all of
its turns and cancels. A speed is samples over seconds, both in total: a mean of the logarithms of
single steps would take a config whose batches come in bursts for a fast one, and so would weights
that let slow rounds count less: a burst makes its round slow. Errors come from the jackknife over
rounds (B. Efron, The Jackknife, 1982).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LogRatio:
    """Natural logarithm of a ratio of two speeds, with its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Played:
    """One config in one round.

    Attributes:
        seconds: Of the steps that count.
        samples: Of these steps.
    """

    seconds: float
    samples: int


def speedup(rounds: Sequence[tuple[Played, Played]]) -> LogRatio:
    """Return how much faster the first of two configs is than the second, from their rounds.

    Args:
        rounds: Both configs' turns in each round; at least two.
    """
    seconds = np.array([[turn.seconds for turn in pair] for pair in rounds])
    samples = np.array([[turn.samples for turn in pair] for pair in rounds], float)
    log = np.log(samples.sum(0) / seconds.sum(0))
    without = np.log((samples.sum(0) - samples) / (seconds.sum(0) - seconds))
    left_out = without[:, 0] - without[:, 1]
    count = len(rounds)
    error = np.sqrt((count - 1) / count * ((left_out - left_out.mean()) ** 2).sum())
    return LogRatio(float(log[0] - log[1]), float(error))
