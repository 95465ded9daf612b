"""LiveRig: keeps one rig open, in which configs take turns.

Switching a config in a running program takes less than a millisecond; starting one takes seconds. A
new rig is started only when a config needs a fresh process or the open one has ended.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from autotune.knobs.space.space import KEEPS, ResolvedSpace
from autotune.machine.probes.page_faults import page_fault_s
from autotune.measurement.examination import StepBreakdown
from autotune.measurement.goal import Goal
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.page_faults import PageFaults
from autotune.measurement.turn import (
    Length,
    PlannedTurn,
    Played,
    Round,
    Taken,
    Turn,
    in_random_order,
    length_of,
    median_step_s,
    played,
    rounds_of,
)
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.profile import Profile
from autotune.results.blame import Lived
from autotune.rig.open_rig import ShouldStop
from autotune.rig.rig import Rig
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import Ready
from autotune.tuning.start import first_start
from autotune.tuning.start.first_start import START_SILENCE_S

# A program that trains counts as hung after this silence, or after the time that this many of its
# steps take, whichever is longer.
MIN_SILENCE_S = 60.0
SILENCE_STEPS = 30
# The same while its step is profiled. Then the loader is read alone, and what supplies its items
# may be the program's own loop, which is held up.
PROFILE_SILENCE_S = 30.0
MAX_STARTS = 5  # a program may need one run mode after the other, or end within seconds
STAGE_S = 1.0  # of the profile of a step
MIN_PROFILES = 2  # a program may end while its step is profiled
# A stay: turns of one config alone, in which its workers start, its kernels are chosen, its memory
# is taken. It ends once a call of the rig was quiet.
STAY_TURN_S = 0.1
CALL_S = 0.35
MOST_ROUNDS = 50  # in one answer
PLAY_S = 2.0  # of rounds, after which the parent looks
METERED_S = 1.5  # of a turn in which energy or memory is read
CUT = frozenset({Outcome.RAN_OUT, Outcome.OUT_OF_TIME})
GROWTH = 4
SLOW_STEP_S = 0.5  # a step that takes this long shows a config's speed by itself
WARM_UP_S = 2.5  # a fresh process was seen to run at half its steady speed for its first 3-5 s
ALONE_S = 5.0  # of a process that has one config alone, besides its warm-up
MAX_STAY_S = 6.0  # a config that is not quiet so long after its first call, counts as it is


def longest_silence_s(step_s: float, least_s: float = MIN_SILENCE_S) -> float:
    """Return how many seconds a program that trains may be silent before it counts as hung."""
    return max(least_s, SILENCE_STEPS * step_s)


def over_limit(
    rigs: RigFactory, goal: Goal, measured: Measurement, own: Measurement | None = None
) -> Ending | None:
    """Return how a config ended that is beyond a limit of memory; None if it is not.

    That is the user's, or that of the GPU. Before torch refuses memory, it empties its cache, also
    where the program then catches the error and leaves the batch out.

    Args:
        own: The program as written, whose memory may be as full; None takes the user's limit alone.
    """
    used = measured.memory
    excess = goal.excess(used, rigs.hardware.capacity_bytes(on_device=used.is_on_device))
    if excess or own is None or own.memory.alloc_retries or not used.alloc_retries:
        return excess
    times = f"torch emptied its cache {used.alloc_retries} times within its steps"
    return Ending(Outcome.OUT_OF_MEMORY, f"the GPU's memory is as good as full: {times}")


@dataclass(frozen=True)
class Stay:
    """Turns of one config alone.

    Attributes:
        turns: Those that count: of the last calls of the rig.
        taken: What came of the last call.
        seconds: How long the stay took, switching and what did not count included.
    """

    turns: tuple[Turn, ...]
    taken: Taken
    seconds: float
    compile_s: float = 0.0

    @property
    def step_s(self) -> float:
        """Median seconds of a step."""
        return median_step_s(self.turns)


@dataclass(frozen=True)
class Game:
    """Some rounds, as one answer of a rig gave them, by the numbers of configs.

    Attributes:
        rounds: What each config played; whole rounds alone.
        steps_s: Median seconds of a step.
        lost: Number of the config under which the loss became NaN or infinite; None if none did.
            The process has lost its weights then, and is closed.
        is_disturbed: Whether others took the machine meanwhile.
    """

    rounds: tuple[Mapping[int, Played], ...]
    turns: int
    steps_s: Mapping[int, float] = field(default_factory=dict)
    lost: int | None = None
    is_disturbed: bool = False


def _stay_schedule(step_s: float, made: int, seconds: float) -> list[PlannedTurn]:
    # The first steps may be much shorter than those to come, because batches lie ready. So each
    # call asks for a few times the steps of the last one, at most.
    if not step_s:
        return [PlannedTurn(0, 1)]
    steps = min(max(1, round(seconds / step_s)), GROWTH * made)
    each = min(steps, max(1, round(STAY_TURN_S / step_s)))
    return [PlannedTurn(0, each)] * (steps // each)


class LiveRig:
    """Lets configs take turns in an open rig where possible, and in a fresh one where necessary.

    Call ``observe()`` first, if the program was not observed yet, then ``set_up()``. Methods that
    measure return an ``Ending`` when the program failed or time was up; the rig is closed then, and
    ``ready_for()`` opens the next one.

    Attributes:
        lived: How many steps the baseline was seen to make in one process; evidence for blame.
        faults: What is known of the page faults of configs that return their memory.
        number: Of the rig that it opened last; rigs of a run are numbered from 1.
    """

    def __init__(self, rigs: RigFactory) -> None:
        self._rigs = rigs
        self._rig: Rig | None = None
        self._started_as: Config | None = None
        self._profile: Profile | None = None
        self._space: ResolvedSpace | None = None
        self._base: AppliedConfig | None = None
        self._silence_s = self._profile_silence_s = START_SILENCE_S
        self.lived = Lived()
        self.faults = PageFaults()
        self.number = rigs.started
        self._trained: set[Config] = set()  # in the open process

    @classmethod
    def on(cls, rigs: RigFactory, rig: Rig, applied: AppliedConfig) -> Self:
        """Return one for a rig that is open already, under the only config that it will run."""
        live = cls(rigs)
        live._rig, live._base, live._started_as = rig, applied, applied.config
        return live

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def base(self) -> AppliedConfig:
        """The program as written, against which every config is applied."""
        assert self._base is not None, "set_up() comes first"
        return self._base

    def length(self, config: Config, step_s: float) -> Length:
        """Return how long the turns of a config are, by what its loader and the program do."""
        profile, workers = self._profile, int(config.get("workers", 0))
        batches = 1.0 if profile is None else max(1.0, profile.loop.batches_per_step)
        ready = workers * int(config.get("prefetch_factor", 2))
        return length_of(
            step_s,
            cycle=max(1, math.ceil(workers / batches)),
            ready=math.ceil(ready / batches),
            ahead=int(profile is not None and profile.loop.reads_ahead),
            on_device=profile is not None and profile.device != "cpu",
            is_warm=self._base is not None and self._base.traits.mmap_threshold is not None,
        )

    def applied(self, config: Config) -> AppliedConfig:
        """Return a config with what rigs need to apply it."""
        return replace(self.base, config=config)

    def set_up(
        self, space: ResolvedSpace, base: AppliedConfig, step_s: float | None = None
    ) -> Self:
        """Say what can be measured, before any config is; return itself."""
        self._space, self._base = space, base
        self._started_as = base.config if self._rig is not None else None
        if step_s is not None:
            self.expect_steps_of(step_s)
        return self

    def expect_steps_of(self, step_s: float) -> None:
        """Set how long a program may be silent before it counts as hung, by its steps' seconds."""
        self._silence_s = longest_silence_s(step_s)
        self._profile_silence_s = longest_silence_s(step_s, PROFILE_SILENCE_S)

    def observe(self, should_stop: ShouldStop) -> Ready | Ending:
        """Start the untouched program, which stays open, and return what its first steps revealed.

        Raises:
            UsageError: when the program reads its input and something is piped into this process.
        """
        started = first_start.observe(self._rigs, should_stop)
        if isinstance(started, Ending):
            return started
        self._rig, self._profile = started.rig, started.ready.profile
        self.number = self._rigs.started
        return started.ready

    @property
    def is_open(self) -> bool:
        """Whether a process is open."""
        return self._rig is not None

    def ready_for(self, config: Config, should_stop: ShouldStop) -> Ending | None:
        """Open a fresh rig for a config, unless the open one can run it.

        Returns:
            None when a rig is ready; else the ending of the start that failed.
        """
        began, space = self._started_as, self._space
        if began == config:
            return None
        assert space is not None, "set_up() comes first"
        if began is not None and not space.needs_restart(began, config):
            return None
        self.close()
        applied, ending = self.applied(config), None
        for _ in range(MAX_STARTS):
            self._rig = self._rigs.new()
            self.number = self._rigs.started
            opened = self._rig.open(applied, should_stop, START_SILENCE_S)
            if not isinstance(opened, Ending):
                self._profile, self._started_as = opened.profile, config
                return None
            self.close()
            ending = opened
            if not self._rigs.learn(ending, as_written=config == self.base.config):
                break
        return ending

    def take(
        self,
        configs: Sequence[Config],
        schedule: Sequence[PlannedTurn],
        should_stop: ShouldStop,
        *,
        with_loads: bool = False,
    ) -> Taken | Ending:
        """Let configs take turns on the open rig; with loads, ranks record how they spend them."""
        assert self._rig is not None, "a rig is open"
        # Compiling may take minutes in which no step is made.
        compiles = any(config.get("compile", "off") != "off" for config in configs)
        silence_s = START_SILENCE_S if compiles else self._silence_s
        applied = [self.applied(config) for config in configs]
        taken = self._rig.take_turns(
            applied, schedule, should_stop, silence_s, with_loads=with_loads
        )
        if isinstance(taken, Ending):
            self.close()
            return taken
        self._trained.update(configs)
        if len(self._trained) == 1:
            self.faults.see_alone(configs[0], taken.turns)
        if any(config == self.base.config for config in configs):
            self.lived.note(self._rigs.program.mode.epochs, self._rig.steps)
        return taken

    def stay(
        self,
        config: Config,
        should_stop: ShouldStop,
        least_s: float = 0.0,
        *,
        with_loads: bool = False,
    ) -> Stay | Ending:
        """Let one config, for which ``ready_for()`` succeeded, train alone until it is quiet."""
        began_s = self._rigs.clock()
        turns: list[Turn] = []
        compile_s, first_s, step_s, made, is_quiet = 0.0, 0.0, 0.0, 0, False
        last: Taken | None = None
        while True:
            schedule = _stay_schedule(step_s, made, max(CALL_S, min(1.0, least_s / 3)))
            made = sum(planned.steps for planned in schedule)
            taken = self.take([config], schedule, should_stop, with_loads=with_loads)
            if isinstance(taken, Ending):
                if taken.outcome in CUT and turns and last is not None:
                    break  # what it has shown counts
                return taken
            if not taken.turns:
                continue  # the program is at its end, and the next answer says so
            if not taken.turns[-1].is_finite:
                self.close()
                return Ending(Outcome.NOT_FINITE, "the loss became NaN or infinite")
            if taken.compilation is not None:
                compile_s += taken.compilation.seconds
            was_quiet, is_quiet = is_quiet, all(turn.is_quiet for turn in taken.turns)
            is_slow = not step_s and is_quiet and median_step_s(taken.turns) >= SLOW_STEP_S
            if is_quiet and not was_quiet:
                turns.clear()
            turns += taken.turns if step_s or is_slow else ()
            step_s, last = median_step_s(taken.turns), taken
            trained_s = self._rigs.clock() - began_s - compile_s
            first_s = first_s or trained_s  # in which kernels are looked for and workers start
            is_settled = (is_quiet and was_quiet) or is_slow
            if turns and trained_s >= least_s and (is_settled or trained_s - first_s >= MAX_STAY_S):
                break
        return Stay(tuple(turns), last, self._rigs.clock() - began_s, compile_s)

    def alone(self, config: Config, should_stop: ShouldStop) -> Stay | Ending:
        """Let one config train alone, in a fresh process if need be, and return what it showed."""
        failed = self.ready_for(config, should_stop)
        stay = failed or self.stay(config, should_stop, WARM_UP_S)
        if isinstance(stay, Stay) and self.is_open:
            return self.stay(config, should_stop, ALONE_S, with_loads=True)
        return stay

    def play(
        self,
        configs: Sequence[Config],
        lengths: Sequence[Length],
        seconds: float,
        goal: Goal,
        dice: random.Random,
        should_stop: ShouldStop,
    ) -> Game | Ending:
        """Play rounds of several configs, which have all stayed in the open rig."""
        if goal.needs_stays:
            return self._metered_round(configs, lengths, goal, dice, should_stop)
        round_s = sum(length.seconds for length in lengths)
        count = max(1, min(MOST_ROUNDS, int(seconds / round_s)))
        order = in_random_order(lengths, count, dice)
        schedule = [PlannedTurn(number, lengths[number].steps) for number in order]
        taken = self.take(configs, schedule, should_stop)
        if isinstance(taken, Ending):
            return taken
        if lost := [turn for turn in taken.turns if not turn.is_finite]:
            self.close()
            return Game((), len(taken.turns), lost=lost[0].config)
        found = self._as_alone(configs, rounds_of(taken.turns, lengths))
        rounds = tuple(
            {n: goal.worth(one, taken) or one for n, one in its.items()} for its in found
        )
        by_config = {n: [t for t in taken.turns if t.config == n] for n in range(len(configs))}
        steps_s = {n: median_step_s(turns) for n, turns in by_config.items() if turns}
        is_disturbed = taken.interference is not None and bool(taken.interference.reasons)
        return Game(rounds, len(taken.turns), steps_s, is_disturbed=is_disturbed)

    def _as_alone(self, configs: Sequence[Config], rounds: Sequence[Round]) -> list[Round]:
        """Return rounds in which those that return memory have the page faults they have alone."""
        if self.base.traits.mmap_threshold is None:
            return [*rounds]
        returning = [n for n, config in enumerate(configs) if not config.get(KEEPS)]
        for number in returning:
            kept = configs[number].replace(**{KEEPS: True})
            for one in rounds if kept in configs else ():
                self.faults.compare(configs[number], one[number], one[configs.index(kept)])
        each_s = page_fault_s()
        return [
            {**one, **{n: self.faults.as_alone(configs[n], one[n], each_s) for n in returning}}
            for one in rounds
        ]

    def _metered_round(
        self,
        configs: Sequence[Config],
        lengths: Sequence[Length],
        goal: Goal,
        dice: random.Random,
        should_stop: ShouldStop,
    ) -> Game | Ending:
        one: dict[int, Played] = {}
        for number in dice.sample(range(len(configs)), len(configs)):
            length = lengths[number]
            steps = math.ceil(METERED_S / length.seconds * length.steps)
            taken = self.take([configs[number]], [PlannedTurn(0, steps)], should_stop)
            if isinstance(taken, Ending):
                return taken
            if not all(turn.is_finite for turn in taken.turns):
                self.close()
                return Game((), len(configs), lost=number)
            part = played(taken.turns[0], length.settling) if taken.turns else None
            found = [] if part is None else self._as_alone([configs[number]], [{0: part}])
            worth = goal.worth(found[0][0], taken) if found else None
            if worth is not None:
                one[number] = worth
        return Game((one,) if len(one) == len(configs) else (), len(configs))

    def profile_step(self, should_stop: ShouldStop) -> StepBreakdown:
        """Profile the baseline's step and its upper bounds.

        The breakdown is empty if the program ends or fails before: a search works without it.
        """
        for _ in range(MIN_PROFILES):
            if not self.is_open and self.ready_for(self.base.config, should_stop):
                break
            assert self._rig is not None, "it is open"
            breakdown = self._rig.profile_step(STAGE_S, should_stop, self._profile_silence_s)
            if isinstance(breakdown, StepBreakdown):
                return breakdown
            self.close()
            if breakdown.outcome is not Outcome.RAN_OUT:
                break
        return StepBreakdown()

    def close(self) -> None:
        """Close the open rig, if any; the next ``ready_for()`` starts a fresh one."""
        if self._rig is not None:
            self._rig.close()
        self._rig = self._started_as = None
        self._trained.clear()
