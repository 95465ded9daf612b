"""Rig: the parent's handle on one live copy of the program: open, measure, close."""

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

MARK = "AUTOTUNE_RIG"  # in the environment of all that a rig starts
LAUNCHER_S = 5.0  # it looks after its ranks ten times a second, and ends the others of a failed one
POLL_S = 0.1
BETWEEN_EPOCHS_S = 900.0  # evaluating, saving, drawing: nothing of it makes a step
OVERFLOW_EVERY_S = 0.5
LOG_TAIL_BYTES = 4000

ShouldStop = Callable[[], Ending | None]


@dataclass(frozen=True)
class Reports:
    """Where a rig tells what happens.

    Attributes:
        progress: Called at each block of a running measurement.
        doubt: Called with a sentence that the user should read.
        note: Called with a sentence that is good to know.
    """

    progress: Callable[[Progress], None] = lambda _: None
    doubt: Callable[[str], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None


SILENT = Reports()


class Rig:
    """One process with the program under seams, or one process group under torchrun.

    It stands still between two commands.

    Args:
        program: The program.
        directory: Where the log of this rig goes.
        cache_dir: Where torch.compile keeps its cache between the rigs of a run.
        fence: What keeps the program from changing the user's files.
        gpu_uuids: The GPUs whose memory use is sampled.
        reports: Where this rig tells what happens.
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
        self._polled_at = 0.0
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
        self._phase: Phase = "start-up"  # as it last said, maybe while nobody was asking
        self.steps = 0  # of the program in all, as it last answered
        self.log = directory / "log.txt"

    @property
    def pid(self) -> int | None:
        """Process id, None before ``open()``."""
        return self._process.pid if self._process is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(
        self, setting: AppliedConfig | None, should_stop: ShouldStop, silence_s: float
    ) -> Ready | Ending:
        """Start the program, untouched or under a setting, and wait until it trains."""
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
        """Start the program under a setting with short epochs, and wait for the end of them.

        Plan and caller say when time is up; a silence tells nothing here.
        """
        if ending := self._start(setting, plan):
            return Rehearsal(None, ending)
        answer = self._await(should_stop, math.inf)
        if isinstance(answer, Ending):
            return Rehearsal(None, answer)
        if not isinstance(answer, Rehearsed):
            raise RigError(f"the rig answered {answer.kind} to a wish for a rehearsal")
        if answer.seen.ended != "by itself":
            return Rehearsal(answer.seen)
        last = self._await(should_stop, math.inf)
        assert isinstance(last, Ending), "a program that has ended says how"
        has_failed = last.outcome is not Outcome.RAN_OUT or not answer.seen.steps
        return Rehearsal(answer.seen, last if has_failed else None)

    def run_bare(self, should_stop: ShouldStop) -> Ending:
        """Start the program without seams, and wait for its end, or until that is given up."""
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
        with theirs:  # the process inherits it: no name, no listener, nobody else
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
        """Switch the program to a setting and measure it.

        After an Ending the rig is of no more use: what state the program is in is unknown.
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
                raise RigError(f"the rig answered {answer.kind} to a wish for a measurement")
            case _:
                assert_never(answer)

    def dissect(
        self, plan: WindowPlan, should_stop: ShouldStop, silence_s: float
    ) -> StepBreakdown | Ending:
        """Take apart what was measured last: where its step goes, and its ceilings."""
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
                raise RigError(f"the rig answered {answer.kind} to a wish for a dissection")
            case _:
                assert_never(answer)

    def close(self) -> None:
        """End the program and all it started; nothing of it is left."""
        if self._link is not None:
            try:
                self._link.send(Close())
                if self._process is not None:
                    self._process.wait(1.0)
            except (LinkClosed, subprocess.TimeoutExpired):
                pass  # end_tree() ends it in any case
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
        """What the program asked for by reading its input; None where it did not."""
        return self._asked if self._terminal is None else self._terminal.asked

    def log_tail(self) -> str:
        """Return the end of what the program printed."""
        if self._terminal is not None:
            self._terminal.settle()
        try:
            return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""

    def _launch_plan(self, setting: AppliedConfig | None, wire: int) -> LaunchPlan:
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
        """A value that nothing else has: the folder's name is drawn."""
        return "/".join(self._own_dir.parts[-2:])

    @property
    def _codes(self) -> Path:
        """Where the launcher notes how its ranks ended."""
        return self._own_dir / "codes"

    def _defaults(self) -> dict[str, str]:
        wanted = {"TORCHINDUCTOR_CACHE_DIR": str(self._cache_dir)}
        return {name: value for name, value in wanted.items() if name not in os.environ}

    def _await(  # noqa: C901, PLR0912 - one branch per message
        self, should_stop: ShouldStop, silence_s: float
    ) -> Ready | Measured | Dissected | NotFinite | Rehearsed | Ending:
        """Wait for an answer, sampling probes; end on death, silence, or the caller's wish."""
        assert self._link is not None, "an answer needs an open rig"
        heard = monotonic()
        while True:
            try:
                message = self._link.receive(POLL_S)
            except LinkClosed:
                return self._post_mortem()
            now = monotonic()
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
                    heard = now  # to an earlier question, which was given up or answered before
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
        """End a program that writes more than the scratch folders may hold; looks now and then."""
        if self._view is None or now - self._polled_at < OVERFLOW_EVERY_S:
            return None
        self._polled_at = now
        reason = self._view.overflow()
        return None if reason is None else Ending(Outcome.SCRATCH_FULL, reason, self.log_tail())

    def _compare_gpus(self, inside: int) -> None:
        """A fence must not hide a GPU; a rank sees one of them by design."""
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
        """Say how the program ended; of several ranks, the one that ended the others."""
        words = [word] if word is not None else []
        codes: dict[int, int] = {}
        if not self._has_ranks:  # but the program may have started some itself
            words = failures.started_words(word, self._own_dir)
            codes = failures.exit_codes(self._codes)
        elif not (word is not None and not word.exception):
            assert self._process is not None, "only a started rig can end"
            try:
                self._process.wait(LAUNCHER_S)
                codes = failures.exit_codes(self._codes)
            except subprocess.TimeoutExpired:
                pass  # its ranks are ended with it; what they have said counts
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
        """What the rig said before it went, if that was not read yet."""
        try:
            while self._link is not None and (message := self._link.receive(0.0)) is not None:
                if isinstance(message, Ended):
                    return message
        except LinkClosed:
            return None
        return None

    def _post_mortem(self) -> Ending:
        """Say how the process died; a last word that it sent counts more than its exit code.

        Raises:
            FenceError: when it could not be fenced, so that it never began.
        """
        if self._view is not None and (error := self._view.error()):
            raise FenceError(
                f"The {self._fence.kind} fence worked when it was tried and fails now: {error}. "
                "Try again, or use the next one: --fence landlock"
            )
        return self._ended(self._last_word())
