"""OpenRig: the started process of a rig, with everything that is open while it runs.

``Rig`` starts the process and asks; this waits for the answers, and turns each way in which the
process can end into an ``Ending``. All of it runs on the thread that asks.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TypeVar

from autotune.errors import DEFECT, FenceError, RigError
from autotune.files import access
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.fence_options import FenceKind
from autotune.program.sources import Sources
from autotune.rig import failures, processes
from autotune.rig.fence import View
from autotune.rig.resource_monitor import ResourceMonitor
from autotune.rig.terminal import Asked, Terminal
from autotune.rig.wire import (
    IMPORTED,
    AskedInput,
    Close,
    Ended,
    Examine,
    Examined,
    Imported,
    Link,
    LinkClosed,
    Phase,
    ProfileStep,
    Progress,
    Start,
    StepProfiled,
    TakeTurns,
    TookTurns,
    Warned,
    decode,
)

MARK = "AUTOTUNE_RIG"  # environment variable of the rig's processes, by which they are found
LAUNCHER_S = 5.0  # for the launcher to end the other ranks (3 s of grace) and to note exit codes
POLL_S = 0.1
BETWEEN_EPOCHS_S = 900.0  # evaluating or saving may take this long, and makes no step
OVERFLOW_EVERY_S = 0.5
LOG_TAIL_BYTES = 4000
MOST_LINE = 200  # characters of a line that is shown
# What moves a cursor or sets a colour (ECMA-48), and what sets a title
ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)")
MOST_LOG_BYTES = 64 << 20  # a progress bar prints some 100 bytes, ten times a second: for 18 hours

ShouldStop = Callable[[], Ending | None]
A = TypeVar("A")


@dataclass(frozen=True)
class Reports:
    """Callbacks by which a rig reports what happens; all do nothing by default.

    Attributes:
        sources: What the program's processes have imported; None does not compare that.
        is_urgent: Asked, not told: whether this process may be killed soon, so that it waits for
            none that ends.
        signalled: Why the work ends, where a signal to all processes of a job has ended it, so that
            the program may have died of that; None otherwise.
    """

    progress: Callable[[Progress], None] = lambda _: None
    warning: Callable[[str], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None
    sources: Sources | None = None
    is_urgent: Callable[[], bool] = processes.never
    signalled: Callable[[], Ending | None] = lambda: None


SILENT = Reports()


@dataclass(frozen=True)
class Place:
    """Where a rig's process runs."""

    fence: FenceKind
    view: View
    log: Path
    terminal: Terminal | None
    has_ranks: bool


def mark_of(view: View) -> str:
    """Return the value of ``MARK``; unique, because the name of the rig's folder is random."""
    return "/".join(view.own_dir.parts[-2:])


def codes_in(view: View) -> Path:
    """Return the file in which the launcher notes the exit codes of ranks that failed."""
    return view.own_dir / "codes"


