"""Rig: the parent's handle on one running copy of the user's program.

The parent opens a rig, lets configs take turns in it while the program trains, and closes
it. The process at the other end of the wire runs ``autotune.inside``. A failure of the program is a
value (an ``Ending``), never an exception; ``RigError`` and ``FenceError`` are failures of autotune
and of the system.
"""

from __future__ import annotations

import getpass
import math
import os
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar

from autotune.errors import DEFECT, FenceError, RigError
from autotune.files.access import make_folder
from autotune.knobs import launch_plan_for
from autotune.machine.probes.nvml import NvmlMemory
from autotune.measurement.examination import Examination, StepBreakdown
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.turn import PlannedTurn, Taken
from autotune.program.applied_config import AppliedConfig
from autotune.program.program import LaunchPlan, Program, python_plan
from autotune.program.rehearsal import Rehearsal, RehearsalPlan
from autotune.program.trackers import TRACKERS_OFF
from autotune.rig import processes
from autotune.rig.fence import Fence, View
from autotune.rig.open_rig import (
    MARK,
    SILENT,
    OpenRig,
    Place,
    Reports,
    ShouldStop,
    codes_in,
    mark_of,
    tail_of,
)
from autotune.rig.resource_monitor import ResourceMonitor
from autotune.rig.terminal import Asked, Terminal
from autotune.rig.torchrun_plan import with_hash_seed, with_ranks
from autotune.rig.wire import (
    Ended,
    Examine,
    Examined,
    Link,
    ProfileStep,
    Ready,
    Rehearsed,
    Start,
    StepProfiled,
    TakeTurns,
    TookTurns,
)

# cuDNN's kernels for one convolution differ by 1e-3 where some compute in TF32, which torch allows
# by default. Source: NVIDIA's documentation of cuDNN, "NVIDIA_TF32_OVERRIDE".
NO_TF32 = {"NVIDIA_TF32_OVERRIDE": "0"}
A = TypeVar("A")


