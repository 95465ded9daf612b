"""Watch for what the program does every N steps in the middle of an epoch, besides training."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from time import perf_counter

from autotune.measurement.epochs.interruption import Interruptions

USUAL_STEPS = 15  # of which the median is what a step takes
LEAST = 1.0  # such steps that an interruption takes, else it is noise


class InterruptionWatch:
    """Times the steps of a training pass, and sums up those in which the program did more.

    ``StepTracker`` calls it at each step boundary. It does not wait for the device: an evaluation
    reads its metrics, which waits for it anyway.

    Args:
        now: Returns seconds.

    Attributes:
        seen: The interruptions so far; None before the second one.
    """

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self.seen: Interruptions | None = None
        self._now = now
        self._began: float | None = None
        self._usual_s: deque[float] = deque(maxlen=USUAL_STEPS)
        self._batches = 0
        self._first: int | None = None  # batches until the first interruption

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
            self._interrupted(seconds - usual_s)

    def _interrupted(self, seconds: float) -> None:
        if self._first is None:
            self._first = self._batches
            return
        before = self.seen or Interruptions(0, 0, 0.0, 0.0)
        self.seen = Interruptions(
            before.later + 1,
            self._batches - self._first,
            before.seconds + seconds,
            max(before.largest_s, seconds),
        )
