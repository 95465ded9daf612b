"""A scripted machine: whole searches in virtual time, without any process being started.

The script says what the program and the machine are truly like: the speed of each config, what
starts cost, how the machine's pace drifts, what fails. The search sees none of that; it sees what a
rig would have told it. Time passes only where a rig works, so a search of three minutes takes as
long as its arithmetic.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

from optuna.storages import InMemoryStorage

from autotune.knobs import Scope, registry
from autotune.machine.hardware import Gpu
from autotune.measurement.block import Block
from autotune.measurement.compilation import Compilation
from autotune.measurement.examination import Examination
from autotune.measurement.goal import THROUGHPUT, Goal
from autotune.measurement.interval import Interval
from autotune.measurement.learning.training_trace import TracedStep, TrainingTrace
from autotune.measurement.measurement import Measurement
from autotune.measurement.memory import Memory
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.pilot import Pilot
from autotune.measurement.stats import relative_half_width
from autotune.measurement.step_breakdown import StepBreakdown, StepParts
from autotune.measurement.throughput import throughput
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.fence_options import FenceKind
from autotune.program.lr import batch_growth
from autotune.program.profile import Profile
from autotune.program.rehearsal import Rehearsal, RehearsalPlan, Seen
from autotune.results.record import SearchOptions
from autotune.results.result import SearchResult
from autotune.rig.fence import Fence
from autotune.rig.open_rig import ShouldStop
from autotune.rig.rig import Rig
from autotune.rig.rig_factory import RigFactory
from autotune.rig.terminal import Asked
from autotune.rig.wire import Progress, Ready, WindowPlan
from autotune.tuning import workflow
from autotune.tuning.events import Events
from autotune.tuning.storage import search_dir
from autotune.tuning.storage.search_dir import SearchDir
from autotune.tuning.storage.study import Study
from autotune.tuning.surroundings import Surroundings
from tests.made import make_head, make_profile, make_space

BLOCK_S = 0.05
SWITCH_S = 0.3  # until a config runs at its speed
TICK_S = 0.1  # a rig asks so often whether to go on
CLOSE_S = 0.2
FAULT_S = 1e-6
CRASH = Ending(Outcome.CRASHED, "ValueError: the script says so", "Traceback …", steps=1)


@dataclass
class VirtualClock:
    """Goes only when a rig works."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True)
class Question:
    """What a rig is asked: where a script may let it fail.

    Attributes:
        kind: ``open``, ``measure`` or ``rehearse``.
        rig: Number of the process.
        nth: How many questions this process has answered.
    """

    kind: str
    config: Config | None
    rig: int
    nth: int


@dataclass(frozen=True)
class PilotScript:
    """What the pilots of a scripted rig are like.

    Attributes:
        noise: Standard deviation of the logarithm of their time, besides the machine's pace.
        slowed: Returns by how much a config slows them, as a logarithm: what must not happen.
        are_missing: Returns whether a config's workers stay busy, so that there are none.
    """

    noise: float = 0.02
    slowed: Callable[[Config], float] = lambda _: 0.0
    are_missing: Callable[[Config], bool] = lambda _: False


@dataclass
class Script:
    """What the program and the machine are truly like.

    Attributes:
        factors: Speed of a knob's value relative to the program's own; of several they multiply.
        samples_per_s: Speed as written.
        start_s: From a process's start to the end of its first steps.
        step_s: Least time of a block.
        noise: Standard deviation of the logarithm of a block's rate.
        process_noise: The same of processes, whatever the config.
        ratio_noise: The same of a config in a process: equal processes differ in their ratios.
        left_behind: Share of the time that goes into page faults once a process has run two
            configs.
        pilots: None takes no pilots.
        drift: The same of the machine's pace, which is forgotten within ``drift_s``.
        ends: Returns how a question ends instead of being answered.
        peak_bytes: Returns the peak memory of the host under a config in a process, by its number;
            None if it is not known.
        power_w: Returns the power under a config; None without a counter.
        compile_s: Seconds that a config compiles that does, before its first window.
        trains: Returns a factor on all losses under a config; 1 trains what the program does.
        examination: What ``autotune doctor`` sees of the program.
        gpus: What the program's torch says of them, if it trains on GPUs.
        first_step_s: From a process's start to the end of its first step; None is not told.
    """

    factors: Mapping[str, Mapping[KnobValue, float]] = field(default_factory=dict)
    samples_per_s: float = 1000.0
    profile: Profile = field(default_factory=make_profile)
    start_s: float = 4.0
    step_s: float = 0.01
    noise: float = 0.03
    process_noise: float = 0.02
    ratio_noise: float = 0.0
    left_behind: float = 0.0
    pilots: PilotScript | None = None
    drift: float = 0.0
    drift_s: float = 10.0
    ends: Callable[[Question], Ending | None] = lambda _: None
    peak_bytes: Callable[[Config, int], int | None] = lambda _config, _process: None
    power_w: Callable[[Config], float | None] = lambda _: None
    compile_s: float = 0.0
    trains: Callable[[Config], float] = lambda _: 1.0
    examination: Examination = field(default_factory=Examination)
    gpus: tuple[Gpu, ...] = ()
    first_step_s: float | None = None

    def rate(self, config: Config) -> float:
        """Return the true samples/s of a config."""
        rate = self.samples_per_s
        for knob, factors in self.factors.items():
            rate *= factors.get(config.get(knob, ""), 1.0)
        return rate


