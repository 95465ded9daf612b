"""TrialRunner: what a config is worth, measured live on the open rig or on a new one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Self

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.comparison import Drift, is_decided, speedup
from autotune.measurement.measurement import Interval, Measurement, StepBreakdown, Turn
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.measurement.run_mode import RunMode
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.results.blame import after_baseline, unclear
from autotune.results.record import TrialRecord
from autotune.rig.rig import ShouldStop
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import Ready, WindowPlan
from autotune.tuning.budget import seconds_left
from autotune.tuning.live_rig import LiveRig

# A fresh process on a 2-core machine was seen to run at half its steady speed for its first 3-5 s;
# a switch in a running program settles within about a second.
FRESH_WINDOW = WindowPlan(
    warmup_min_s=3.0, warmup_max_s=20.0, window_min_s=2.0, window_max_s=5.0, half_width=0.015
)
# Short, and in turn with the baseline's: what a long window gains in itself, drift takes away.
LIVE_WINDOW = WindowPlan(warmup_min_s=0.4, warmup_max_s=5.0, window_min_s=0.6, window_max_s=2.0)
CEILING_WINDOW = WindowPlan(
    warmup_min_s=0.3, warmup_max_s=3.0, window_min_s=0.6, window_max_s=1.2, half_width=0.03
)
BASELINE_SHARE = 0.5  # of the time left, for its first window
BASELINE_WORTH_S = 15.0  # or so much, where there is no more: without a baseline nothing is said
UNASKED = (
    "whether the loss sums over samples could not be seen, so the rate that fits another batch is "
    "not known"
)
MAX_ASKED = 2  # processes of the baseline, of which the first may come to its end
# Of a program for one config, which may end before that was measured, and show three modes.
MAX_STARTS = 5
MAX_TURNS = 2  # with the baseline in between, of a config that may be the best
# Of the incumbent's throughput: a window surely below it is not measured to its end. Of 1,000
# simulated windows each, whose blocks vary by 3 % and correlate by 0.5, none was ended of configs
# as fast as the incumbent, 0.1 % at 0.90 of it, 25 % at the limit itself, and 99 % at 0.80
# (tests/inside/test_meter.py). What windows drift by is taken off the limit besides.
CLEARLY_WORSE = 0.85


class TrialRunner:
    """Compares configs with the baseline, one after another."""

    def __init__(self, rigs: RigFactory) -> None:
        self._rigs = rigs
        self._live = LiveRig(rigs)
        self._reference: Interval | None = None
        self._reference_mode: RunMode | None = None
        self._reference_step_s = 0.0
        self._reference_is_last = False
        self._reference_rig = -1
        self._drift = Drift()
        self._drift_between_processes = Drift()
        self._reference_samples = math.nan  # of a step of the baseline
        self._has_asked = False  # a baseline what its loss does with another batch
        self._unmoved = ""  # a part of the program that goes on by its own batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def observe(self, should_stop: ShouldStop) -> Ready | Ending:
        """Start the untouched program and return what its first steps revealed.

        Raises:
            UsageError: when it reads what is piped into this process.
        """
        return self._live.observe(should_stop)

    def set_up(
        self, space: ResolvedSpace, base: AppliedConfig, step_s: float | None = None
    ) -> None:
        """Say what can be measured; *base* is the baseline's setting."""
        self._live.set_up(space, base, step_s)

    def baseline(self, should_stop: ShouldStop) -> TrialRecord:
        """Measure the baseline on the rig that observed it: trial 0."""
        began = self._rigs.clock()
        left_s = seconds_left(should_stop)
        most_s = max(BASELINE_SHARE * left_s, min(left_s, BASELINE_WORTH_S))
        for _ in range(MAX_STARTS):
            was_brief = self._live.mode.brief
            measurement = self._first_of_baseline(should_stop, most_s)
            if isinstance(measurement, Measurement):
                self._remember_reference(measurement)
                self._live.expect_steps_of(measurement.step_s)
                break
            has_run_out = measurement.outcome is Outcome.RAN_OUT and not was_brief
            if not has_run_out and not self._rigs.learn(measurement):
                break
        turns: tuple[Turn, ...] = ()
        if self._reference is not None:
            turns = (Turn(self._reference, self._reference),)
        return self._record(self._base_config, "the program as written", measurement, began, turns)

    def dissect(self, should_stop: ShouldStop) -> StepBreakdown:
        """Take the baseline apart; empty when the program ends in between."""
        self._reference_is_last = False
        return self._live.dissect(CEILING_WINDOW, should_stop)

    def __call__(
        self, config: Config, why: str, should_stop: ShouldStop, incumbent: float | None
    ) -> TrialRecord:
        """Measure a config; a program that comes to its end in between is started again.

        A config that may be faster than the best so far takes turns with the baseline until that is
        decided.

        Args:
            config: A canonical config without conflicts.
            why: Why it is tried.
            should_stop: Asked many times a second; an Ending from it ends the trial.
            incumbent: Best speedup so far, to stop early on a config that is clearly worse.
        """
        began = self._rigs.clock()
        if refusal := self._refusal(config) or self._ask_of_batch(config, should_stop):
            return self._record(config, why, refusal, began, ())
        for _ in range(MAX_STARTS):
            was_brief = self._live.mode.brief
            result, turns = self._take_turns(config, should_stop, incumbent)
            if not isinstance(result, Ending):
                break
            has_run_out = result.outcome is Outcome.RAN_OUT and not was_brief
            if not has_run_out and not self._rigs.learn(result, as_written=False):
                result = self._with_evidence(result, should_stop)
                break
        return self._record(config, why, result, began, turns)

    def close(self) -> None:
        """Close the open rig, if any."""
        self._live.close()

    @property
    def _base_config(self) -> Config:
        return self._live.base.config

    def _first_of_baseline(self, should_stop: ShouldStop, most_s: float) -> Measurement | Ending:
        if ending := self._live.ready_for(self._base_config, should_stop):
            return ending
        return self._measure(self._base_config, FRESH_WINDOW, should_stop, most_s)

    def _with_evidence(self, ending: Ending, should_stop: ShouldStop) -> Ending:
        """Return an ending that blames the config only where the baseline comes as far."""
        epochs = self._live.mode.epochs
        if ending.outcome is not Outcome.CRASHED or self._live.lived.is_enough(epochs, ending):
            return ending
        failed = self._refresh_reference(should_stop) or self._live.live_on(
            ending.steps, self._reference_step_s, should_stop
        )
        if failed is not None and failed.outcome is Outcome.CRASHED:
            self._rigs.learn(failed)
            return after_baseline(ending, failed)
        if self._live.lived.is_enough(epochs, ending):
            return ending
        return unclear(ending, f"the baseline was not seen to live through {ending.steps} steps")

    def _worth(self, config: Config, result: Measurement) -> Interval:
        """Return the throughput of the samples that the baseline has to train on."""
        if not self._live.base.bounded_by_steps:
            return result.throughput
        growth = result.samples_per_step / self._reference_samples
        return result.throughput.times(1 / self._live.base.extra_work(config, growth))

    def _take_turns(
        self, config: Config, should_stop: ShouldStop, incumbent: float | None
    ) -> tuple[Measurement | Ending, tuple[Turn, ...]]:
        turns: tuple[Turn, ...] = ()
        measured: Measurement | None = None
        while True:
            result = self._turn(config, should_stop, incumbent)
            if isinstance(result, Ending):
                is_harmless = result.outcome in {*ENDED_BY_US, Outcome.RAN_OUT}
                return (measured if measured and is_harmless else result), turns
            measured = result
            assert self._reference is not None, "a turn measures one"
            turns += (Turn(self._worth(config, result), self._reference),)
            if _is_out_of_time(result):
                break
            if not self._has_its_reference or len(turns) >= MAX_TURNS:
                break
            if is_decided(speedup(turns, self._drift), len(turns), incumbent or 1.0):
                break
        self._drift = self._drift.having_compared(turns)
        return measured, turns

    def _turn(
        self, config: Config, should_stop: ShouldStop, incumbent: float | None
    ) -> Measurement | Ending:
        """Measure the baseline, then the config: a machine may change its pace every second."""
        if self._wants_reference_first and (ending := self._renew_reference(should_stop)):
            return ending
        if ending := self._live.ready_for(config, should_stop):
            return ending
        if self._needs_reference and (ending := self._renew_reference(should_stop)):
            return ending
        if ending := self._live.ready_for(
            config, should_stop
        ):  # that process may have ended meanwhile
            return ending
        assert self._reference is not None, "a reference was measured above"
        floor = None
        if incumbent:
            drifted = math.exp(-self._drift_of_turns.reach(1))
            least = CLEARLY_WORSE * incumbent * self._reference.estimate * drifted
            floor = least * self._live.setting(config).extra_work(config)
        plan = LIVE_WINDOW if self._has_its_reference else FRESH_WINDOW
        return self._measure(config, replace(plan, give_up_below=floor), should_stop)

    def _renew_reference(self, should_stop: ShouldStop) -> Ending | None:
        """Measure the baseline; a rig that a former config has spoilt is replaced once."""
        ending = self._refresh_reference(should_stop)
        if ending is None or ending.outcome in ENDED_BY_US:
            return ending
        self._rigs.learn(ending)
        return self._refresh_reference(should_stop)

    @property
    def _wants_reference_first(self) -> bool:
        """No baseline was measured in the present mode; or processes of one config take turns."""
        is_comparable = self._reference is not None and self._reference_mode == self._live.mode
        return not is_comparable or (self._live.mode.brief and not self._reference_is_last)

    @property
    def _needs_reference(self) -> bool:
        """The baseline can be measured on this rig, and was not the last thing measured on it."""
        if self._live.needs_restart(self._base_config):
            return False
        return not (self._reference_is_last and self._has_its_reference)

    @property
    def _has_its_reference(self) -> bool:
        """The baseline was measured on this very rig."""
        return self._reference_rig == self._rigs.started

    @property
    def _drift_of_turns(self) -> Drift:
        return self._drift if self._has_its_reference else self._drift_between_processes

    def _refresh_reference(self, should_stop: ShouldStop) -> Ending | None:
        if ending := self._live.ready_for(self._base_config, should_stop):
            return ending
        plan = LIVE_WINDOW if self._has_its_reference else FRESH_WINDOW
        measurement = self._measure(self._base_config, plan, should_stop)
        if isinstance(measurement, Ending):
            return measurement
        self._remember_reference(measurement)
        return None

    def _remember_reference(self, measurement: Measurement) -> None:
        """Keep it; how far it lies from the last one tells how far equal windows drift here."""
        seen = measurement.throughput
        if self._reference is not None and self._has_its_reference:
            self._drift = self._drift.having_seen(self._reference, seen)
        elif self._reference is not None and self._reference_mode == self._live.mode:
            between = self._drift_between_processes
            self._drift_between_processes = between.having_seen(self._reference, seen)
        self._reference = seen
        self._reference_samples = measurement.samples_per_step
        self._reference_is_last = True
        self._reference_rig = self._rigs.started
        self._reference_mode = self._live.mode
        self._reference_step_s = measurement.step_s

    def _measure(
        self, config: Config, plan: WindowPlan, should_stop: ShouldStop, most_s: float = math.inf
    ) -> Measurement | Ending:
        self._reference_is_last = False
        result = self._live.measure(config, plan, should_stop, most_s)
        return result if isinstance(result, Ending) else self._learn(config, result)

    def _learn(self, config: Config, result: Measurement) -> Measurement | Ending:
        """Keep what another batch was seen to do; one that the program cannot take is refused."""
        if result.effect is not None and result.effect.sums is not None:
            self._live.base = replace(self._live.base, sums=result.effect.sums)
        if result.effect is not None and result.effect.unmoved:
            self._unmoved = result.effect.unmoved
        return self._refusal(config) or result

    def _ask_of_batch(self, config: Config, should_stop: ShouldStop) -> Ending | None:
        """Have a live switch show what another batch does, where the config itself makes none.

        A process that begins with another batch cannot tell whether its losses grew with it.
        """
        base, own = self._live.base, self._base_config.get("batch_size")
        new = config.get("batch_size")
        by_itself = "batch_size" in base.program_knobs or "batch_size" in base.flags
        is_known = base.sums is not None or self._has_asked
        if is_known or not own or not new or new == own or by_itself:
            return None
        if not self._live.needs_own_process(self._base_config, config):
            return None
        asked = self._base_config.replace(batch_size=new)
        why = ""
        for _ in range(MAX_ASKED):
            failed = self._live.ready_for(self._base_config, should_stop)
            result = failed or self._measure(asked, CEILING_WINDOW, should_stop)
            if isinstance(result, Measurement):
                self._has_asked = True
                return None
            if result.outcome in {*ENDED_BY_US, Outcome.CONFLICT}:
                return result
            why = f"{result.outcome}: {result.reason}"
            if result.outcome is not Outcome.RAN_OUT and not self._rigs.learn(
                result, as_written=False
            ):
                break
        return Ending(Outcome.CONFLICT, f"{UNASKED} ({why})")

    def _refusal(self, config: Config) -> Ending | None:
        """Why another batch would train something else, as far as a trial has seen it."""
        own = self._base_config.get("batch_size")
        if not self._unmoved or config.get("batch_size") == own:
            return None
        return Ending(
            Outcome.CONFLICT,
            f"the program calls {self._unmoved} with {own} samples whatever the batch: a larger "
            "batch would be another mixture",
        )

    def _record(
        self,
        config: Config,
        why: str,
        result: Measurement | Ending,
        began: float,
        turns: tuple[Turn, ...],
    ) -> TrialRecord:
        is_measured = isinstance(result, Measurement)
        return TrialRecord(
            config=config,
            why=why,
            measurement=result if isinstance(result, Measurement) else None,
            ending=result if isinstance(result, Ending) else None,
            turns=turns,
            speedup=speedup(turns, self._drift_of_turns) if is_measured else None,
            rig=self._rigs.started,
            cost_s=self._rigs.clock() - began,
        )


def _is_out_of_time(measurement: Measurement) -> bool:
    """Tell whether a window ended with what it had."""
    return measurement.stop_reason.startswith(Outcome.OUT_OF_TIME)
