"""Rig: the parent's handle on one running copy of the user's program.

The parent opens a rig, has it measure one config after another while the program trains, and closes
it. The process at the other end of the wire runs ``autotune.inside``. A failure of the program is a
value (an ``Ending``), never an exception; ``RigError`` and ``FenceError`` are failures of autotune
and of the system.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Self, assert_never

from autotune.errors import FenceError, RigError
from autotune.knobs import launch_plan_for
from autotune.machine.probes.nvml import NvmlMemory
from autotune.measurement.measurement import Measurement, StepBreakdown
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.applied_config import AppliedConfig
from autotune.program.program import LaunchPlan, Program, python_plan
from autotune.program.rehearsal import Rehearsal, RehearsalPlan
from autotune.program.trackers import TRACKERS_OFF
from autotune.rig import failures, processes
from autotune.rig.fence import Fence, View
from autotune.rig.resource_monitor import ResourceMonitor
from autotune.rig.terminal import Asked, Terminal
from autotune.rig.torchrun_plan import with_ranks
from autotune.rig.wire import (
    AskedInput,
    Close,
    Dissect,
    Dissected,
    Doubted,
    Ended,
    Link,
    LinkClosed,
    Measure,
    Measured,
    NotFinite,
    Phase,
    Progress,
    Ready,
    Rehearsed,
    Start,
    WindowPlan,
)

MARK = "AUTOTUNE_RIG"  # environment variable of the rig's processes, by which they are found
LAUNCHER_S = 5.0  # for the launcher to end the other ranks (3 s of grace) and to note exit codes
POLL_S = 0.1
BETWEEN_EPOCHS_S = 900.0  # evaluating or saving may take this long, and makes no step
OVERFLOW_EVERY_S = 0.5
LOG_TAIL_BYTES = 4000

ShouldStop = Callable[[], Ending | None]


@dataclass(frozen=True)
class Reports:
    """Callbacks by which a rig reports what happens; all do nothing by default.

    They are called on the thread that waits for the rig's answer.

    Attributes:
        progress: Called with each sign of life, such as a finished block of steps.
        doubt: Called with a sentence about something that may spoil the result.
        note: Called with a sentence that is only information.
    """

    progress: Callable[[Progress], None] = lambda _: None
    doubt: Callable[[str], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None


SILENT = Reports()


class Rig:
    """One live copy of the program: a process with autotune's seams, or several ranks of it.

    A rig is opened once: by ``open()`` to be measured, by ``rehearse()`` or by ``run_bare()``.
    Between two commands the program waits at the end of a step.
    After an ``Ending``, close the rig; use it as a context manager to be sure of that.

    Args:
        program: The program to start.
        directory: Folder of this rig, made if it is missing; the program's output goes to
            ``log.txt`` in it.
        cache_dir: Folder of torch.compile's cache, which all rigs of a run share.
        fence: Keeps the program from changing the user's files.
        gpu_uuids: GPUs whose memory, clocks and power are sampled; none on a CPU.
        reports: Callbacks for progress and doubts.

    Attributes:
        steps: Optimizer steps that the program had made in all when it last answered.
        log: File with what the program printed.
    """

    def __init__(
        self,
        program: Program,
        directory: Path,
        cache_dir: Path,
        fence: Fence,
        gpu_uuids: Sequence[str] = (),
        reports: Reports = SILENT,
    ) -> None:
        self._program = program
        self._directory = directory
        self._cache_dir = cache_dir
        self._fence = fence
        self._view: View | None = None
        self._polled_at = 0.0  # when the size of the scratch folders was last looked at
        self._gpu_uuids = tuple(gpu_uuids)
        self._reports = reports
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._watch: ResourceMonitor | None = None
        self._has_ranks = False
        self._mounts: processes.OwnMounts | None = None
        self._terminal: Terminal | None = None
        self._asked: Asked | None = None
        self._number = 0  # of the last question; answers to earlier ones are dropped
        # Kept between questions: the program may have left its training loop before the next one.
        self._phase: Phase = "start-up"
        self.steps = 0
        self.log = directory / "log.txt"

    @property
    def pid(self) -> int | None:
        """Process id of the program, or of its ranks' launcher; None before the rig is started."""
        return self._process.pid if self._process is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(
        self, setting: AppliedConfig | None, should_stop: ShouldStop, silence_s: float
    ) -> Ready | Ending:
        """Start the program and wait until it has made its first training steps.

        Args:
            setting: The config to start under; None runs the program as it is written.
            should_stop: Called about ten times a second; an ``Ending`` from it ends the wait.
            silence_s: A program that shows no sign of life for this long counts as hung.

        Returns:
            What the first steps revealed, or why the program does not train.

        Raises:
            FenceError: when the process could not enter the fence.
            RigError: when the rig breaks the protocol.
        """
        if ending := self._start(setting):
            return ending
        answer = self._await(should_stop, silence_s)
        if isinstance(answer, Ready):
            assert self._view is not None, "a started rig has a view"
            roots = [Path(root) for root in answer.downloaded_to]
            if doubt := self._view.prepared(roots, Path(self._program.cwd)):
                self._reports.doubt(doubt)
            self._compare_gpus(answer.gpus)
        if isinstance(answer, Ready | Ending):
            return answer
        raise RigError(f"the rig answered {answer.kind} before it was ready")

    def rehearse(
        self, setting: AppliedConfig, plan: RehearsalPlan, should_stop: ShouldStop
    ) -> Rehearsal:
        """Start the program with epochs cut short, to see if it survives what lies between them.

        That is evaluation, checkpoints, schedules and the next epoch. Silence is not taken for a
        hang here, because an evaluation makes no steps: the plan and *should_stop* limit the time.

        Args:
            setting: The config to run under.
            plan: How short the epochs are, and how long the rehearsal may take.
            should_stop: Called about ten times a second; an ``Ending`` from it ends the rehearsal.

        Returns:
            What was seen, and how the program failed, if it did.
        """
        if ending := self._start(setting, plan):
            return Rehearsal(None, ending)
        answer = self._await(should_stop, math.inf)
        if isinstance(answer, Ending):
            return Rehearsal(None, answer)
        if not isinstance(answer, Rehearsed):
            raise RigError(f"the rig answered {answer.kind} to a request for a rehearsal")
        if answer.seen.ended != "by itself":
            return Rehearsal(answer.seen)
        # The program ran to its own end: the message that follows says whether by an error.
        last = self._await(should_stop, math.inf)
        assert isinstance(last, Ending), "a program that has ended says how"
        has_failed = last.outcome is not Outcome.RAN_OUT or not answer.seen.steps
        return Rehearsal(answer.seen, last if has_failed else None)

    def run_bare(self, should_stop: ShouldStop) -> Ending:
        """Start the program without seams and wait until it ends or *should_stop* gives up.

        A program that fails here in the same way fails without autotune, too: this is how a failure
        is attributed to the program or to autotune. Nothing is measured.
        """
        if ending := self._start(None, bare=True):
            return ending
        answer = self._await(should_stop, math.inf)
        assert isinstance(answer, Ending), "without seams nothing is answered but the end"
        return answer

    def _start(
        self,
        setting: AppliedConfig | None,
        plan: RehearsalPlan | None = None,
        *,
        bare: bool = False,
    ) -> Ending | None:
        """Start the process and tell it what to run; return how it ended if it has."""
        self._directory.mkdir(parents=True, exist_ok=True)
        used_before = NvmlMemory(self._gpu_uuids).used_bytes()
        self._cache_dir.mkdir(parents=True, exist_ok=True)
        self._view = view = self._fence.view()
        ours, theirs = socket.socketpair()
        with theirs:  # an inherited socket has no name, so no other process can connect to it
            launch = self._launch_plan(setting, theirs.fileno())
            self._has_ranks = launch.ranks is not None
            own = [self._cache_dir]
            if self._program.mode.terminal:
                self._terminal = Terminal(self.log)
            self._process = processes.start(view.fenced(launch, own), self.log, self._terminal)
        self._link = Link(ours)
        self._watch = ResourceMonitor(self._process.pid, self._gpu_uuids, used_before)
        start = Start(
            launch.of(self._program),
            setting,
            str(view.shadow_dir),
            self._fence.kind,
            open_places=tuple(map(str, (*self._fence.open_places, view.own_dir, *own))),
            devices=self._fence.devices,
            max_scratch_bytes=self._fence.max_scratch_bytes,
            rehearsal=plan,
            bare=bare,
        )
        try:
            self._link.send(start)
        except LinkClosed:
            return self._post_mortem()
        return None

    def measure(
        self,
        setting: AppliedConfig,
        plan: WindowPlan,
        should_stop: ShouldStop,
        silence_s: float,
    ) -> Measurement | Ending:
        """Switch the program to a setting while it trains, and measure it.

        After an ``Ending`` the state of the program is unknown, so the rig cannot be used again.

        Args:
            setting: The config to measure.
            plan: How long to warm up and to measure.
            should_stop: Called about ten times a second; an ``Ending`` from it ends the wait.
            silence_s: A program that shows no sign of life for this long counts as hung.

        Raises:
            RigError: when the rig breaks the protocol.
        """
        assert self._link is not None, "measure() needs an open rig"
        assert self._watch is not None, "measure() needs an open rig"
        self._watch.reset()
        self._number += 1
        try:
            self._link.send(Measure(setting, plan, self._number))
        except LinkClosed:
            return self._post_mortem()
        answer = self._await(should_stop, silence_s)
        match answer:
            case Measured(measurement, steps=steps):
                self.steps = steps
                return self._watch.complete(measurement, setting.device)
            case NotFinite():
                return Ending(Outcome.NOT_FINITE, "the loss became NaN or infinite")
            case Ending():
                return answer
            case Ready() | Dissected() | Rehearsed():
                raise RigError(f"the rig answered {answer.kind} to a request for a measurement")
            case _:
                assert_never(answer)

    def dissect(
        self, plan: WindowPlan, should_stop: ShouldStop, silence_s: float
    ) -> StepBreakdown | Ending:
        """Profile the config that was measured last: the parts of its step, and its ceilings.

        The breakdown is empty for several ranks.

        Args:
            plan: How long each part of the profile may take.
            should_stop: Called about ten times a second; an ``Ending`` from it ends the wait.
            silence_s: A program that shows no sign of life for this long counts as hung.
        """
        assert self._link is not None, "dissect() needs an open rig"
        self._number += 1
        try:
            self._link.send(Dissect(plan, self._number))
        except LinkClosed:
            return self._post_mortem()
        answer = self._await(should_stop, silence_s)
        match answer:
            case Dissected(breakdown):
                return breakdown
            case Ending():
                return answer
            case Ready() | Measured() | NotFinite() | Rehearsed():
                raise RigError(
                    f"the rig answered {answer.kind} to a request for a profile of the step"
                )
            case _:
                assert_never(answer)

    def close(self) -> None:
        """End the program and everything that it started, and throw its writes away.

        Does nothing on a rig that was never started; call it only once on any other. GPU memory
        that does not come back is reported as a doubt.
        """
        if self._link is not None:
            try:
                self._link.send(Close())
                if self._process is not None:
                    self._process.wait(1.0)
            except (LinkClosed, subprocess.TimeoutExpired):
                pass  # end_tree() below ends it in any case
        if self._process is not None:
            processes.end_tree(self._process, mark=(MARK, self._mark), mounts=self._mounts)
        if self._terminal is not None:
            self._terminal.close()
            self._terminal = None
        if self._mounts is not None:
            self._mounts.close()
            self._mounts = None
        if self._watch is not None and (held := self._watch.held_bytes()):
            self._reports.doubt(
                f"{held / 2**20:,.0f} MiB of GPU memory did not come back after a process ended; "
                "what is measured from here on has less. 'nvidia-smi' shows who holds it."
            )
        self._watch = None
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._view is not None:
            self._view.close()
            self._view = None

    @property
    def asked(self) -> Asked | None:
        """The last time that the program read its standard input; None if it never did."""
        return self._asked if self._terminal is None else self._terminal.asked

    def log_tail(self) -> str:
        """Return the last 4 kB that the program printed; empty if it printed nothing."""
        if self._terminal is not None:
            self._terminal.settle()
        try:
            return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""

    def _launch_plan(self, setting: AppliedConfig | None, wire: int) -> LaunchPlan:
        """Return how to start the process, with the effects of knobs that act at launch."""
        tmp_dir = self._own_dir / "tmp"
        tmp_dir.mkdir()
        program = self._program
        plan = python_plan(
            "autotune.inside",
            str(wire),
            str(self._own_dir),
            cwd=program.cwd,
            options=program.python_options,
        )
        own = {MARK: self._mark, "TMPDIR": str(tmp_dir), **TRACKERS_OFF}
        plan = plan.with_env(**{**self._defaults(), **program.env, **own})
        plan = replace(plan, args=program.args, keywords=program.keywords, ranks=program.ranks)
        plan = launch_plan_for(setting, plan) if setting is not None else plan
        return with_ranks(replace(plan, pass_fds=(wire,)), codes=self._codes, pass_fds=(wire,))

    @property
    def _own_dir(self) -> Path:
        assert self._view is not None, "a started rig has a view"
        return self._view.own_dir

    @property
    def _mark(self) -> str:
        """The value of ``MARK``; unique, because the name of the rig's folder is random."""
        return "/".join(self._own_dir.parts[-2:])

    @property
    def _codes(self) -> Path:
        """File in which the launcher notes the exit codes of ranks that failed."""
        return self._own_dir / "codes"

    def _defaults(self) -> dict[str, str]:
        """Return variables that the rig sets unless the user's environment has them."""
        wanted = {"TORCHINDUCTOR_CACHE_DIR": str(self._cache_dir)}
        return {name: value for name, value in wanted.items() if name not in os.environ}

    def _await(  # noqa: C901, PLR0912 - one branch per message
        self, should_stop: ShouldStop, silence_s: float
    ) -> Ready | Measured | Dissected | NotFinite | Rehearsed | Ending:
        """Wait for an answer to the last command, and sample the probes meanwhile.

        The wait also ends if the process dies, if it is silent for too long, if it writes too much,
        or if *should_stop* returns an ``Ending``.
        """
        assert self._link is not None, "an answer needs an open rig"
        heard = monotonic()
        while True:
            try:
                message = self._link.receive(POLL_S)
            except LinkClosed:
                return self._post_mortem()
            now = monotonic()
            # Looked for again and again: the process enters its namespace a little after its start.
            if self._mounts is None and self._process is not None:
                self._mounts = processes.OwnMounts.of(self._process.pid)
            match message:
                case Progress(phase):
                    heard = now
                    self._phase = phase
                    self._reports.progress(message)
                case Doubted(sentence):
                    self._reports.doubt(sentence)
                case AskedInput(prompt):
                    self._asked = Asked(prompt, now, self._asked.times + 1 if self._asked else 1)
                case Measured() | Dissected() | NotFinite() if message.number != self._number:
                    heard = now  # an answer to an earlier question, which nobody waits for now
                case Ready() | Measured() | Dissected() | NotFinite() | Rehearsed():
                    return message
                case Ended():
                    return self._ended(message)
                case None:
                    if self._has_died():
                        return self._post_mortem()
                    is_between = self._phase == "between epochs"
                    patience_s = max(silence_s, BETWEEN_EPOCHS_S) if is_between else silence_s
                    if now - heard > patience_s:
                        return self._hung(patience_s)
                case _:
                    raise RigError(f"unexpected message {message!r}")
            if self._watch is not None:
                self._watch.sample()
            if ending := self._overflow(now) or should_stop():
                return ending

    def _overflow(self, now: float) -> Ending | None:
        """Return an ending if the program wrote more than a trial may.

        Looks at the folders every ``OVERFLOW_EVERY_S`` at most; None in between.
        """
        if self._view is None or now - self._polled_at < OVERFLOW_EVERY_S:
            return None
        self._polled_at = now
        reason = self._view.overflow()
        return None if reason is None else Ending(Outcome.SCRATCH_FULL, reason, self.log_tail())

    def _compare_gpus(self, inside: int) -> None:
        """Warn if the program sees fewer GPUs behind the fence than there are.

        Ranks are exempt, because each of them is given a single GPU.
        """
        if not self._has_ranks and inside < len(self._gpu_uuids):
            self._reports.doubt(
                f"The program can use {inside} of {len(self._gpu_uuids)} GPUs behind the fence. "
                "If it can use more without autotune, try --fence landlock."
            )

    def _hung(self, silence_s: float) -> Ending:
        return Ending(Outcome.HUNG, f"no step for {silence_s:.0f} s", self.log_tail())

    def _has_died(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _ended(self, word: Ended | None) -> Ending:
        """Return how the program ended; of several ranks, how the one ended that failed first.

        Args:
            word: Final message of the first process; None if it died before it could send one.
        """
        words = [word] if word is not None else []
        codes: dict[int, int] = {}
        if not self._has_ranks:  # autotune started no ranks, but the program may have
            words = failures.started_words(word, self._own_dir)
            codes = failures.exit_codes(self._codes)
        elif not (word is not None and not word.exception):
            assert self._process is not None, "only a started rig can end"
            try:
                self._process.wait(LAUNCHER_S)
                codes = failures.exit_codes(self._codes)
            except subprocess.TimeoutExpired:
                pass  # close() ends it and its ranks; until then their messages must do
            words += failures.left_words(self._own_dir)
        ending = failures.from_ranks(words, codes, self._exit_code(), self.log_tail())
        if (asked := self.asked) is None:
            return ending
        return failures.having_asked(ending, monotonic() - asked.at_s, asked.prompt)

    def _exit_code(self) -> int | None:
        assert self._process is not None, "only a started rig can end"
        try:
            return self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            return None

    def _last_word(self) -> Ended | None:
        """Return the final message of a rig that has gone, if it lies unread in the socket."""
        try:
            while self._link is not None and (message := self._link.receive(0.0)) is not None:
                if isinstance(message, Ended):
                    return message
        except LinkClosed:
            return None
        return None

    def _post_mortem(self) -> Ending:
        """Return how a process ended that closed its wire or died.

        A final message that it sent counts more than its exit code.

        Raises:
            FenceError: when the process could not enter the fence, so that the program never ran.
        """
        if self._view is not None and (error := self._view.error()):
            raise FenceError(
                f"The {self._fence.kind} fence worked when it was tried and fails now: {error}. "
                "Try again, or use the next one: --fence landlock"
            )
        return self._ended(self._last_word())