class ScriptedMachine:
    """Runs a script.

    Attributes:
        asked: All questions, in order.
    """

    def __init__(self, script: Script, seed: int = 0) -> None:
        self.script = script
        self.clock = VirtualClock()
        self.random = random.Random(seed)
        self.asked: list[Question] = []
        self._pace, self._paced_at = 0.0, self.clock()

    @property
    def surroundings(self) -> Surroundings:
        """What a search needs to run on this machine."""

        def make_rigs(*args: Any, **kwargs: Any) -> RigFactory:
            return ScriptedRigs(self, *args, **kwargs)

        return Surroundings(self.clock, make_rigs, lambda _: ())

    def pass_time(self, seconds: float, should_stop: ShouldStop) -> Ending | None:
        """Let time go by, as long as the search lets it."""
        until = self.clock.now_s + seconds
        while (left_s := until - self.clock.now_s) > 0:
            self.clock.now_s += min(left_s, TICK_S)
            if ending := should_stop():
                return ending
        return None

    @property
    def pace(self) -> float:
        """Logarithm of the machine's pace now: an Ornstein-Uhlenbeck process."""
        passed_s = self.clock() - self._paced_at
        kept = math.exp(-passed_s / self.script.drift_s)
        fresh = self.script.drift * math.sqrt(1 - kept**2)
        self._pace = kept * self._pace + self.random.gauss(0.0, fresh)
        self._paced_at = self.clock()
        return self._pace


class ScriptedRigs(RigFactory):
    """Makes rigs that follow the script; what modes a program shows is judged as in earnest."""

    def __init__(self, machine: ScriptedMachine, *args: Any, **kwargs: Any) -> None:
        self._machine = machine
        super().__init__(*args, **kwargs)

    def __post_init__(self) -> None:
        self.started = len(list((self.directory / "rigs").glob("*")))
        self.fence = cast(
            "Fence",
            SimpleNamespace(kind=FenceKind.OVERLAY, sentence="Nothing is written.", warnings=()),
        )

    def __exit__(self, *_: object) -> None:
        """There is nothing to take down."""

    def new(self) -> Rig:
        """Return a rig that follows the script."""
        self.started += 1
        (self.directory / "rigs" / f"{self.started:03d}").mkdir(parents=True)
        return cast("Rig", ScriptedRig(self._machine, self, self.started))


