"""What a learning check makes of losses: rules of the rate, random states, and what is given up."""

import math
import random
from dataclasses import dataclass, field, replace
from statistics import fmean

import pytest

from autotune.measurement.learning import learning_gap
from autotune.measurement.learning.training_trace import (
    LAST_LOSSES,
    TracedStep,
    TrainingTrace,
)
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.config import Config
from autotune.program.lr import LrRule
from autotune.program.profile import OptimizerFacts
from autotune.program.rehearsal import RehearsalPlan
from autotune.tuning.checking.learning_check import SEEDS, LearningCheck
from autotune.tuning.checking.short_runs import NOT_STARTED
from tests.made import changed, make_applied

SGD = OptimizerFacts("SGD", ("SGD", "Optimizer"), (0.1,))
LARGER = Config({"batch_size": 256})


@dataclass
class MadeRuns:
    """Runs whose losses follow the samples, and are worse under some rules; so many may start."""

    worse: dict[LrRule, float] = field(default_factory=dict)
    falls: bool = True
    most: int = 100
    end: Ending = NOT_STARTED  # of what may not start any more
    luck: dict[tuple[LrRule, int], float] = field(default_factory=dict)
    asked: list[tuple[Config, LrRule, int]] = field(default_factory=list)
    made: list[int] = field(default_factory=list)

    def trace(
        self,
        config: Config,
        plan: RehearsalPlan,
        _cost_s: float,
        lr_rule: LrRule = LrRule.AUTO,
    ) -> TrainingTrace | Ending:
        if len(self.asked) >= self.most:
            return self.end
        assert plan.traces is not None
        seed, growth = plan.traces.seed, int(config["batch_size"]) / 64
        self.asked.append((config, lr_rule, seed))
        factor = 1.0
        if growth > 1:
            factor += self.worse.get(lr_rule, 0.0) + self.luck.get((lr_rule, seed), 0.0)
        dice = random.Random(seed)
        steps: list[TracedStep] = []
        for number in range(plan.traces.steps):
            fallen = 1 / (1 + growth * number / 10) if self.falls else 1 - 1e-4 * number
            loss = factor * (1 + fallen) * (1 + dice.gauss(0, 0.001))
            steps.append(TracedStep(loss, (0.1,), 1, number + 1))
            # As the recorder ends a run (tests/inside/test_training_recorder.py)
            last = fmean(step.loss or 0.0 for step in steps[-LAST_LOSSES:])
            ceilings = plan.traces.ceilings
            if len(steps) > LAST_LOSSES and ceilings and last > ceilings[number]:
                break
        self.made.append(len(steps))
        return TrainingTrace(tuple(steps), 1e-7)


def check(runs: MadeRuns) -> LearningCheck:
    applied = changed(make_applied(LARGER), optimizers=(SGD,), lr_rule=LrRule.AUTO)
    return LearningCheck(runs, applied, step_s=0.01, startup_s=2.0, known={})


def test_the_usual_rule_of_the_rate_stays_where_it_learns_as_much() -> None:
    runs = MadeRuns({LrRule.SQRT: 0.1, LrRule.NONE: 0.2})
    found = check(runs).check(LARGER, 1.5)
    assert (found.rule, found.seeds) == (LrRule.AUTO, SEEDS)
    assert found.is_sound
    rules = {rule for config, rule, _ in runs.asked if config == LARGER}
    assert rules == {LrRule.AUTO, LrRule.SQRT, LrRule.NONE}, "linear is the usual one of SGD"


def test_another_rule_is_taken_where_the_usual_one_is_worse() -> None:
    runs = MadeRuns({LrRule.AUTO: 0.15, LrRule.NONE: 0.15})
    found = check(runs).check(LARGER, 1.5)
    assert found.rule is LrRule.SQRT
    assert found.is_sound


def test_a_rule_that_was_chosen_by_luck_is_judged_by_fresh_random_states() -> None:
    """From the first state it looks sound, from all others it is worse by a tenth."""
    worse = dict.fromkeys((LrRule.AUTO, LrRule.NONE, LrRule.SQRT), 0.1)
    found = check(MadeRuns(worse, luck={(LrRule.SQRT, 0): -0.1})).check(LARGER, 1.5)
    assert (found.rule, found.seeds) == (LrRule.SQRT, SEEDS)
    assert found.gap is not None
    assert found.gap.low == pytest.approx(0.1, abs=0.01)
    assert not found.is_sound


def test_the_seconds_foretold_are_enough_also_for_another_rule() -> None:
    runs = MadeRuns({LrRule.AUTO: 0.15})
    one = check(runs)
    one.check(LARGER, 1.0)
    made = zip(runs.asked, runs.made, strict=True)
    steps = sum(n * (4 if c == LARGER else 1) for (c, _, _), n in made)
    assert 2.0 * len(runs.asked) + 0.01 * steps <= one.needs_s(LARGER)


def test_a_config_is_not_checked_by_a_program_whose_own_loss_hardly_falls() -> None:
    runs = MadeRuns(falls=False)
    found = check(runs).check(LARGER, 1.5)
    assert found.gap is None
    assert not found.is_sound
    assert found.untold == "its loss falls by 0.41 % in 120 steps, too little to tell"
    assert len(runs.asked) == 1


def test_a_hopeless_loss_is_relative_to_that_of_the_program_at_equal_samples() -> None:
    written = TrainingTrace(tuple(TracedStep(100.0 - number, (), 1) for number in range(40)), 1e-7)
    found = learning_gap.ceilings(written, 4.0, 0.25)
    assert len(found) == 10
    assert found[-1] == pytest.approx(1.25 * (100 - 29.5)), "of the last five updates"
    lost = replace(written, steps=(*written.steps[:-1], TracedStep(math.nan, (), 1)))
    assert learning_gap.ceilings(lost, 4.0, 0.25) == ()


def test_only_a_check_that_ran_out_of_time_is_one_that_was_cut_short() -> None:
    for end in (NOT_STARTED, Ending(Outcome.CRASHED, "no memory")):
        one = check(MadeRuns(most=1, end=end))
        assert one.check(LARGER, 1.5).gap is None
        assert one.was_cut_short is (end is NOT_STARTED)
