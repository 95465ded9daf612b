"""A scripted machine: whole searches in virtual time, without any process being started.

The script says what the program and the machine are truly like: the speed of each config, what
starts cost, how the machine's pace drifts, what fails. The search sees none of that; it sees what a
rig would have told it. Time passes only where a rig works, so a search of three minutes takes as
long as its arithmetic.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import optuna

from autotune.knobs import Scope, registry
from autotune.knobs.space.space import SearchSpace
from autotune.machine.hardware import Gpu
from autotune.measurement.examination import Examination, StepBreakdown, StepParts
from autotune.measurement.goal import THROUGHPUT, Goal
from autotune.measurement.interval import Interval
from autotune.measurement.learning.training_trace import TracedStep, TrainingTrace
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.readings import Compilation, Interference, Memory
from autotune.measurement.turn import PlannedTurn, Taken, Turn
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.fence_options import FenceKind
from autotune.program.lr import batch_growth
from autotune.program.profile import Profile
from autotune.program.program import fingerprint_of
from autotune.program.rehearsal import Rehearsal, RehearsalPlan, Seen
from autotune.program.sources import Files
from autotune.results.record import SearchOptions
from autotune.results.result import SearchResult
from autotune.rig.fence import Fence
from autotune.rig.open_rig import ShouldStop
from autotune.rig.rig import Rig
from autotune.rig.rig_factory import RigFactory
from autotune.rig.terminal import Asked
from autotune.rig.wire import Progress, Ready
from autotune.tuning import workflow
from autotune.tuning.events import Events
from autotune.tuning.sharing.membership import ALONE, Membership
from autotune.tuning.storage import search_dir
from autotune.tuning.storage.record_storage import RecordStorage
from autotune.tuning.storage.search_dir import SearchDir
from autotune.tuning.storage.study import Study
from autotune.tuning.surroundings import Surroundings
from tests.made import make_head, make_profile, make_space, storage_in_memory

TICK_S = 0.1  # a rig asks so often whether to go on
CLOSE_S = 0.2
BATCH = 64  # samples of a step as written
METER_S = 0.9  # two readings of a meter, which is read each half second
DRIFTS_S = (0.3, 3.0, 30.0)
RESERVED = 1.03
FULL = Ending(Outcome.OUT_OF_MEMORY, "the device ran out of memory", steps=1)
CRASH = Ending(Outcome.CRASHED, "ValueError: the script says so", "Traceback …", steps=1)


@dataclass
class VirtualClock:
    """Goes only when a rig works."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        """Let time go by."""
        self.now_s += seconds


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


@dataclass
class Script:
    """What the program and the machine are truly like.

    Attributes:
        factors: Speed of a knob's value relative to the program's own; of several they multiply.
        samples_per_s: Speed as written.
        start_s: From a process's start to the end of its first steps.
        step_s: Seconds of a step as written; None follows from the samples of its batch.
        noise: Standard deviation of the logarithm of a turn's rate.
        process_noise: The same of processes, whatever the config.
        ratio_noise: The same of a config in a process: equal processes differ in their ratios.
        machine_noise: The same of a config on a machine, whatever the process.
        ratio_growth: How much of the logarithm of a config's speedup adds to that.
        drift: Standard deviation of the machine's pace, which wanders within each of ``DRIFTS_S``.
        ends: Returns how a question ends instead of being answered.
        peak_bytes: Returns the peak memory of the host under a config in a process, by its number;
            None if it is not known.
        device_bytes: Returns what torch allocates on the GPU under a config, which ends out of
            memory where the first of *gpus* has less; None for a program on the CPU.
        retries: Returns how often torch empties its cache in an answer of a config that is alone.
        power_w: Returns the power under a config, if turns last for ``METER_S``; None without a
            counter.
        compile_s: Seconds that a config compiles that does, before its first window.
        first_turn_s: Seconds by which a config's first turn in a process is longer, and not quiet.
        trains: Returns a factor on all losses under a config; 1 trains what the program does.
        rounds: Returns whether a config rounds otherwise than the program.
        breakdown: What a profile of a step shows; None has the program wait for a third of it.
        examination: What ``autotune doctor`` sees of the program.
        gpus: What the program's torch says of them, if it trains on GPUs.
        first_step_s: From a process's start to the end of its first step; None is not told.
        lives_s: Seconds of training after which the program comes to its end; None never.
        loss: Returns that of a config's turn, by the steps of its process; None shows none.
        faults: Page faults of a step of the program as written, in a process of its own and in one
            that another config shares; configs that keep freed memory have none.
        fault_s: Seconds of a page fault.
        imports: Returns what a process imports of the user's, by its number.
        busy: Seconds after the start from which others use the machine, and how many times slower
            that makes the program as written, alone; None if they never do.
    """

    factors: Mapping[str, Mapping[KnobValue, float]] = field(default_factory=dict)
    samples_per_s: float = 1000.0
    profile: Profile = field(default_factory=make_profile)
    start_s: float = 4.0
    step_s: float | None = None
    noise: float = 0.05
    process_noise: float = 0.02
    ratio_noise: float = 0.0
    machine_noise: float = 0.0
    ratio_growth: float = 0.0
    drift: float = 0.0
    ends: Callable[[Question], Ending | None] = lambda _: None
    peak_bytes: Callable[[Config, int], int | None] = lambda _config, _process: None
    device_bytes: Callable[[Config], int] | None = None
    retries: Callable[[Config], int] = lambda _: 0
    power_w: Callable[[Config], float | None] = lambda _: None
    compile_s: float = 0.0
    first_turn_s: float = 0.0
    trains: Callable[[Config], float] = lambda _: 1.0
    rounds: Callable[[Config], bool] = lambda _: True
    breakdown: StepBreakdown | None = None
    examination: Examination = field(default_factory=Examination)
    gpus: tuple[Gpu, ...] = ()
    first_step_s: float | None = None
    lives_s: float | None = None
    loss: Callable[[Config, int], float | None] = lambda _config, _steps: None
    faults: tuple[int, int] = (0, 0)
    fault_s: float = 0.0
    imports: Callable[[int], Files] = lambda _: {}
    busy: tuple[float, float] | None = None

    @property
    def room_bytes(self) -> float:
        """What torch may reserve on the first GPU."""
        return (self.gpus[0].usable_bytes or 0) if self.gpus else math.inf

    def needs(self, config: Config) -> int:
        """Return what torch reserves on the GPU under a config: a bit more than it allocates."""
        return round(RESERVED * self.device_bytes(config)) if self.device_bytes else 0

    def memory(self, configs: Sequence[Config], process: int) -> Memory:
        """Return the peaks of configs that train in turns."""
        peaks = [self.peak_bytes(config, process) for config in configs]
        memory = Memory(host_bytes=max((p for p in peaks if p is not None), default=None))
        if self.device_bytes is None:
            return memory
        return replace(
            memory,
            device_allocated_bytes=max(map(self.device_bytes, configs)),
            device_reserved_bytes=max(map(self.needs, configs)),
            alloc_retries=self.retries(configs[0]),
        )

    def rate(self, config: Config) -> float:
        """Return the true samples/s of a config."""
        rate = self.samples_per_s if self.step_s is None else BATCH / self.step_s
        for knob, factors in self.factors.items():
            rate *= factors.get(config.get(knob, ""), 1.0)
        return rate


class ScriptedMachine:
    """Runs a script.

    Attributes:
        asked: All questions, in order.
        sharing: The machines that share its search.
    """

    def __init__(self, script: Script, seed: int = 0) -> None:
        self.script = script
        self.clock = VirtualClock()
        self.random = random.Random(seed)
        self.asked: list[Question] = []
        self.sharing: Membership = ALONE
        self._paces, self._paced_at = [0.0] * len(DRIFTS_S), self.clock()
        self._dice = random.Random(f"machine {seed}")
        self._differs: dict[Config, float] = {}

    def differs(self, config: Config) -> float:
        """Return what this machine makes of the logarithm of a config's speed."""
        if config not in self._differs:
            self._differs[config] = self._dice.gauss(0.0, self.script.machine_noise)
        return self._differs[config]

    @property
    def surroundings(self) -> Surroundings:
        """What a search needs to run on this machine."""

        def make_rigs(*args: Any, **kwargs: Any) -> RigFactory:
            return ScriptedRigs(self, *args, **kwargs)

        return Surroundings(self.clock, make_rigs, lambda _: (), self.sharing)

    def pass_time(self, seconds: float, should_stop: ShouldStop) -> Ending | None:
        """Let time go by, as long as the search lets it."""
        until = self.clock.now_s + seconds
        while (left_s := until - self.clock.now_s) > 0:
            self.clock.now_s += min(left_s, TICK_S)
            if ending := should_stop():
                return ending
        return None

    @property
    def slows(self) -> float:
        """How many times slower others make the program as written now."""
        since_s, times = self.script.busy or (math.inf, 1.0)
        return times if self.clock() - VirtualClock.now_s >= since_s else 1.0

    @property
    def pace(self) -> float:
        """Logarithm of the machine's pace now: about 1/f noise, of Ornstein-Uhlenbeck processes."""
        passed_s, self._paced_at = self.clock() - self._paced_at, self.clock()
        share = self.script.drift / math.sqrt(len(DRIFTS_S))
        for number, drift_s in enumerate(DRIFTS_S):
            kept = math.exp(-passed_s / drift_s)
            fresh = self.random.gauss(0.0, share * math.sqrt(1 - kept**2))
            self._paces[number] = kept * self._paces[number] + fresh
        return sum(self._paces)


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
        self._baseline = Config({})
        self._answers = 0
        self._is_open = self._is_dead = False
        self._started_as: Config | None = None
        self.steps, self._trains_since_s = 0, 0.0
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
        if applied is not None:
            self._baseline = applied.baseline
        script = self._machine.script
        if ending := self._machine.pass_time(script.start_s, should_stop):
            return ending
        self._import()
        if ending := self._ends("open", applied):
            return ending
        self.steps, self._trains_since_s = 5, self._machine.clock()
        self._rigs.reports.progress(Progress("start-up", self.steps, script.start_s))
        return Ready(
            script.profile, script.start_s, first_step_s=script.first_step_s, devices=script.gpus
        )

    def take_turns(
        self,
        configs: Sequence[AppliedConfig],
        schedule: Sequence[PlannedTurn],
        should_stop: ShouldStop,
        _silence_s: float,
        *,
        with_loads: bool = False,
    ) -> Taken | Ending:
        assert self._is_open, "a rig is opened before it is asked"
        assert not self._is_dead, "after an Ending a rig cannot be used again"
        self._baseline = configs[0].baseline
        for applied in configs:
            before = self._started_as or applied.baseline
            changed = applied.config.changes_from(before)
            restart = {knob for knob in changed if registry()[knob].scope is Scope.RESTART}
            assert not restart, f"{restart} take effect only when a process starts"
        result = self._turns(configs, schedule, should_stop)
        self._is_dead = isinstance(result, Ending)
        return result

    def _turns(
        self,
        configs: Sequence[AppliedConfig],
        schedule: Sequence[PlannedTurn],
        should_stop: ShouldStop,
    ) -> Taken | Ending:
        machine, turns, compiled_s = self._machine, list[Turn](), 0.0
        if self._has_lived:
            return Ending(Outcome.RAN_OUT, "the program came to its end", steps=self.steps)
        for number in dict.fromkeys(planned.config for planned in schedule):
            if ending := self._ends("measure", configs[number]):
                return ending
            config = configs[number].config
            if machine.script.needs(config) > machine.script.room_bytes:
                return FULL
            compiles = config.get("compile", "off") != "off" and config not in self._own
            compile_s = machine.script.compile_s if compiles else 0.0
            compiled_s += compile_s
            if ending := machine.pass_time(compile_s, should_stop):
                return ending
        for planned in schedule:
            if self._has_lived:
                break
            turns.append(self._turn(planned, configs[planned.config].config))
            if ending := machine.pass_time(sum(turns[-1].seconds), should_stop):
                return ending
        trained_s = sum(sum(turn.seconds) for turn in turns)
        every = [applied.config for applied in configs]
        memory = machine.script.memory(every, self._number)
        return Taken(
            tuple(turns),
            self.steps,
            samples_per_epoch=10_000,
            memory=memory,
            power_w=machine.script.power_w(every[0]) if trained_s >= METER_S else None,
            compilation=self._compilation(every, compiled_s),
            interference=Interference(0.5, pressure_share=0.5) if machine.slows > 1 else None,
        )

    @property
    def _has_lived(self) -> bool:
        lives_s = self._machine.script.lives_s
        return lives_s is not None and self._machine.clock() - self._trains_since_s >= lives_s

    @staticmethod
    def _compilation(configs: Sequence[Config], seconds: float) -> Compilation | None:
        if all(config.get("compile", "off") == "off" for config in configs):
            return None
        return Compilation(seconds, int(seconds > 0), 0, 0)

    def _turn(self, planned: PlannedTurn, config: Config) -> Turn:
        script, dice = self._machine.script, self._machine.random
        is_first = config not in self._own
        if is_first:
            apart = math.log(script.rate(config) / script.rate(self._baseline))
            spread = math.hypot(script.ratio_noise, script.ratio_growth * apart)
            self._own[config] = 0.0
            if config != self._baseline:
                self._own[config] = dice.gauss(0.0, spread) + self._machine.differs(config)
        pace = self._machine.pace + self._process + self._own[config]
        rate = script.rate(config) * math.exp(pace + dice.gauss(0.0, script.noise))
        batch = int(config.get("batch_size", BATCH))
        returns = not config.get("keep_freed_memory")
        faults = script.faults[len(self._own) > 1] if returns else 0
        seconds, self.steps = batch / rate, self.steps + planned.steps
        seconds += (faults - script.faults[0] * returns) * script.fault_s
        seconds *= self._machine.slows if config == self._baseline else 1.0
        first_s = seconds + script.first_turn_s * is_first
        return Turn(
            planned.config,
            (first_s, *(seconds,) * (planned.steps - 1)),
            (batch,) * planned.steps,
            0.0,
            wait_s=0.3 * seconds * planned.steps,
            loss=script.loss(config, self.steps),
            is_quiet=not is_first or not script.first_turn_s,
            faults=(faults,) * planned.steps,
        )

    def profile_step(
        self, _stage_s: float, should_stop: ShouldStop, _silence_s: float
    ) -> StepBreakdown | Ending:
        if ending := self._machine.pass_time(2.0, should_stop):
            return ending
        if (breakdown := self._machine.script.breakdown) is not None:
            return breakdown
        parts = StepParts(0.03, 0.0, 0.06, 0.01, 0.0, 0.0, 10)
        rate = self._machine.script.samples_per_s
        ceiling = Interval(1.4 * rate, 1.3 * rate, 1.5 * rate)
        return StepBreakdown(parts, ceiling, ceiling)

    def examine(self, should_stop: ShouldStop, _silence_s: float) -> Examination | Ending:
        if ending := self._machine.pass_time(3.0, should_stop):
            return ending
        return self._machine.script.examination

    def _import(self) -> None:
        for path, digest in self._machine.script.imports(self._number).items():
            assert self._rigs.reports.sources is not None
            changed_ns = Path(path).stat().st_mtime_ns
            self._rigs.reports.sources.saw(path, digest, changed_ns)

    def rehearse(
        self, applied: AppliedConfig, plan: RehearsalPlan, should_stop: ShouldStop
    ) -> Rehearsal:
        self._import()
        if ending := self._machine.pass_time(min(3.0, plan.most_s), should_stop):
            return Rehearsal(None, ending)
        if ending := self._ends("rehearse", applied):
            return Rehearsal(None, ending)
        return Rehearsal(Seen(20, 2, 2, "as planned", trace=self._trace(applied, plan)))

    def _trace(self, applied: AppliedConfig, plan: RehearsalPlan) -> TrainingTrace | None:
        if plan.traces is None:
            return None
        factor, rounding = self._machine.script.trains(applied.config), 1e-7
        is_other = applied.config != applied.baseline and self._machine.script.rounds(
            applied.config
        )
        rounded = rounding * (plan.traces.shakes or is_other)
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