class ScriptedRig:
    """One process of the scripted program."""

    def __init__(self, machine: ScriptedMachine, rigs: RigFactory, number: int) -> None:
        self._machine, self._rigs, self._number = machine, rigs, number
        self._process = machine.random.gauss(0.0, machine.script.process_noise)
        self._own: dict[Config, float] = {}  # what this process makes of a config's speed
        self._answers = 0
        self._is_open = self._is_dead = False
        self._started_as: Config | None = None
        self.steps = 0
        self.asked: Asked | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(
        self, applied: AppliedConfig | None, should_stop: ShouldStop, _silence_s: float
    ) -> Ready | Ending:
        self._is_open = True
        self._started_as = None if applied is None else applied.config
        script = self._machine.script
        if ending := self._machine.pass_time(script.start_s, should_stop):
            return ending
        if ending := self._ends("open", applied):
            return ending
        self.steps = 5
        self._rigs.reports.progress(Progress("start-up", 0.0, self.steps, script.start_s))
        return Ready(
            script.profile, script.start_s, first_step_s=script.first_step_s, devices=script.gpus
        )

    def measure(
        self, applied: AppliedConfig, plan: WindowPlan, should_stop: ShouldStop, _silence_s: float
    ) -> Measurement | Ending:
        assert self._is_open, "a rig is opened before it is asked"
        assert not self._is_dead, "after an Ending a rig cannot be used again"
        before = self._started_as or applied.baseline
        changed = {knob for knob in applied.config if applied.config[knob] != before.get(knob)}
        restart = {knob for knob in changed if registry()[knob].scope is Scope.RESTART}
        assert not restart, f"{restart} take effect only when a process starts"
        result = self._measured(applied, plan, should_stop)
        self._is_dead = isinstance(result, Ending)
        return result

    def _measured(
        self, applied: AppliedConfig, plan: WindowPlan, should_stop: ShouldStop
    ) -> Measurement | Ending:
        machine, began_s = self._machine, self._machine.clock()
        most_s = math.inf if plan.most_s is None else plan.most_s
        warmup_s = min(max(plan.warmup_min_s, SWITCH_S), plan.warmup_max_s, most_s / 2)
        before = self._pilots(applied.config)
        if ending := machine.pass_time(warmup_s, should_stop):
            return ending
        if ending := self._ends("measure", applied):
            return ending
        blocks: list[Block] = []
        while not (reason := _is_over(plan, blocks, machine.clock() - began_s, most_s)):
            blocks.append(self._block(applied.config))
            if ending := machine.pass_time(blocks[-1].seconds, should_stop):
                return ending
            self._rigs.reports.progress(Progress("window", blocks[-1].samples_per_s))
        interval = throughput(blocks, None).interval
        return Measurement(
            interval,
            tuple(blocks),
            warmup_s,
            "steady",
            reason,
            samples_per_epoch=10_000,
            memory=Memory(host_bytes=machine.script.peak_bytes(applied.config, self._number)),
            power_w=machine.script.power_w(applied.config),
            compilation=self._compilation(applied.config),
            pilots_before=before,
            pilots_after=self._pilots(applied.config),
            fault_s=FAULT_S,
        )

    def _compilation(self, config: Config) -> Compilation | None:
        if config.get("compile", "off") == "off":
            return None
        return Compilation(self._machine.script.compile_s, 1, 0, 0)

    def _pilots(self, config: Config) -> tuple[Pilot, ...]:
        pilots = self._machine.script.pilots
        if pilots is None or pilots.are_missing(config):
            return ()
        slow = pilots.slowed(config) - self._machine.pace
        one, both = (
            0.002 * math.exp(slow + self._machine.random.gauss(0.0, pilots.noise)) for _ in "ab"
        )
        return (Pilot(one, both, one, both),)

    def _block(self, config: Config) -> Block:
        script = self._machine.script
        noise = self._machine.random.gauss(0.0, script.noise)
        if config not in self._own:
            self._own[config] = self._machine.random.gauss(0.0, script.ratio_noise)
        own = self._process + self._own[config]
        lost = script.left_behind if len(self._own) > 1 else 0.0
        rate = script.rate(config) * math.exp(self._machine.pace + own + noise) * (1 - lost)
        batch = int(config.get("batch_size", 64))
        steps = max(1, round(max(BLOCK_S, script.step_s) * rate / batch))
        seconds = steps * batch / rate
        self.steps += steps
        faults = round(lost * seconds / FAULT_S)
        return Block(steps * batch, steps, seconds, 0.3 * seconds, faults=faults)

    def profile_step(
        self, _plan: WindowPlan, should_stop: ShouldStop, _silence_s: float
    ) -> StepBreakdown | Ending:
        if ending := self._machine.pass_time(2.0, should_stop):
            return ending
        parts = StepParts(0.03, 0.0, 0.06, 0.01, 0.0, 0.0, 10)
        rate = self._machine.script.samples_per_s
        ceiling = Interval(1.4 * rate, 1.3 * rate, 1.5 * rate)
        return StepBreakdown(parts, ceiling, ceiling)

    def examine(self, should_stop: ShouldStop, _silence_s: float) -> Examination | Ending:
        if ending := self._machine.pass_time(3.0, should_stop):
            return ending
        return self._machine.script.examination

    def rehearse(
        self, applied: AppliedConfig, plan: RehearsalPlan, should_stop: ShouldStop
    ) -> Rehearsal:
        if ending := self._machine.pass_time(min(3.0, plan.most_s), should_stop):
            return Rehearsal(None, ending)
        if ending := self._ends("rehearse", applied):
            return Rehearsal(None, ending)
        return Rehearsal(Seen(20, 2, 2, "as planned", trace=self._trace(applied, plan)))

    def _trace(self, applied: AppliedConfig, plan: RehearsalPlan) -> TrainingTrace | None:
        if plan.traces is None:
            return None
        factor, rounding = self._machine.script.trains(applied.config), 1e-7
        rounded = rounding * (plan.traces.shakes or applied.config != applied.baseline)
        growth = batch_growth(applied.baseline, applied.config)
        dice = random.Random(plan.traces.seed)
        factor *= 1 + (0.002 * dice.gauss(0, 1) if plan.traces.seed else 0.0)
        steps = tuple(
            TracedStep(
                (1 + rounded * n) * factor / (growth * n + 2), (0.1,), 1 + n // plan.batches, n + 1
            )
            for n in range(plan.batches * plan.epochs)
        )
        batches = tuple(range(len(steps)))
        return TrainingTrace(steps, rounding, batches=batches, shaken=plan.traces.shakes)

    def run_bare(self, should_stop: ShouldStop) -> Ending:
        ending = self._machine.pass_time(self._machine.script.start_s, should_stop)
        return ending or self._ends("bare", None) or Ending(Outcome.RAN_OUT, "it came to its end")

    def log_tail(self) -> str:
        return ""

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._machine.clock.now_s += CLOSE_S

    def _ends(self, kind: str, applied: AppliedConfig | None) -> Ending | None:
        config = None if applied is None else applied.config
        question = Question(kind, config, self._number, self._answers)
        self._machine.asked.append(question)
        self._answers += 1
        return self._machine.script.ends(question)


