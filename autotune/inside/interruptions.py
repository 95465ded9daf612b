"""Watch for what the program does every N steps in the middle of an epoch, besides training."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, median
from time import perf_counter

from autotune.measurement.epochs.interruption import Interruptions

USUAL_STEPS = 15  # of which the median is what a step takes
LEAST = 1.0  # such steps that an interruption takes, else it is noise
MOST = 1000  # interruptions that are kept, the latest ones
GROWN = 2.0  # times the mean distance: the program interrupts itself less often than at first
Seen = tuple[int, float]  # batches until then, and seconds


class InterruptionWatch:
    """Times the steps of a training pass, and keeps those in which the program did more.

    ``StepTracker`` calls it at each step boundary. It does not wait for the device: an evaluation
    reads its metrics, which waits for it anyway.

    Args:
        now: Returns seconds.
    """

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self._now = now
        self._began: float | None = None
        self._usual_s: deque[float] = deque(maxlen=USUAL_STEPS)
        self._batches = 0
        self._all: deque[Seen] = deque(maxlen=MOST)

    @property
    def seen(self) -> Interruptions | None:
        """The interruptions so far; None before the second one.

        A program may evaluate often at first and seldom later. Where the distances have grown, only
        those in the later half of the batches count.
        """
        every = [*self._all]
        late = [one for one in every if 2 * one[0] > self._batches]
        if len(every) > 1 and len(late) > 1 and max(_apart(late)) > GROWN * fmean(_apart(every)):
            return _together(late)
        return _together(every) if len(every) > 1 else None

    def step_begins(self) -> None:
        """Note that the program goes on after a step boundary, with its next step."""
        self._began = self._now()

    def pass_left(self) -> None:
        """Note that the program has left its training pass: what came then is not in its middle."""
        self._began = None

    def step_ended(self, batches: int, *, is_usual: bool) -> None:
        """Note a step.

        Args:
            batches: Batches of the step.
            is_usual: Whether the program did nothing else in it.
        """
        self._batches += batches
        began, self._began = self._began, None
        if began is None:
            return
        seconds = self._now() - began
        if is_usual:
            self._usual_s.append(seconds)
        elif self._usual_s and seconds > (1 + LEAST) * (usual_s := median(self._usual_s)):
            self._all.append((self._batches, seconds - usual_s))


def _apart(seen: Sequence[Seen]) -> list[int]:
    return [later[0] - earlier[0] for earlier, later in pairwise(seen)]


def _together(seen: Sequence[Seen]) -> Interruptions:
    apart, seconds = _apart(seen), [one[1] for one in seen[1:]]
    return Interruptions(len(apart), sum(apart), sum(seconds), max(seconds), max(apart))