class Rig:
    """One live copy of the program: a process with autotune's seams, or several ranks of it.

    A rig is opened once: by ``open()`` to be measured, by ``rehearse()`` or by ``run_bare()``.
    Between two commands the program waits at the end of a step.
    After an ``Ending``, close the rig; use it as a context manager to be sure of that.

    Args:
        gpu_uuids: GPUs that the program may use. Of these, the ones that it does use have their
            memory, clocks and power sampled.

    Attributes:
        pid: Process id of the program, or of its ranks' launcher; None before the rig is started.
        steps: Optimizer steps that the program had made in all when it last answered.
        end: Ends the started process; a factory may put that off.
        raise_again: Returns a new fence where the first one has failed; None cannot.
    """

    def __init__(
        self,
        program: Program,
        directory: Path,
        cache_dir: Path,
        fence: Fence,
        gpu_uuids: tuple[str, ...] = (),
        reports: Reports = SILENT,
    ) -> None:
        self._program = program
        self._directory = directory
        self._cache_dir = cache_dir
        self._fence = fence
        self._gpu_uuids = gpu_uuids
        self._reports = reports
        self._live: OpenRig | None = None
        self.pid: int | None = None
        self.steps = 0
        self.end: Callable[[OpenRig], object] = OpenRig.close_unless_urgent
        self.raise_again: Callable[[], Fence] | None = None
        self.log = directory / "log.txt"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(
        self, applied: AppliedConfig | None, should_stop: ShouldStop, silence_s: float
    ) -> Ready | Ending:
        """Start the program and wait until it has made its first training steps.

        Returns:
            What the first steps revealed, or why the program does not train.

        Raises:
            FenceError: when the process could not enter the fence.
            RigError: when the rig breaks the protocol.
        """
        answer = self._first(Ready, should_stop, silence_s, applied)
        if isinstance(answer, Ending):
            return answer
        live = self.live
        live.monitor.watch(tuple(gpu.uuid for gpu in answer.devices if gpu.is_used))
        roots = [Path(root) for root in answer.downloaded_to]
        if warning := live.place.view.prepared(roots, Path(self._program.cwd)):
            self._reports.warning(warning)
        # Each rank is given a single GPU, so they tell nothing of all.
        is_on_gpus = answer.profile.device == "cuda"  # others may hide them, or torch lack CUDA
        count = len(answer.devices)
        if is_on_gpus and not live.place.has_ranks and count < len(self._gpu_uuids):
            self._reports.warning(
                f"The program can use {count} of {len(self._gpu_uuids)} GPUs behind the "
                "fence. If it can use more without autotune, try --fence landlock."
            )
        return answer

    def rehearse(
        self, applied: AppliedConfig, plan: RehearsalPlan, should_stop: ShouldStop
    ) -> Rehearsal:
        """Start the program with epochs cut short, to see if it survives what lies between them.

        That is evaluation, checkpoints, schedules and the next epoch. Silence is not taken for a
        hang here, because an evaluation makes no steps: the plan and *should_stop* limit the time.

        Returns:
            What was seen, and how the program failed, if it did.
        """
        answer = self._first(Rehearsed, should_stop, math.inf, applied, plan)
        if isinstance(answer, Ending):
            return Rehearsal(None, answer)
        if answer.seen.ended != "by itself":
            return Rehearsal(answer.seen)
        # The program ran to its own end: the message that follows says whether by an error.
        last = self.live.wait(Ended, should_stop, math.inf)
        assert isinstance(last, Ending), "a program that has ended says how"
        has_failed = last.outcome is not Outcome.RAN_OUT or not answer.seen.steps
        return Rehearsal(answer.seen, last if has_failed else None)

    def run_bare(self, should_stop: ShouldStop) -> Ending:
        """Start the program without seams and wait until it ends or *should_stop* gives up.

        A program that fails here in the same way fails without autotune, too: this is how a failure
        is attributed to the program or to autotune. Nothing is measured.
        """
        answer = self._first(Ended, should_stop, math.inf, None, bare=True)
        assert isinstance(answer, Ending), "without seams nothing is answered but the end"
        return answer

    def _first(
        self,
        wanted: type[A],
        should_stop: ShouldStop,
        silence_s: float,
        applied: AppliedConfig | None,
        plan: RehearsalPlan | None = None,
        *,
        bare: bool = False,
    ) -> A | Ending:
        """Start the process and wait for its first answer; once more, if the fence fails."""
        if (ending := should_stop()) is not None:
            return ending
        while True:
            live, start = self._start(applied, plan, bare=bare)
            try:
                return live.ask(start, wanted, should_stop, silence_s)
            except FenceError:
                if self.raise_again is None:
                    raise
            self.close()
            self._fence, self.raise_again = self.raise_again(), None

    def _start(
        self,
        applied: AppliedConfig | None,
        plan: RehearsalPlan | None = None,
        *,
        bare: bool = False,
    ) -> tuple[OpenRig, Start]:
        """Start the process; return it with the message that tells it what to run."""
        make_folder(self._directory, private=True)
        used_before = NvmlMemory(self._gpu_uuids).used_bytes()
        make_folder(self._cache_dir, private=True)
        view = self._fence.view()
        own = [self._cache_dir]
        ours, theirs = socket.socketpair()
        try:
            with theirs:  # an inherited socket has no name, so no other process can connect to it
                launch = self._launch_plan(view, applied, theirs.fileno())
                if plan is not None and plan.traces is not None:
                    launch = with_hash_seed(launch)
                    if not plan.traces.drops_out:
                        launch = launch.with_env(**NO_TF32)
                terminal = Terminal(self.log) if self._program.mode.terminal else None
                process = processes.start(view.fenced(launch, own), self.log, terminal)
        except BaseException:  # nothing runs yet
            ours.close()
            view.close()
            raise
        self.pid = process.pid
        monitor = ResourceMonitor(process.pid, self._gpu_uuids, used_before)
        place = Place(self._fence.kind, view, self.log, terminal, launch.ranks is not None)
        self._live = OpenRig(place, process, Link(ours), monitor, self._reports)
        start = Start(
            launch.of(self._program),
            applied,
            str(view.shadow_dir),
            self._fence.kind,
            open_places=tuple(map(str, (*self._fence.open_places, view.own_dir, *own))),
            rehearsal=plan,
            allowed_cores=tuple(sorted(os.sched_getaffinity(0))),
            bare=bare,
        )
        return self._live, start

    @property
    def live(self) -> OpenRig:
        """The started process.

        Raises:
            RigError: when the rig is not open.
        """
        if self._live is None:
            raise RigError(f"{DEFECT}the process that runs your program is not running")
        return self._live

    def take_turns(
        self,
        configs: Sequence[AppliedConfig],
        schedule: Sequence[PlannedTurn],
        should_stop: ShouldStop,
        silence_s: float,
        *,
        with_loads: bool = False,
    ) -> Taken | Ending:
        """Let configs take turns in the running program.

        After an ``Ending`` the state of the program is unknown, so the rig cannot be used again.

        Raises:
            RigError: when the rig breaks the protocol.
        """
        live = self.live
        live.monitor.reset()
        question = TakeTurns(tuple(configs), tuple(schedule), with_loads=with_loads)
        answer = live.ask(question, TookTurns, should_stop, silence_s)
        if isinstance(answer, Ending):
            return answer
        self.steps = answer.taken.steps
        return live.monitor.complete(answer.taken, configs[0].traits.device)

    def profile_step(
        self, stage_s: float, should_stop: ShouldStop, silence_s: float
    ) -> StepBreakdown | Ending:
        """Profile the config that had the last turn: the parts of its step, and its ceilings."""
        answer = self.live.ask(ProfileStep(stage_s), StepProfiled, should_stop, silence_s)
        return answer if isinstance(answer, Ending) else answer.breakdown

    def examine(self, should_stop: ShouldStop, silence_s: float) -> Examination | Ending:
        """Look at the program under the config that had the last turn, for ``autotune doctor``.

        The examination moves the program's random generators, so the rig is of no use afterwards.
        It is empty for several ranks.
        """
        answer = self.live.ask(Examine(), Examined, should_stop, silence_s)
        return answer if isinstance(answer, Ending) else answer.examination

    def close(self) -> None:
        """End the program and everything that it started, and throw its writes away.

        Does nothing on a rig that is not open. GPU memory that does not come back is reported as a
        doubt.
        """
        if self._live is not None:
            live, self._live = self._live, None
            self.end(live)

    @property
    def asked(self) -> Asked | None:
        """The last time that the program read its standard input; None if it did not, or ended."""
        return None if self._live is None else self._live.asked

    def log_tail(self) -> str:
        """Return the last 4 kB that the program printed; empty if it printed nothing."""
        return tail_of(self.log) if self._live is None else self._live.log_tail()

    def _launch_plan(self, view: View, applied: AppliedConfig | None, wire: int) -> LaunchPlan:
        """Return how to start the process, with the effects of knobs that act at launch."""
        tmp_dir = view.own_dir / "tmp"
        tmp_dir.mkdir()
        # All rigs find the C++ headers that torch.compile has compiled, which takes 10 s. Torch
        # keeps them in the temporary folder, whatever TORCHINDUCTOR_CACHE_DIR says, and each rig
        # has its own; the name of torch's folder there is that of ``default_cache_dir()``.
        headers = self._cache_dir / "headers"
        headers.mkdir(parents=True, exist_ok=True)
        with suppress(KeyError, OSError):  # a user without a name has another folder there
            user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
            (tmp_dir / f"torchinductor_{user}").symlink_to(headers)
        program = self._program
        plan = python_plan(
            "autotune.inside",
            str(wire),
            str(view.own_dir),
            cwd=program.cwd,
            options=program.python_options,
        )
        own = {MARK: mark_of(view), "TMPDIR": str(tmp_dir), **TRACKERS_OFF}
        cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(self._cache_dir))
        plan = plan.with_env(**{"TORCHINDUCTOR_CACHE_DIR": cache, **program.env, **own})
        plan = replace(plan, args=program.args, keywords=program.keywords, ranks=program.ranks)
        plan = launch_plan_for(applied, plan) if applied is not None else plan
        return with_ranks(replace(plan, pass_fds=(wire,)), codes=codes_in(view), pass_fds=(wire,))
