"""Tell the parent, unasked, what the program does: how it starts, that it lives, is away."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep, time
from types import CodeType

from autotune.inside.code.frames import INSTALLED, is_programs, stack
from autotune.inside.ranks.forks import TRAINS_IN_FORKS
from autotune.inside.step_tracker import StepTracker
from autotune.machine.hardware import Gpu
from autotune.program.profile import Profile
from autotune.rig.wire import Ended, Link, LinkClosed, Phase, Progress, Ready

LOADER = str(Path("torch", "utils", "data", "dataloader.py"))
PROCESSES = f"{os.sep}multiprocessing{os.sep}"  # in the paths of Python's package and of torch's
WAITED_FOR_PROCESSES = "waited for processes that it had started itself"
SIGN_OF_LIFE_S = 5.0
PROGRESS_S = 0.3  # between two messages of a program that starts
FIRST_WORD_S = 1.0  # without a step until the first description of what the program does
LATER_WORDS = 1.5  # factor on the time between two descriptions
LAST_WORD_S = 300.0  # after this, the parent may take the silence for a hang
FIRST_STEPS = 8  # each is reported, so that the parent learns how long a step takes
# Steps with other loaders between two epochs can be part of the same training. Only if they
# exceed both limits and the length of the epoch do they count as another stage of training.
MAX_STEPS, LONGEST_S = 200, 10.0


class Reporter:
    """Holds the link to the parent, and reports by it what nobody asks for.

    Attributes:
        lock: Guards the link, and what is answered, against other threads.
        away_since: Total steps and time at the end of the last epoch; None while the program
            trains. Between two epochs a program may evaluate or save for minutes, which must not
            look like a hang to the parent, or train on with other loaders.
        start_is_over: Set when the profile was sent, or the program is left alone; its start is
            then no longer reported.
        sent: When the parent was told last that the program lives, by ``perf_counter``.
    """

    def __init__(
        self,
        link: Link,
        started: float,
        tracker: StepTracker,
        quit_process: Callable[[], None],
    ) -> None:
        self.link = link
        self._started = self.sent = started
        self._tracker = tracker
        self._quit = quit_process
        self.lock = threading.RLock()
        self.away_since: tuple[int, float] | None = None
        self.start_is_over = threading.Event()
        self._first_step_s: float | None = None
        for work in (self._describe, self._watch_forks):
            threading.Thread(target=work, daemon=True).start()

    def step_made(self) -> None:
        """Report a step of a program that starts, so that a slow one does not seem to hang."""
        if self._first_step_s is None:
            self._first_step_s = perf_counter() - self._started
        if self._tracker.steps <= FIRST_STEPS or perf_counter() - self.sent > PROGRESS_S:
            self._tell_start()

    def ready(self, profile: Profile, devices: Iterable[Gpu]) -> None:
        """Send the profile, with the GPUs that ranks see."""
        with self.lock:
            self.start_is_over.set()
            ready = Ready(
                profile,
                startup_s=perf_counter() - self._started,
                downloaded_to=tuple(sorted(self._tracker.seams.fence.downloads.places)),
                first_step_s=self._first_step_s,
                devices=tuple(devices),
            )
            self.link.send(ready)

    def tell_of_life(self) -> None:
        """Send a sign of life if none was sent lately; nothing before the profile was sent."""
        if self.start_is_over.is_set() and perf_counter() - self.sent > SIGN_OF_LIFE_S:
            self._tell(self._phase)

    def is_another_stage(self) -> bool:
        """Return whether the program has gone on to another stage of training, with other loaders.

        A search does not tune such a stage.
        """
        if self.away_since is None:
            return False
        steps, since_s = self.away_since
        is_long = perf_counter() - since_s > LONGEST_S
        return is_long and self._tracker.steps - steps > max(MAX_STEPS, self._tracker.epoch.steps)

    def refuse_forks(self) -> None:
        """Tell the parent that the program trains in forked processes, so cannot be measured."""
        with self.lock:
            self.link.send(Ended(0, TRAINS_IN_FORKS, "", 1, at_s=time()))

    @property
    def _phase(self) -> Phase:
        """The phase that the parent should assume while it receives no messages."""
        return "turns" if self.away_since is None else "between epochs"

    def _tell(self, phase: Phase) -> None:
        if self._tracker.forks.is_child:
            # A thread that fork did not copy may hold the lock, and the link is closed here.
            return
        with self.lock:
            self.link.send(Progress(phase))
            self.sent = perf_counter()

    def _tell_start(self, what: str = "", unseen: str = "") -> None:
        with self.lock:
            if not self.start_is_over.is_set():
                elapsed_s = perf_counter() - self._started
                steps = self._tracker.steps
                self.link.send(Progress("start-up", steps, elapsed_s, what, unseen))
                self.sent = perf_counter()

    def _describe(self) -> None:
        """Report what the program does while it makes no step, and later its long absences.

        The messages become rarer and end, so that the parent can take the silence for a hang.
        """
        wait_s, told = FIRST_WORD_S, "turns"
        with suppress(LinkClosed):
            while not self.start_is_over.wait(wait_s) and wait_s < LAST_WORD_S:
                if perf_counter() - self.sent > wait_s / 2:
                    self._tell_start(doing(), self._tracker.seams.steps.by_hand.unseen())
                wait_s *= LATER_WORDS
            self.start_is_over.wait()
            while True:
                sleep(SIGN_OF_LIFE_S)
                if (phase := self._phase) != told:
                    told = phase
                    self._tell(phase)

    def _watch_forks(self) -> None:
        tracker = self._tracker
        # A program that waits for processes that it has started probably trains in those
        trainer = tracker.forks.wait_for_trainer(
            lambda: tracker.steps > 0, lambda: doing().startswith(WAITED_FOR_PROCESSES)
        )
        if trainer is not None:
            with suppress(LinkClosed):
                self.refuse_forks()
            self._quit()


def doing() -> str:
    """Return in a few words what the main thread does; empty if that cannot be told."""
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main) if main is not None else None  # noqa: SLF001
    return describe([(f.f_code, f.f_lineno) for f in stack(frame)])


def describe(calls: list[tuple[CodeType, int]]) -> str:
    """Return in a few words what a stack does, with the function and line of the program's code.

    Args:
        calls: Code and line number of each call, the innermost first.

    Returns:
        A clause such as ``waited for a batch of its DataLoader in main (train.py:7)``; empty if no
        call is the program's own. The parent looks for words of these clauses to suggest a remedy.
    """
    files = [code.co_filename for code, _ in calls]
    what = "was busy"
    if any(file.endswith(LOADER) for file in files):
        what = "waited for a batch of its DataLoader"
    elif any(file.startswith(INSTALLED) and PROCESSES in file for file in files):
        what = WAITED_FOR_PROCESSES
    for code, line in calls:
        if is_programs(code):
            place = f"{Path(code.co_filename).name}:{line}"
            is_function = code.co_name != "<module>"
            return f"{what} in {code.co_name} ({place})" if is_function else f"{what} at {place}"
    return ""
