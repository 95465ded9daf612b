"""TrialRunner: measure how much faster a config is than the baseline.

A trial visits a config for about a second; one that may be the best has further trials later
(``proposals``). The baseline is one more config, visited now and then. All visits of a search
together say how fast each config is (``measurement.stream``), so no visit needs a partner and a
trial does not know its speedup.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.goal import NO_COUNTER, THROUGHPUT, Goal, Objective
from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.measurement.run_mode import RunMode
from autotune.measurement.step_breakdown import StepBreakdown
from autotune.measurement.visit import Visit
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.lr import batch_parts
from autotune.results.blame import after_baseline, unclear
from autotune.results.record import TrialRecord
from autotune.results.speedups import seen_in
from autotune.rig.open_rig import ShouldStop
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import Ready, WindowPlan
from autotune.tuning.budget import seconds_left
from autotune.tuning.live_rig import LiveRig

# A fresh process on a 2-core machine was seen to run at half its steady speed for its first 3-5 s;
# a switch in a running program settles within about a second.
FRESH_WINDOW = WindowPlan(
    warmup_min_s=3.0, warmup_max_s=20.0, window_min_s=1.0, window_max_s=2.0, half_width=0.015
)
# Short: a second visit at another time says more than a longer one, because the machine's pace
# changes between visits and not within them.
VISIT = WindowPlan(
    warmup_min_s=0.3, warmup_max_s=5.0, window_min_s=0.5, window_max_s=0.8, block_s=0.05
)
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
# Of the logarithm of a batch's growth. Without effect it would be 1, and so with the effect twice.
MAX_AMISS = 0.5
BASELINE_EVERY = 8  # visits, of which one is the baseline's
BETWEEN_SESSIONS_S = 3600.0  # long enough for the machine's pace of the earlier one to be forgotten


class TrialRunner:
    """Measures one config after another against the baseline.

    Call it with a config to run a trial. Use it as a context manager, so that no rig is left open.
    Before the first trial call ``set_up()``, and ``observe()`` and ``baseline()`` unless an earlier
    session has done so.

    Args:
        rigs: Makes the rigs.
        goal: What is compared, and within which limits.
    """

    def __init__(self, rigs: RigFactory, goal: Goal = THROUGHPUT) -> None:
        self._rigs = rigs
        self._goal = goal
        self._compile_s: dict[KnobValue, float] = {}  # of each value of the knob, the longest seen
        self._live = LiveRig(rigs)
        self._seen: list[tuple[tuple[Config, RunMode], Visit]] = []
        self._later_s = 0.0  # to add to the clock's time in a session that resumes a search
        self._since_baseline = 0  # visits since the baseline's last
        self._baseline_rig = -1  # number of the rig on which that was
        self._baseline_mode: RunMode | None = None
        self._baseline_step_s = 0.0
        self._baseline_samples = math.nan  # samples in a step of the baseline
        self._baseline_largest = 0.0  # the same of its largest step
        self._has_asked = False  # whether a process has tried what another batch does to the loss
        self._misnamed: dict[str, str] = {}  # flags that are not the batch, with the reason
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
        self,
        space: ResolvedSpace,
        base: AppliedConfig,
        step_s: float | None = None,
        earlier: Sequence[TrialRecord] = (),
    ) -> None:
        """Say what can be measured.

        Args:
            space: Tells which changes need a fresh process.
            base: The program as written, against which configs are applied.
            step_s: Seconds per step if an earlier session measured it.
            earlier: Records of earlier sessions, whose visits count.
        """
        self._live.set_up(space, base, step_s)
        self._seen = seen_in(earlier)
        if self._seen:  # a clock that starts with the machine may stand before theirs
            last_s = max(visit.at_s for _, visit in self._seen)
            self._later_s = max(0.0, last_s + BETWEEN_SESSIONS_S - self._rigs.clock())
        if earlier and (measured := earlier[0].measurement) is not None:
            self._baseline_samples = measured.samples_per_step
            self._baseline_largest = _largest_step(measured)

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
                self._live.expect_steps_of(measurement.step_s)
                break
            has_run_out = measurement.outcome is Outcome.RAN_OUT and not was_brief
            if not has_run_out and not self._rigs.learn(measurement):
                break
        return self._record(self._base_config, "the program as written", measurement, began, 0)

    def profile_step(self, should_stop: ShouldStop) -> StepBreakdown:
        """Profile the baseline's step; the breakdown is empty if the program ends before."""
        return self._live.profile_step(CEILING_WINDOW, should_stop)

    def __call__(
        self, config: Config, why: str, should_stop: ShouldStop, floor: float | None = None
    ) -> TrialRecord:
        """Measure a config and return its record; if the config fails, ``ending`` says why.

        A program that ends meanwhile is started again.

        Args:
            config: A canonical config without conflicts.
            why: Why it is tried; stored in the record.
            should_stop: Called many times a second; an Ending from it ends the trial.
            floor: Samples/s below which a window is ended early. None measures every window to its
                end.
        """
        began, count = self._rigs.clock(), len(self._seen)
        if refusal := self._refusal(config) or self._ask_of_batch(config, should_stop):
            return self._record(config, why, refusal, began, count)
        for _ in range(MAX_STARTS):
            was_brief = self._live.mode.brief
            result = self._visit(config, should_stop, floor)
            if not isinstance(result, Ending):
                break
            has_run_out = result.outcome is Outcome.RAN_OUT and not was_brief
            if not has_run_out and not self._rigs.learn(result, as_written=False):
                result = self._with_evidence(result, should_stop)
                break
        return self._record(config, why, result, began, count)

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
        failed = self._visit_baseline(should_stop) or self._live.live_on(
            ending.steps, self._baseline_step_s, should_stop
        )
        if failed is not None and failed.outcome is Outcome.CRASHED:
            self._rigs.learn(failed)
            return after_baseline(ending, failed)
        if self._live.lived.is_enough(epochs, ending):
            return ending
        return unclear(
            ending, f"the program as written was not seen to get as far as {ending.steps} steps"
        )

    def _worth(self, config: Config, result: Measurement, factor: float) -> Interval:
        """Return what is compared, in terms of the samples that the baseline must train on.

        In a program that makes a fixed number of steps, a larger batch adds samples without saving
        steps, so its throughput is divided by the extra work.

        Args:
            config: What was measured.
            result: Its window.
            factor: From samples/s to what is compared.
        """
        mode = config.get("compile", "off")
        compiled_s = result.compilation.seconds if result.compilation and mode != "off" else 0.0
        self._compile_s[mode] = max(self._compile_s.get(mode, 0.0), compiled_s)
        worth = result.throughput.times(factor * self._goal.kept_share(self._compile_s[mode]))
        is_bounded = self._live.base.traits.bounded_by_steps and config != self._base_config
        if not is_bounded or not self._goal.objective.counts_samples:
            return worth
        growth = result.samples_per_step / self._baseline_samples
        return worth.times(1 / self._live.base.extra_work(config, growth))

    def _visit(
        self, config: Config, should_stop: ShouldStop, floor: float | None
    ) -> Measurement | Ending:
        """Visit a config; visit the baseline before, if it is due or was not seen there yet."""
        if self._needs_baseline_first and (ending := self._visit_baseline_twice(should_stop)):
            return ending
        if ending := self._live.ready_for(config, should_stop):
            return ending
        if self._needs_baseline_here and (ending := self._visit_baseline_twice(should_stop)):
            return ending
        # Measuring the baseline may have ended that process
        if ending := self._live.ready_for(config, should_stop):
            return ending
        if floor is not None:
            floor *= self._live.applied(config).extra_work(config)
        plan = VISIT if self._shares_its_process else FRESH_WINDOW
        return self._measure(config, replace(plan, give_up_below=floor), should_stop)

    def _visit_baseline_twice(self, should_stop: ShouldStop) -> Ending | None:
        """Visit the baseline; if that fails, try once more on a new rig.

        An earlier config may have left the process in a state in which even the baseline fails.
        """
        ending = self._visit_baseline(should_stop)
        if ending is None or ending.outcome in ENDED_BY_US:
            return ending
        self._rigs.learn(ending)
        return self._visit_baseline(should_stop)

    @property
    def _needs_baseline_first(self) -> bool:
        """Whether the baseline must be visited before a rig is opened for the config.

        That is so if it was not in the present run mode. In a program that ends within seconds,
        each visit has its own process; there the baseline comes before each config.
        """
        is_comparable = self._baseline_mode == self._live.mode
        return not is_comparable or (self._live.mode.brief and self._since_baseline > 0)

    @property
    def _needs_baseline_here(self) -> bool:
        """Whether the baseline should be visited on the open rig before the config.

        It is not if the rig cannot run the baseline.
        """
        if self._live.needs_restart(self._base_config):
            return False
        return not self._shares_its_process or self._since_baseline >= BASELINE_EVERY - 1

    @property
    def _shares_its_process(self) -> bool:
        """Whether the baseline was visited on the present rig.

        If not, the comparison contains the difference between two processes.
        """
        return self._baseline_rig == self._rigs.started

    def _visit_baseline(self, should_stop: ShouldStop) -> Ending | None:
        if ending := self._live.ready_for(self._base_config, should_stop):
            return ending
        plan = VISIT if self._shares_its_process else FRESH_WINDOW
        measurement = self._measure(self._base_config, plan, should_stop)
        return measurement if isinstance(measurement, Ending) else None

    def _remember(self, config: Config, result: Measurement) -> None:
        mode = self._live.mode
        if config == self._base_config:
            self._since_baseline, self._baseline_rig = 0, self._rigs.started
            self._baseline_mode, self._baseline_step_s = mode, result.step_s
            self._baseline_samples = result.samples_per_step
            self._baseline_largest = max(self._baseline_largest, _largest_step(result))
        else:
            self._since_baseline += 1
        factor = self._goal.factor(result)
        if factor is None:  # of the baseline; whoever asked for it says so
            return
        visit = Visit.of(
            self._worth(config, result, factor),
            self._rigs.started,
            self._rigs.clock() + self._later_s,
            result.pace if self._goal.objective is not Objective.MEMORY else None,
            mode,
            result.drained_share,
        )
        self._seen.append(((config, mode), visit))

    def _measure(
        self, config: Config, plan: WindowPlan, should_stop: ShouldStop, most_s: float = math.inf
    ) -> Measurement | Ending:
        result = self._live.measure(config, plan, should_stop, most_s)
        if isinstance(result, Ending):
            return result
        learned = self._learn(config, result)
        if isinstance(learned, Measurement):
            self._remember(config, learned)
        return learned

    def _learn(self, config: Config, result: Measurement) -> Measurement | Ending:
        """Remember what the window showed about another batch.

        Returns:
            The measurement; an Ending if the program ignores the config's batch size.
        """
        if result.effect is not None and result.effect.sums is not None:
            self._live.base = replace(self._live.base, sums=result.effect.sums)
        if result.effect is not None and result.effect.unmoved:
            self._unmoved = result.effect.unmoved
        refusal = self._refusal(config) or self._other_batch_than_said(config, result)
        return refusal or self._beyond_goal(config, result) or result

    def _other_batch_than_said(self, config: Config, result: Measurement) -> Ending | None:
        """Return why a flag is not the batch that its name says; None if it is.

        The learning rate follows the flag, so the samples of a step must follow it, too. A flag may
        be the batch of the evaluation, or a program may divide its batch by the accumulation steps.
        Smaller steps at the end of an epoch are left out: the largest of each side are compared.
        """
        ours, theirs = batch_parts(self._base_config), batch_parts(config)
        changed = [knob for knob in theirs if theirs[knob] != ours.get(knob)]
        flags = self._live.base.traits.flags
        if not any(knob in flags for knob in changed) or "world_size" in changed:
            return None
        wanted = math.prod(theirs.values()) / math.prod(ours.values())
        seen = _largest_step(result) / self._baseline_largest
        if wanted == 1.0 or abs(math.log(seen / wanted)) < MAX_AMISS * abs(math.log(wanted)):
            return None
        named = " and ".join(flags[knob].name for knob in changed if knob in flags)
        reason = (
            f"with {named} changed, a step should have {wanted:g} times the samples, but "
            f"{seen:.2g} times were counted: it is not the batch that is trained on, so the "
            "learning rate must not follow it"
        )
        self._misnamed |= {knob: reason for knob in changed if knob in flags}
        return Ending(Outcome.CONFLICT, reason)

    def _beyond_goal(self, config: Config, result: Measurement) -> Ending | None:
        """Return why a window does not count for the goal of the search; None if it does."""
        if config == self._base_config:
            return None
        if self._goal.factor(result) is None:
            return Ending(Outcome.UNCLEAR, NO_COUNTER[self._goal.objective])
        used = result.memory
        return self._goal.excess(
            used, self._rigs.hardware.capacity_bytes(on_device=used.is_on_device)
        )

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
            result = failed or self._live.measure(asked, CEILING_WINDOW, should_stop)
            if isinstance(result, Measurement):
                result = self._learn(asked, result)
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
        for knob, reason in self._misnamed.items():
            if config.get(knob) != self._base_config.get(knob):
                return Ending(Outcome.CONFLICT, reason)
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
        count: int,
    ) -> TrialRecord:
        """Return the record of a trial.

        Args:
            config: What was tried.
            why: Why it was.
            result: What came of it.
            began: When the trial began.
            count: How many visits the search had had by then.
        """
        visits = [(seen, visit) for (seen, _), visit in self._seen[count:]]
        return TrialRecord(
            config=config,
            why=why,
            measurement=result if isinstance(result, Measurement) else None,
            ending=result if isinstance(result, Ending) else None,
            speedup=None,
            rig=self._rigs.started,
            cost_s=self._rigs.clock() - began,
            visits=tuple(visit for seen, visit in visits if seen == config),
            baseline_visits=tuple(
                visit for seen, visit in visits if seen == self._base_config != config
            ),
        )


def _largest_step(measured: Measurement) -> float:
    """Return the samples of a window's largest step, as far as its blocks tell."""
    return max(block.samples / block.steps for block in measured.blocks)