def tail_of(log: Path) -> str:
    """Return the last 4 kB of a log; empty if nothing was printed."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return file.read(LOG_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""


def last_line_of(log: Path) -> str:
    """Return the last line of a log that says anything, without what steers a terminal."""
    text = ESCAPES.sub("", tail_of(log)).replace("\r", "\n")
    said = ("".join(c for c in line if c.isprintable()).strip() for line in text.split("\n"))
    return next(filter(None, reversed([*said])), "")[:MOST_LINE]


def cut(log: Path) -> None:
    """Have a log that has become too long begin anew with its last 4 kB.

    Whatever writes to it appends, so it goes on at the new end.
    """
    with suppress(OSError):
        if log.stat().st_size > MOST_LOG_BYTES:
            tail = tail_of(log)
            os.truncate(log, 0)
            with log.open("a", encoding="utf-8") as file:
                file.write(f"[autotune has left out what was printed before]\n{tail}")


class OpenRig:
    """A started process and the parent's connection to it. ``Rig`` makes it and closes it once."""

    def __init__(
        self,
        place: Place,
        process: subprocess.Popen[bytes],
        link: Link,
        monitor: ResourceMonitor,
        reports: Reports,
    ) -> None:
        self.place = place
        self.process = process
        self.monitor = monitor
        self._link = link
        self._reports = reports
        self._polled_at = 0.0  # when the size of the scratch folders was last looked at
        self._mounts: processes.OwnMounts | None = None
        self._asked: Asked | None = None
        self._imports_bytes = 0  # how far the file of what was imported is read
        self._number = 0  # of the last question; answers to earlier ones are dropped
        # Kept between questions: the program may have left its training loop before the next one.
        self._phase: Phase = "start-up"

    def ask(
        self,
        question: Start | TakeTurns | ProfileStep | Examine,
        wanted: type[A],
        should_stop: ShouldStop,
        silence_s: float,
    ) -> A | Ending:
        """Send a question and wait for its answer, as ``wait()`` does."""
        if not isinstance(question, Start):
            self._number += 1
            question = replace(question, number=self._number)
        try:
            self._link.send(question)
        except LinkClosed:
            return self._post_mortem()
        return self.wait(wanted, should_stop, silence_s)

    def wait(  # noqa: C901, PLR0912 - one branch per message
        self, wanted: type[A], should_stop: ShouldStop, silence_s: float
    ) -> A | Ending:
        """Wait for an answer to the last command, and sample the probes meanwhile.

        The wait also ends if the process dies, if it is silent for too long, if it writes too much,
        or if *should_stop* returns an ``Ending``.

        Raises:
            RigError: when the answer is of another kind than *wanted*.
            ProgramError: when the program has imported another version of a file.
        """
        heard = monotonic()
        while True:
            try:
                message = self._link.receive(POLL_S)
            except LinkClosed:
                return self._unless_signalled(self._post_mortem())
            now = monotonic()
            # Looked for again and again: the process enters its namespace a little after its start.
            if self._mounts is None:
                self._mounts = processes.OwnMounts.of(self.process.pid)
            match message:
                case Progress(phase):
                    heard = now
                    self._phase = phase
                    self._reports.progress(message)
                case Warned(sentence):
                    self._reports.warning(sentence)
                case AskedInput(prompt):
                    self._asked = Asked(prompt, now, self._asked.times + 1 if self._asked else 1)
                case Ended():
                    return self._unless_signalled(self._ended(message))
                case TookTurns() | StepProfiled() | Examined() if message.number != self._number:
                    heard = now  # an answer to an earlier question, which nobody waits for now
                case None:
                    if self.process.poll() is not None:
                        return self._unless_signalled(self._post_mortem())
                    is_between = self._phase == "between epochs"
                    patience_s = max(silence_s, BETWEEN_EPOCHS_S) if is_between else silence_s
                    if now - heard > patience_s:
                        return Ending(
                            Outcome.HUNG, f"no step for {patience_s:.0f} s", self.log_tail()
                        )
                case _:
                    if not isinstance(message, wanted):
                        raise RigError(
                            f"{DEFECT}the process that runs your program sent a message that was "
                            f"not asked for, {message!r}"
                        )
                    self._hear_imports()
                    return message
            self.monitor.sample()
            if ending := self._overflow(now) or should_stop():
                return ending

    def _unless_signalled(self, ending: Ending) -> Ending:
        """Return how a program ended, unless autotune got a signal to end: both may get it.

        Batch systems and service managers send it to all processes of a job.
        """
        asked = self._reports.signalled()
        if asked is None:
            self._hear_imports()  # what was edited may be what has failed
        return asked or ending

    def _hear_imports(self) -> None:
        """Compare what the program's processes have imported since this was done last.

        Raises:
            ProgramError: when they have imported another version of a file.
        """
        if self._reports.sources is None:
            return
        for line in access.lines_left(self.place.view.own_dir / IMPORTED, self._imports_bytes):
            if not line.endswith(b"\n"):
                return  # it is being written
            self._imports_bytes += len(line)
            with suppress(RigError):  # the program may write to that folder, too
                told = decode(line)
                if isinstance(told, Imported):
                    self._reports.sources.saw(told.path, told.digest, told.changed_ns)

    def _overflow(self, now: float) -> Ending | None:
        """Return an ending if the program wrote more than a trial may."""
        if now - self._polled_at < OVERFLOW_EVERY_S:
            return None
        self._polled_at = now
        self._hear_imports()
        cut(self.place.log)
        reason = self.place.view.overflow()
        return None if reason is None else Ending(Outcome.SCRATCH_FULL, reason, self.log_tail())

    @property
    def asked(self) -> Asked | None:
        """The last time that the program read its standard input; None if it never did."""
        terminal = self.place.terminal
        return self._asked if terminal is None else terminal.asked

    def log_tail(self) -> str:
        """Return the last 4 kB that the program printed; empty if it printed nothing."""
        if self.place.terminal is not None:
            self.place.terminal.settle()
        return tail_of(self.place.log)

    def _ended(self, word: Ended | None) -> Ending:
        """Return how the program ended; of several ranks, how the one ended that failed first."""
        words = [word] if word is not None else []
        codes: dict[int, int] = {}
        if not self.place.has_ranks:  # autotune started no ranks, but the program may have
            words = failures.started_words(word, self.place.view.own_dir)
            codes = failures.exit_codes(codes_in(self.place.view))
        elif not (word is not None and not word.exception):
            self._exit_code(LAUNCHER_S)  # close() ends it and its ranks
            codes = failures.exit_codes(codes_in(self.place.view))  # noted before ranks are ended
            words += failures.left_words(self.place.view.own_dir)
        ending = failures.from_ranks(words, codes, self._exit_code(5.0), self.log_tail())
        if ending.outcome is Outcome.CRASHED and (full := self.place.view.overflow()):
            # However the library spells it that could not write
            reason = f"{ending.reason} ({full})"
            ending = replace(ending, outcome=Outcome.SCRATCH_FULL, reason=reason)
        if (asked := self.asked) is None:
            return ending
        return failures.having_asked(ending, monotonic() - asked.at_s, asked.prompt)

    def _post_mortem(self) -> Ending:
        """Return how a process ended that closed its wire or died.

        A final message that it sent counts more than its exit code.
        """
        if error := self.place.view.error():
            raise FenceError(
                f"The {self.place.fence} fence worked when autotune tried it, and fails now: "
                f"{error}. Try again, or choose another with --fence."
            )
        word: Ended | None = None
        until = monotonic() + LAUNCHER_S  # what it has started may go on sending
        with suppress(LinkClosed):
            while word is None and (message := self._link.receive(0.0)) and monotonic() < until:
                word = message if isinstance(message, Ended) else None
        return self._ended(word)

    def _exit_code(self, patience_s: float) -> int | None:
        return processes.exit_code(self.process, patience_s, self._reports.is_urgent)

    def close_unless_urgent(self) -> bool:
        """Ask the program to end, which has two seconds for it, and close what was opened.

        GPU memory that does not come back is reported.

        Returns:
            Whether that is done. Once it is urgent nothing is waited for, and ``close()`` does it.
        """
        is_urgent = self._reports.is_urgent
        if is_urgent():
            return False
        with suppress(LinkClosed):  # it is ended in any case
            self._link.send(Close())
            self._exit_code(1.0)
        self._end_tree(1.0, is_urgent)
        held = self.monitor.held_bytes(is_urgent)
        if is_urgent():
            return False
        if held:
            self._reports.warning(
                f"{held / 2**20:,.0f} MiB of GPU memory did not come back after a process ended; "
                "what is measured from here on has less. 'nvidia-smi' shows who holds it."
            )
        self._release()
        return True

    def close(self) -> None:
        """End the program and everything that it started at once, and throw its writes away."""
        self._end_tree(0.0, processes.never)
        self._release()

    def _end_tree(self, grace_s: float, is_urgent: Callable[[], bool]) -> None:
        mark = MARK, mark_of(self.place.view)
        processes.end_tree(self.process, grace_s, mark, self._mounts, is_urgent)

    def _release(self) -> None:
        if self.place.terminal is not None:
            self.place.terminal.close()
        cut(self.place.log)
        if self._mounts is not None:
            self._mounts.close()
        self._link.close()
        self.place.view.close()