@dataclass
class Searched:
    """A search on a scripted machine, which may be interrupted and resumed."""

    machine: ScriptedMachine
    run: SearchDir
    storage: RecordStorage

    @property
    def study(self) -> Study:
        """The record, read anew."""
        return Study.load(self.storage, search_dir.STUDY_NAME)

    def keep(self, run: SearchDir) -> None:
        """Copy the record into a file: to search in one takes ten times as long."""
        names = {"from_study_name": search_dir.STUDY_NAME, "to_study_name": search_dir.STUDY_NAME}
        storages = {"from_storage": self.storage, "to_storage": run.storage}
        optuna.copy_study(**names, **cast("Any", storages))

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
    knobs: Mapping[str, tuple[KnobValue, ...] | None] | SearchSpace,
    seed: int = 0,
    goal: Goal = THROUGHPUT,
    **options: Any,
) -> Searched:
    """Return a search that has a record and has not begun; *options* are of ``SearchOptions``."""
    run = search_dir.new("train", "train", folder)
    space = knobs if isinstance(knobs, SearchSpace) else make_space(dict(knobs))
    storage = storage_in_memory()  # one in a file takes longer than all the rest
    head = make_head(space, options=SearchOptions(180.0, seed=seed, goal=goal, **options))
    script_file = run.path / "train.py"  # one that does not change
    script_file.touch(0o600)
    source, fingerprint = str(script_file), fingerprint_of(b"")
    head = replace(head, program=replace(head.program, source=source, fingerprint=fingerprint))
    Study.create(storage, search_dir.STUDY_NAME, head)
    return Searched(ScriptedMachine(script, seed), run, storage)
