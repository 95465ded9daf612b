"""Worth: what a speedup saves in hours, and in money where the price of an hour is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.measurement.interval import Interval
from autotune.results.result import SearchResult
from autotune.results.wording import HOUR, estimated_duration


@dataclass(frozen=True)
class Training:
    """What the user says of the training, for which a search is worth something.

    Attributes:
        hours: Hours that it takes as written; None takes what the search read from the program.
        price_per_hour: Of the machine, in any currency; None leaves money out.
    """

    hours: float | None = None
    price_per_hour: float | None = None


def sentences(result: SearchResult, training: Training) -> tuple[str, ...]:
    """Return what the recommended config saves; empty if nothing is recommended."""
    return tuple(_sentences(result, training)) if result.changes else ()


def _sentences(result: SearchResult, training: Training) -> Iterator[str]:
    gain, about = result.speedup, "by the speedup of the training loop"
    hours = training.hours or result.head.options.goal.hours
    saved_s = None
    if hours is not None:
        before_s, after_s = hours * HOUR, hours * HOUR / gain.estimate
        saved_s = before_s - after_s
        yield (
            f"A training of {hours:g} h takes {estimated_duration(after_s)}, so it saves "
            f"{estimated_duration(saved_s)} ({_range(gain, before_s)}), {about}."
        )
    elif (known := _known_seconds(result)) is not None:
        before_s, after_s = known
        saved_s = before_s - after_s
        yield (
            "The training steps of the whole training take "
            f"{estimated_duration(after_s)} instead of {estimated_duration(before_s)}, estimated."
        )
    else:
        saved_s = HOUR * (1 - 1 / gain.estimate)
        yield (
            f"Of each hour that the program trains as written, it saves "
            f"{estimated_duration(saved_s)} ({_range(gain, HOUR)}), {about}."
        )
    if training.price_per_hour is not None:
        price = training.price_per_hour
        yield f"At {price:g} per hour, that is worth {price * saved_s / HOUR:,.2f}."
    if result.break_even_steps is not None:
        yield f"Compiling pays off after {result.break_even_steps:,} steps."


def _known_seconds(result: SearchResult) -> tuple[float, float] | None:
    seconds = {} if result.training_steps is None else result.training_steps.seconds
    return (seconds["baseline"], seconds["best"]) if len(seconds) > 1 else None


def _range(gain: Interval, before_s: float) -> str:
    low, high = (before_s * (1 - 1 / bound) for bound in (gain.low, gain.high))
    return f"{estimated_duration(max(0.0, low))} to {estimated_duration(high)}"
