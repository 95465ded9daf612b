"""Who is blamed for a difference: the self-check over runs whose traces are made here."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from autotune.measurement.learning.training_trace import Sameness, TrainingTrace
from autotune.measurement.outcome import Ending
from autotune.program.config import Config
from autotune.program.rehearsal import Rehearsal, RehearsalPlan, Seen
from autotune.tuning.checking.self_check import SelfCheck
from autotune.tuning.checking.short_runs import NOT_STARTED
from tests.made import make_hardware, make_profile, make_space
from tests.measurement.test_training_trace import EPS, losses, trace

SPACE = make_space(
    {
        "workers": (0, 1, 2),
        "prefetch_factor": (2, 4),
        "memory_format": ("contiguous", "channels_last"),
        "precision": ("fp32", "bf16"),
    }
).resolve(make_hardware(), make_profile())
OWN = SPACE.baseline
ALL = SPACE.canonical(OWN.replace(workers=2, prefetch_factor=4, memory_format="channels_last"))
PASSED = Rehearsal(Seen(20, 2, 2, "as planned"))


@dataclass
class MadeRuns:
    """Runs whose losses are larger by a factor from the second epoch on; only so many start."""

    factor: Callable[[Config], float]
    most: int = 100
    ends: Callable[[Config], Ending | None] = lambda _: None
    asked: list[Config] = field(default_factory=list)

    def trace(self, config: Config, plan: RehearsalPlan, *_: object) -> TrainingTrace | Ending:
        self.asked.append(config)
        if len(self.asked) > self.most:
            return NOT_STARTED
        if ending := self.ends(config):
            return ending
        assert plan.traces is not None
        noise = EPS * (plan.traces.shakes > 0 or config != OWN)
        made = trace(noise, seed=plan.traces.shakes, factor=self.factor(config), since=13)
        return replace(made, shaken=plan.traces.shakes)


def check(runs: MadeRuns) -> SelfCheck:
    return SelfCheck(runs, SPACE, 0.001, {})


def test_what_only_acts_with_workers_is_blamed_and_not_the_workers() -> None:
    """Without workers nothing is prefetched: taking them back also takes back what is at fault."""
    runs = MadeRuns(lambda config: 1.01 if config["prefetch_factor"] == 4 else 1.0)
    found = check(runs).check(ALL, PASSED)
    assert found.training is not None
    assert found.training.sameness is Sameness.DIFFERS
    assert dict(found.guilty) == {"prefetch_factor": 4}


def test_a_difference_stands_where_there_is_no_time_to_see_it_again() -> None:
    """The program as written, the config and one shaken run fit; nothing else does."""
    runs = MadeRuns(
        lambda config: 1.01 if config["memory_format"] == "channels_last" else 1.0, most=3
    )
    found = check(runs).check(ALL, PASSED)
    assert found.training is not None
    assert found.training.sameness is Sameness.DIFFERS
    assert dict(found.guilty) == ALL.changes_from(OWN)
    assert "seen in one run; there was no second one" in str(found.training)


def test_a_difference_that_does_not_repeat_blames_nobody() -> None:
    factors = iter([1.0, 1.01, 1.0, 1.0, 1.0, 1.0, 1.0])
    runs = MadeRuns(lambda _: next(factors))
    found = check(runs).check(OWN.replace(memory_format="channels_last"), PASSED)
    assert found.training is not None
    assert found.training.sameness is Sameness.UNKNOWN
    assert not found.guilty


def test_a_program_that_learns_too_little_does_not_vouch_for_another_precision() -> None:
    """A config that learns nothing would look as good."""
    flat = losses([2.303 - 0.001 * number for number in range(36)])

    @dataclass
    class Flat(MadeRuns):
        def trace(self, *_: object) -> TrainingTrace:
            return flat

    config = OWN.replace(precision="bf16")
    found = check(Flat(lambda _: 1.0)).check(config, PASSED, losses([2.303] * 36))
    assert found.learning is None
    assert found.untold == "its loss falls by 1.1 % in 36 steps, too little to tell"
    assert found.training_note == (
        "Training: precision=bf16 (not checked: its loss falls by 1.1 % in 36 steps, too little to "
        "tell)."
    )
    worse = check(Flat(lambda _: 1.0)).check(config, PASSED, losses([2.5] * 36))
    assert dict(worse.guilty) == {"precision": "bf16"}, "a loss that is worse tells enough"
