"""TrialRunner: measure how much faster a config is than the baseline.

Config and baseline are measured in turn, close in time and on the same rig where possible, because
a machine's pace drifts. A trial's speedup is the ratio of the two, with an interval that includes
the drift seen so far.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Self

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.comparison import Drift, is_decided, speedup
from autotune.measurement.interval import Interval, Turn
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.measurement.run_mode import RunMode
from autotune.measurement.step_breakdown import StepBreakdown
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.results.blame import after_baseline, unclear
from autotune.results.record import TrialRecord
from autotune.rig.open_rig import ShouldStop
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import Ready, WindowPlan
from autotune.tuning.budget import seconds_left
from autotune.tuning.live_rig import LiveRig

# A fresh process on a 2-core machine was seen to run at half its steady speed for its first 3-5 s;
# a switch in a running program settles within about a second.
FRESH_WINDOW = WindowPlan(
    warmup_min_s=3.0, warmup_max_s=20.0, window_min_s=2.0, window_max_s=5.0, half_width=0.015
)
# Short, because windows of config and baseline alternate: a longer window would be more precise in
# itself, but the machine drifts more between the two.
LIVE_WINDOW = WindowPlan(warmup_min_s=0.4, warmup_max_s=5.0, window_min_s=0.6, window_max_s=2.0)
CEILING_WINDOW = WindowPlan(
    warmup_min_s=0.3, warmup_max_s=3.0, window_min_s=0.6, window_max_s=1.2, half_width=0.03
)
BASELINE_SHARE = 0.5  # share of the time left that the baseline's first window may take
# Or this much, even if that is all the time left: nothing can be said without a baseline.
BASELINE_WORTH_S = 15.0
UNASKED = (
    "autotune could not see whether the loss is a sum or a mean over samples, so it does not know "
    "the learning rate for another batch size"
)
MAX_ASKED = 2  # attempts to see the effect of another batch; the program may end during the first
# Starts of the program for one config: it may end before it was measured, and need three modes.
MAX_STARTS = 5
MAX_TURNS = 2  # windows of a config that may be the best, with the baseline in between
# Share of the incumbent's throughput; a window that is surely below it is ended early. Of 1,000
# simulated windows for each speed, whose blocks vary by 3 % and correlate by 0.5, it ended none of
# a config as fast as the incumbent, 0.1 % at 0.90 of its speed, 25 % at the limit itself and 99 %
# at 0.80 (tests/inside/test_meter.py). The drift between windows lowers the limit further.
CLEARLY_WORSE = 0.85


class TrialRunner:
    """Measures one config after another against the baseline.

    Call it with a config to run a trial. Use it as a context manager, so that no rig is left open.
    Before the first trial call ``set_up()``, and ``observe()`` and ``baseline()`` unless an earlier
    session has done so.

    Args:
        rigs: Makes the rigs.
    """

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
        self._reference_samples = math.nan  # samples in a step of the baseline
        self._has_asked = False  # whether a process has tried what another batch does to the loss
        self._unmoved = ""  # class name of a module that kept its batch when another was tried

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def observe(self, should_stop: ShouldStop) -> Ready | Ending:
        """Start the untouched program and return what its first steps revealed.

        The rig stays open for ``baseline()``.

        Raises:
            UsageError: when the program reads its input and something is piped into this process.
        """
        return self._live.observe(should_stop)

    def set_up(
        self, space: ResolvedSpace, base: AppliedConfig, step_s: float | None = None
    ) -> None:
        """Say what can be measured.

        Args:
            space: Tells which changes need a fresh process.
            base: The program as written, against which configs are applied.
            step_s: Seconds per step if an earlier session measured it.
        """
        self._live.set_up(space, base, step_s)

    def baseline(self, should_stop: ShouldStop) -> TrialRecord:
        """Measure the baseline on the rig that observed it, and return the record of trial 0.

        If the program ends before, or turns out to need another run mode, it is started again. The
        record's ``ending`` says why the baseline could not be measured.
        """
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

    def profile_step(self, should_stop: ShouldStop) -> StepBreakdown:
        """Profile the baseline's step; the breakdown is empty if the program ends before."""
        self._reference_is_last = False
        return self._live.profile_step(CEILING_WINDOW, should_stop)

    def __call__(
        self, config: Config, why: str, should_stop: ShouldStop, incumbent: float | None
    ) -> TrialRecord:
        """Measure a config and return its record; if the config fails, ``ending`` says why.

        A program that ends meanwhile is started again. A config that may be faster than the best so
        far alternates with the baseline until that is decided.

        Args:
            config: A canonical config without conflicts.
            why: Why it is tried; stored in the record.
            should_stop: Called many times a second; an Ending from it ends the trial.
            incumbent: Speedup of the best config so far, by which a clearly slower window is ended
                early. None measures every window to its end.
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
        """Close the open rig, if any; another trial would start a fresh one."""
        self._live.close()

    @property
    def _base_config(self) -> Config:
        return self._live.base.config

    def _first_of_baseline(self, should_stop: ShouldStop, most_s: float) -> Measurement | Ending:
        if ending := self._live.ready_for(self._base_config, should_stop):
            return ending
        return self._measure(self._base_config, FRESH_WINDOW, should_stop, most_s)

    def _with_evidence(self, ending: Ending, should_stop: ShouldStop) -> Ending:
        """Return the ending of a crash; it blames the config only if the baseline gets as far.

        A program may crash after some steps whatever the config is, in its second epoch for
        example. So the baseline is run for the same number of steps. If that is not possible, the
        outcome is unclear; if the baseline fails in the same way, the program fails as written.
        """
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
        return unclear(
            ending, f"the program as written was not seen to get as far as {ending.steps} steps"
        )

    def _worth(self, config: Config, result: Measurement) -> Interval:
        """Return the throughput in terms of the samples that the baseline must train on.

        In a program that makes a fixed number of steps, a larger batch adds samples without saving
        steps, so its throughput is divided by the extra work.
        """
        if not self._live.base.traits.bounded_by_steps:
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
        """Measure the baseline if necessary, then the config.

        The baseline's window must be recent, because a machine may change its pace from second to
        second.
        """
        if self._wants_reference_first and (ending := self._renew_reference(should_stop)):
            return ending
        if ending := self._live.ready_for(config, should_stop):
            return ending
        if self._needs_reference and (ending := self._renew_reference(should_stop)):
            return ending
        if ending := self._live.ready_for(
            config, should_stop
        ):  # measuring the baseline may have ended that process
            return ending
        assert self._reference is not None, "a reference was measured above"
        floor = None
        if incumbent:
            drifted = math.exp(-self._drift_of_turns.reach(1))
            # The baseline's window may be off by the drift, so the limit is lowered by it.
            least = CLEARLY_WORSE * incumbent * self._reference.estimate * drifted
            floor = least * self._live.applied(config).extra_work(config)
        plan = LIVE_WINDOW if self._has_its_reference else FRESH_WINDOW
        return self._measure(config, replace(plan, give_up_below=floor), should_stop)

    def _renew_reference(self, should_stop: ShouldStop) -> Ending | None:
        """Measure the baseline; if that fails, try once more on a new rig.

        An earlier config may have left the process in a state in which even the baseline fails.
        """
        ending = self._refresh_reference(should_stop)
        if ending is None or ending.outcome in ENDED_BY_US:
            return ending
        self._rigs.learn(ending)
        return self._refresh_reference(should_stop)

    @property
    def _wants_reference_first(self) -> bool:
        """Whether the baseline must be measured before a rig is opened for the config.

        That is so if none was measured in the present run mode. In a program that ends within
        seconds, each window has its own process, so the baseline comes first in each turn unless it
        was measured last.
        """
        is_comparable = self._reference is not None and self._reference_mode == self._live.mode
        return not is_comparable or (self._live.mode.brief and not self._reference_is_last)

    @property
    def _needs_reference(self) -> bool:
        """Whether the baseline should be measured on the open rig before the config.

        It is not if the rig cannot run the baseline, or if the baseline was the last thing measured
        on it.
        """
        if self._live.needs_restart(self._base_config):
            return False
        return not (self._reference_is_last and self._has_its_reference)

    @property
    def _has_its_reference(self) -> bool:
        """Whether the baseline was last measured on the present rig.

        If not, the comparison contains the difference between two processes.
        """
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
        """Keep a window of the baseline as the reference of the next comparison.

        Its difference from the previous one shows how much equal windows drift on this machine.
        Drift within one process and drift between processes are learned separately.
        """
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
        """Remember what the window showed about another batch.

        Returns:
            The measurement; an Ending if the program ignores the config's batch size.
        """
        if result.effect is not None and result.effect.sums is not None:
            self._live.base = replace(self._live.base, sums=result.effect.sums)
        if result.effect is not None and result.effect.unmoved:
            self._unmoved = result.effect.unmoved
        return self._refusal(config) or result

    def _ask_of_batch(self, config: Config, should_stop: ShouldStop) -> Ending | None:
        """Find out what another batch does to the loss, before a fresh process tries it.

        The learning rate of a larger batch depends on whether the loss sums over samples. That is
        visible only when a running program switches its batch: a process that starts with the new
        batch has no earlier losses to compare with. So the switch is made once in a process of the
        baseline.

        Returns:
            None if it is known or does not matter; else why the config is not tried.
        """
        base, own = self._live.base, self._base_config.get("batch_size")
        new = config.get("batch_size")
        by_itself = "batch_size" in base.traits.program_knobs or "batch_size" in base.traits.flags
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
        """Return why a config with another batch would train something else; None if it would not.

        Only what trials have seen counts: a module that still gets the old number of samples.
        """
        own = self._base_config.get("batch_size")
        if not self._unmoved or config.get("batch_size") == own:
            return None
        return Ending(
            Outcome.CONFLICT,
            f"the program calls {self._unmoved} with {own} samples at any batch size, so another "
            "batch size would change the proportions of the data that it trains on",
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
    """Return whether a window ended early because its caller's time was up."""
    return measurement.stop_reason.startswith(Outcome.OUT_OF_TIME)
