"""LiveRig: keeps one rig open and measures one config after another on it.

Switching a config in a running program takes about a second; starting one takes many. A new rig is
started only when the config needs a fresh process or the open one has ended.
"""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.measurement.run_mode import RunMode
from autotune.measurement.step_breakdown import StepBreakdown
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.lr import PARTS
from autotune.results.blame import MAX_MORE_STEPS, Lived
from autotune.rig.open_rig import ShouldStop
from autotune.rig.rig import Rig
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import Ready, WindowPlan
from autotune.tuning.budget import seconds_left
from autotune.tuning.start import first_start
from autotune.tuning.start.first_start import START_SILENCE_S

MOSTLY_DISTURBED = 0.5  # share of the blocks above which a window is measured a second time
ANSWER_S = 0.5  # a window ends this long before its caller gives up, so that its result arrives
MIN_WINDOW_S = 0.1
# A program that trains counts as hung after this silence, or after the time that this many of its
# steps take, whichever is longer.
MIN_SILENCE_S = 60.0
SILENCE_STEPS = 30
# The same while its step is profiled. Then the loader is read alone, and what supplies its items
# may be the program's own loop, which is held up.
PROFILE_SILENCE_S = 30.0
# A process must live through a window of the baseline and one of another config. A program that
# ends earlier is too short for comparing live, and gets a process per window (the brief mode).
MIN_ANSWERS = 2
MAX_WINDOWS_MORE = 4  # windows in which the baseline may make the steps that are missing
MAX_STARTS = 3  # a program may need one run mode after the other


def longest_silence_s(step_s: float, least_s: float = MIN_SILENCE_S) -> float:
    """Return how long a program that trains may be silent before it counts as hung.

    Args:
        step_s: Seconds per step.
        least_s: The least to return.
    """
    return max(least_s, SILENCE_STEPS * step_s)


