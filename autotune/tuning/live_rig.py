"""LiveRig: the open rig on which one config after another is measured, or the next one."""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.measurement import Measurement, StepBreakdown
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.measurement.run_mode import RunMode
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.lr import PARTS
from autotune.results.blame import MAX_MORE_STEPS, Lived
from autotune.rig.rig import Rig, ShouldStop
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import Ready, WindowPlan
from autotune.tuning.budget import seconds_left
from autotune.tuning.start import first_start

MOSTLY_DISTURBED = 0.5  # of the blocks: such a window is measured a second time
START_SILENCE_S = 900.0  # imports, data preparation and compilation may take minutes
ANSWER_S = 0.5  # a rig answers so long before the caller gives up
MIN_WINDOW_S = 0.1
MIN_SILENCE_S = 60.0
SILENCE_STEPS = 30
# A process must hold a window of the baseline and one of another config, in turn; one that ends
# before is too short for that.
MIN_ANSWERS = 2
MAX_WINDOWS_MORE = 4  # to let the baseline make some more steps
MAX_STARTS = 3  # of a program that asks for one mode after the other


class LiveRig:
    """Measures configs live where it can, on a fresh rig where it must.

    Attributes:
        lived: How far the baseline was seen to come.
    """

    def __init__(self, rigs: RigFactory) -> None:
        self._rigs = rigs
        self._rig: Rig | None = None
        self._on_rig: Config | None = None
        self._answers = 0
        self._space: ResolvedSpace | None = None
        self._base: AppliedConfig | None = None
        self._silence_s = START_SILENCE_S
        self.lived = Lived()

    @property
    def base(self) -> AppliedConfig:
        """The baseline's setting."""
        assert self._base is not None, "set_up() comes first"
        return self._base

    @base.setter
    def base(self, base: AppliedConfig) -> None:
        self._base = base

    @property
    def mode(self) -> RunMode:
        """How rigs run the program now."""
        return self._rigs.mode

    @property
    def number(self) -> int:
        """Of the rig that was started last."""
        return self._rigs.started

    def setting(self, config: Config) -> AppliedConfig:
        """Return the setting of a config."""
        return replace(self.base, config=config)

    def set_up(
        self, space: ResolvedSpace, base: AppliedConfig, step_s: float | None = None
    ) -> None:
        """Say what can be measured; *base* is the baseline's setting."""
        self._space, self._base = space, base
        self._on_rig = base.config if self._rig is not None else None
        if step_s is not None:
            self.expect_steps_of(step_s)

    def expect_steps_of(self, step_s: float) -> None:
        """Take a silence for the program's end by how long a step takes."""
        self._silence_s = max(MIN_SILENCE_S, SILENCE_STEPS * step_s)

    def observe(self, should_stop: ShouldStop) -> Ready | Ending:
        """Start the untouched program and return what its first steps revealed.

        Raises:
            UsageError: when it reads what is piped into this process.
        """
        started = first_start.observe(self._rigs, should_stop, START_SILENCE_S)
        if isinstance(started, Ending):
            return started
        self._rig, self._answers = started.rig, 0
        return started.ready

    def needs_restart(self, config: Config) -> bool:
        """Tell whether a config cannot be measured on the open rig."""
        if self._on_rig is None:
            return True
        return self.needs_own_process(self._on_rig, config)

    def needs_own_process(self, one: Config, other: Config) -> bool:
        """Tell whether two configs need processes of their own."""
        assert self._space is not None, "set_up() comes first"
        return self._space.needs_restart(one, other) or (self.mode.brief and one != other)

    def ready_for(self, config: Config, should_stop: ShouldStop) -> Ending | None:
        """Make sure that a rig is open on which the config can be measured live."""
        if not self.needs_restart(config):
            return None
        self.close()
        opened = self._open(self.setting(config), should_stop)
        if isinstance(opened, Ending):
            return opened
        self._on_rig = config
        return None

    def measure(
        self, config: Config, plan: WindowPlan, should_stop: ShouldStop, most_s: float = math.inf
    ) -> Measurement | Ending:
        """Measure a config on the open rig; one that mostly others disturbed a second time."""
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
            if isinstance(again, Ending) and again.outcome not in ENDED_BY_US:
                return again
            if isinstance(again, Measurement) and again.disturbed_share < result.disturbed_share:
                return again
        return result

    def live_on(self, steps: int, step_s: float, should_stop: ShouldStop) -> Ending | None:
        """Let the baseline go on until its process has made so many steps in all, or has failed."""
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

    def dissect(self, plan: WindowPlan, should_stop: ShouldStop) -> StepBreakdown:
        """Take the baseline apart; empty where the program ends or fails before."""
        for _ in range(MIN_ANSWERS):  # the program may have come to its end meanwhile
            if self.ready_for(self.base.config, should_stop):
                break
            assert self._rig is not None, "it is open"
            breakdown = self._rig.dissect(plan, should_stop, self._silence_s)
            if self.mode.brief or isinstance(breakdown, Ending):
                self.close()
            if isinstance(breakdown, StepBreakdown):
                return breakdown
            if breakdown.outcome is not Outcome.RAN_OUT:
                break
        return StepBreakdown()

    def close(self) -> None:
        """Close the open rig, if any."""
        if self._rig is not None:
            self._rig.close()
        self._rig = self._on_rig = None

    def _is_shorter_than_baseline(self, config: Config, ending: Ending) -> bool:
        """Tell whether the baseline goes on where a config's process came to its end.

        Where each step has more samples, there may rightly be fewer of them.
        """
        has_other_steps = not set(PARTS).isdisjoint(config.changes_from(self.base.config))
        goes_on = self.lived.steps(self.mode.epochs) > ending.steps
        return config != self.base.config and goes_on and not has_other_steps

    def _open(self, setting: AppliedConfig, should_stop: ShouldStop) -> Ready | Ending:
        for _ in range(MAX_STARTS):
            self._rig, self._answers = self._rigs.new(), 0
            opened = self._rig.open(setting, should_stop, START_SILENCE_S)
            if not isinstance(opened, Ending):
                return opened
            self.close()
            if not self._rigs.learn(opened, as_written=setting.config == self.base.config):
                break
        return opened

    def _window(
        self, config: Config, plan: WindowPlan, should_stop: ShouldStop, most_s: float
    ) -> Measurement | Ending:
        """Measure a window that ends in time; a rig that does not answer so is closed."""
        assert self._rig is not None, "a rig is open"
        compiles = config.get("compile", "off") != "off"
        silence_s = START_SILENCE_S if compiles else self._silence_s
        left_s = min(seconds_left(should_stop), most_s)
        if math.isfinite(left_s):
            plan = replace(plan, most_s=max(MIN_WINDOW_S, left_s - ANSWER_S))
        result = self._rig.measure(self.setting(config), plan, should_stop, silence_s)
        if isinstance(result, Ending):
            is_short = result.outcome is Outcome.RAN_OUT and self._answers < MIN_ANSWERS
            self.close()
            if is_short and self._is_shorter_than_baseline(config, result):
                return replace(result, reason=f"{result.reason}, where the baseline goes on")
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