def _is_over(plan: WindowPlan, blocks: list[Block], passed_s: float, most_s: float) -> str:
    """Return why a window ends here, empty while it goes on."""
    if not blocks:
        return ""
    if passed_s + blocks[-1].seconds > most_s:
        return f"{Outcome.OUT_OF_TIME} after {passed_s:.1f} s"
    measured_s = sum(block.seconds for block in blocks)
    rates = [block.samples_per_s for block in blocks]
    half_width = relative_half_width(rates)
    if plan.give_up_below is not None and max(rates[-5:]) < plan.give_up_below and len(rates) > 4:
        return "clearly slower"
    if measured_s >= plan.window_max_s:
        return "the window is full"
    if measured_s >= plan.window_min_s and half_width <= plan.half_width:
        return "narrow"
    return ""


@dataclass
class Searched:
    """A search on a scripted machine, which may be interrupted and resumed."""

    machine: ScriptedMachine
    run: SearchDir
    storage: InMemoryStorage

    @property
    def study(self) -> Study:
        """The record, read anew."""
        return Study.load(self.storage, search_dir.STUDY_NAME)

    def go_on(self, budget_s: float, events: Events | None = None) -> SearchResult:
        """Search, or go on searching."""
        study = self.study
        study.take_lease(force=True)
        return workflow.search(
            self.run, study, budget_s, events or Events(), self.machine.surroundings
        )


def begin(
    folder: Path,
    script: Script,
    knobs: Mapping[str, tuple[KnobValue, ...] | None],
    seed: int = 0,
    goal: Goal = THROUGHPUT,
    **options: Any,
) -> Searched:
    """Return a search that has a record and has not begun; *options* are of ``SearchOptions``."""
    run = search_dir.new("train", "train", folder)
    space = make_space(dict(knobs))
    storage = InMemoryStorage()  # one in a file takes longer than all the rest
    head = make_head(space, options=SearchOptions(180.0, seed=seed, goal=goal, **options))
    Study.create(storage, search_dir.STUDY_NAME, head)
    return Searched(ScriptedMachine(script, seed), run, storage)