class LiveRig:
    """Measures configs on an open rig where possible, and on a fresh one where necessary.

    Call ``observe()`` first, if the program was not observed yet, then ``set_up()``. Methods that
    measure return an ``Ending`` when the program failed or time was up; the rig is closed then, and
    ``ready_for()`` opens the next one.

    Args:
        rigs: Makes the rigs.

    Attributes:
        lived: How many steps the baseline was seen to make in one process; evidence for blame.
    """

    def __init__(self, rigs: RigFactory) -> None:
        self._rigs = rigs
        self._rig: Rig | None = None
        self._on_rig: Config | None = None
        self._answers = 0
        self._space: ResolvedSpace | None = None
        self._base: AppliedConfig | None = None
        self._silence_s = self._profile_silence_s = START_SILENCE_S
        self.lived = Lived()

    @property
    def base(self) -> AppliedConfig:
        """The program as written, against which every config is applied.

        It changes during a search, when a trial shows whether the loss sums over samples.
        """
        assert self._base is not None, "set_up() comes first"
        return self._base

    @base.setter
    def base(self, base: AppliedConfig) -> None:
        self._base = base

    @property
    def mode(self) -> RunMode:
        """How rigs run the program at present; a failure can show that it needs another mode."""
        return self._rigs.mode

    @property
    def number(self) -> int:
        """Number of the rig that was started last; rigs of a run are numbered from 1."""
        return self._rigs.started

    def applied(self, config: Config) -> AppliedConfig:
        """Return a config with what rigs need to apply it."""
        return replace(self.base, config=config)

    def set_up(
        self, space: ResolvedSpace, base: AppliedConfig, step_s: float | None = None
    ) -> None:
        """Say what can be measured; must be called before any config is.

        Args:
            space: Tells which changes need a fresh process.
            base: The program as written.
            step_s: Seconds per step if an earlier session measured it; see ``expect_steps_of()``.
        """
        self._space, self._base = space, base
        self._on_rig = base.config if self._rig is not None else None
        if step_s is not None:
            self.expect_steps_of(step_s)

    def expect_steps_of(self, step_s: float) -> None:
        """Set how long a silent program is waited for, from how long its steps take.

        A program that is silent for longer counts as hung.
        """
        self._silence_s = longest_silence_s(step_s)
        self._profile_silence_s = longest_silence_s(step_s, PROFILE_SILENCE_S)

    def observe(self, should_stop: ShouldStop) -> Ready | Ending:
        """Start the untouched program and return what its first steps revealed.

        The rig stays open, so that the baseline can be measured on it.

        Raises:
            UsageError: when the program reads its input and something is piped into this process.
        """
        started = first_start.observe(self._rigs, should_stop, START_SILENCE_S)
        if isinstance(started, Ending):
            return started
        self._rig, self._answers = started.rig, 0
        return started.ready

    def needs_restart(self, config: Config) -> bool:
        """Return whether a config cannot be measured on the open rig, or no rig is open."""
        if self._on_rig is None:
            return True
        return self.needs_own_process(self._on_rig, config)

    def needs_own_process(self, one: Config, other: Config) -> bool:
        """Return whether two configs cannot be measured in the same process.

        They differ in a knob that acts only at start, or the program ends too soon for two windows.
        """
        assert self._space is not None, "set_up() comes first"
        return self._space.needs_restart(one, other) or (self.mode.brief and one != other)

    def ready_for(self, config: Config, should_stop: ShouldStop) -> Ending | None:
        """Open a fresh rig for a config, unless the open one can measure it.

        Returns:
            None when a rig is ready; else the ending of the start that failed.
        """
        if not self.needs_restart(config):
            return None
        self.close()
        opened = self._open(self.applied(config), should_stop)
        if isinstance(opened, Ending):
            return opened
        self._on_rig = config
        return None

    def measure(
        self, config: Config, plan: WindowPlan, should_stop: ShouldStop, most_s: float = math.inf
    ) -> Measurement | Ending:
        """Measure a config on the open rig.

        A window in which other processes disturbed most blocks is measured a second time if there
        is time for it, and the less disturbed one counts.

        Args:
            config: One for which ``ready_for()`` succeeded.
            plan: How long to warm up and to measure.
            should_stop: Called many times a second; an Ending from it ends the window.
            most_s: Seconds that the window may take at most.
        """
        began = self._rigs.clock()
        result = self._window(config, plan, should_stop, most_s)
        again_s = 2 * (self._rigs.clock() - began)
        if (
            isinstance(result, Measurement)
            and self._rig is not None
            and result.disturbed_share > MOSTLY_DISTURBED
            and min(seconds_left(should_stop), most_s) > again_s
        ):
            again = self._window(config, plan, should_stop, most_s)
            # A failure counts; if only time ran out, the disturbed window is better than none.
            if isinstance(again, Ending) and again.outcome not in ENDED_BY_US:
                return again
            if isinstance(again, Measurement) and again.disturbed_share < result.disturbed_share:
                return again
        return result

    def live_on(self, steps: int, step_s: float, should_stop: ShouldStop) -> Ending | None:
        """Let the baseline run until its process has made *steps* steps in all, or has failed.

        A config that crashed late may only be blamed if the baseline gets as far. The caller must
        check the result with ``lived``: the wait is also given up without an Ending if no rig is
        open, if more than ``MAX_MORE_STEPS`` steps are missing, or after ``MAX_WINDOWS_MORE``
        windows.

        Args:
            steps: Number of steps, counted from the start of the process.
            step_s: Seconds that a step takes.
            should_stop: Called many times a second; an Ending from it ends the wait.

        Returns:
            The ending if the process failed or time was up; else None.
        """
        for _ in range(MAX_WINDOWS_MORE):
            missing = 0 if self._rig is None else steps - self._rig.steps
            if not 0 < missing <= MAX_MORE_STEPS:
                return None
            seconds = missing * step_s
            plan = WindowPlan(seconds, seconds, 0.0, 0.0, half_width=math.inf)
            result = self._window(self.base.config, plan, should_stop, math.inf)
            if isinstance(result, Ending):
                return result
        return None

    def profile_step(self, plan: WindowPlan, should_stop: ShouldStop) -> StepBreakdown:
        """Profile the baseline's step and its upper bounds.

        The breakdown is empty if the program ends or fails before: a search works without it.
        """
        for _ in range(MIN_ANSWERS):  # the program may have ended since its last window
            if self.ready_for(self.base.config, should_stop):
                break
            assert self._rig is not None, "it is open"
            breakdown = self._rig.profile_step(plan, should_stop, self._profile_silence_s)
            if self.mode.brief or isinstance(breakdown, Ending):
                self.close()
            if isinstance(breakdown, StepBreakdown):
                return breakdown
            if breakdown.outcome is not Outcome.RAN_OUT:
                break
        return StepBreakdown()

    def close(self) -> None:
        """Close the open rig, if any; the next ``ready_for()`` starts a fresh one."""
        if self._rig is not None:
            self._rig.close()
        self._rig = self._on_rig = None

    def _is_shorter_than_baseline(self, config: Config, ending: Ending) -> bool:
        """Return whether a config's process ended after fewer steps than the baseline makes.

        Then the config shortens the program, which must not be mistaken for a short program. A
        config that changes the number of samples in a step may rightly make fewer steps.
        """
        has_other_steps = not set(PARTS).isdisjoint(config.changes_from(self.base.config))
        goes_on = self.lived.steps(self.mode.epochs) > ending.steps
        return config != self.base.config and goes_on and not has_other_steps

    def _open(self, applied: AppliedConfig, should_stop: ShouldStop) -> Ready | Ending:
        for _ in range(MAX_STARTS):
            self._rig, self._answers = self._rigs.new(), 0
            opened = self._rig.open(applied, should_stop, START_SILENCE_S)
            if not isinstance(opened, Ending):
                return opened
            self.close()
            if not self._rigs.learn(opened, as_written=applied.config == self.base.config):
                break
        return opened

    def _window(
        self, config: Config, plan: WindowPlan, should_stop: ShouldStop, most_s: float
    ) -> Measurement | Ending:
        """Measure one window that ends before its caller gives up; close the rig on any Ending."""
        assert self._rig is not None, "a rig is open"
        # Compiling may take minutes in which no step is made.
        compiles = config.get("compile", "off") != "off"
        silence_s = START_SILENCE_S if compiles else self._silence_s
        left_s = min(seconds_left(should_stop), most_s)
        if math.isfinite(left_s):
            plan = replace(plan, most_s=max(MIN_WINDOW_S, left_s - ANSWER_S))
        result = self._rig.measure(self.applied(config), plan, should_stop, silence_s)
        if isinstance(result, Ending):
            is_short = result.outcome is Outcome.RAN_OUT and self._answers < MIN_ANSWERS
            self.close()
            if is_short and self._is_shorter_than_baseline(config, result):
                return replace(result, reason=f"{result.reason}, but as written it goes on")
            # A process that compiled spent its life on that, and says nothing about the program.
            if is_short and not compiles and not self.mode.brief:
                self._rigs.take_mode(replace(self.mode, brief=True))
            return result
        self._answers += 1
        self._on_rig = config
        if config == self.base.config:
            self.lived.note(self.mode.epochs, self._rig.steps)
        if self.mode.brief:
            self.close()
        return result
