"""The parent's open question: the task that answers it, and whether it was answered."""

from __future__ import annotations

import threading
from contextlib import suppress

from autotune.inside.examining.examiner import Examiner
from autotune.inside.reporter import Reporter
from autotune.inside.step_profiler import StepProfiler
from autotune.inside.turns import Turns
from autotune.measurement.turn import Taken
from autotune.rig.link import LinkClosed
from autotune.rig.wire import TakeTurns, TookTurns

MOST_EXAMINED_S = 75.0

Task = StepProfiler | Examiner | Turns


class Question:
    """The question that the parent has asked last.

    ``LeadRank`` has one, and asks the next one when this one is answered. A timer thread answers an
    examination whose time is up while the program is within a long step; the reporter's lock keeps
    it from answering twice.

    Args:
        reporter: Holds the link and the lock.

    Attributes:
        task: Answers it in steps of the program; None before it begins and when it is done.
        asked: The turns that it asks for; None if it asks for something else.
        is_answered: Whether it was answered; set first by the thread that will send the answer.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._number = 0
        self._overtime = threading.Timer(0.0, lambda: None)
        self.task: Task | None = None
        self.asked: TakeTurns | None = None
        self.is_answered = False

    def open(self, number: int, asked: TakeTurns | None = None) -> None:
        """Take the parent's next question by its number."""
        self._number, self.asked, self.is_answered = number, asked, False

    def limit(self, task: Examiner) -> None:
        """Answer within ``MOST_EXAMINED_S``, whatever an examination has found by then."""
        self._overtime = threading.Timer(MOST_EXAMINED_S, self.answer_late, (task,))
        self._overtime.daemon = True
        self._overtime.start()

    def close(self) -> None:
        """End the limit of time."""
        self._overtime.cancel()

    def answer_turns(self, taken: Taken) -> None:
        """Answer with turns."""
        self._reporter.send(TookTurns(taken, self._number))

    def answer(self, task: StepProfiler | Examiner) -> None:
        """Answer with what a task has found."""
        with self._reporter.lock:
            self._reporter.send(task.answer(self._number))

    def answer_late(self, task: Examiner) -> None:
        """Answer with what was seen so far; runs in a timer thread.

        The program is then within a step that takes very long, or within an item that never comes.
        """
        with self._reporter.lock:
            if task is self.task and not self.is_answered:
                self.is_answered = True
                with suppress(LinkClosed):
                    self._reporter.send(task.answer(self._number))
