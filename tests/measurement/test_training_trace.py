"""Whether two runs trained the same, told from their first steps."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from autotune.measurement.learning.learning_gap import loss_gap, relative_loss
from autotune.measurement.learning.training_trace import (
    FACTOR,
    MOST_NOISE,
    Agreement,
    Sameness,
    TracedStep,
    TrainingTrace,
    compare,
    same,
)

EPS = 1.2e-7
STEPS, PER_EPOCH = 36, 12
START = (0.1, -0.2, 0.3, 0.01)


def trace(
    noise: float = 0.0,
    growth: float = 1.2,
    seed: int = 0,
    factor: float = 1.0,
    since: int = 1,
    changes: dict[str, object] | None = None,
) -> TrainingTrace:
    """Return a trace whose rounding errors grow from step to step.

    Args:
        noise: Relative rounding error at the first step.
        growth: Its factor from step to step.
        seed: Of its signs.
        factor: On all losses, from the step *since* on.
        since: Counted from 1.
        changes: Fields of the steps from there on; ``fed`` is the checksum of their batches.
    """
    dice, steps, changes = random.Random(seed), [], dict(changes or {})
    fed = changes.pop("fed", None)
    for number in range(1, STEPS + 1):
        off = noise * growth**number * dice.choice((-1, 1))
        loss = (1 + off) / math.sqrt(number)
        step = TracedStep(
            loss * (factor if number >= since else 1.0),
            (0.1,),
            1 + (number - 1) // PER_EPOCH,
            number,
            tuple(w * (1 + off) for w in START),
            (number + off, 2.0, -math.inf),
        )
        if number >= since:
            step = TracedStep(**{**vars(step), **changes})
        steps.append(step)
    numbers = range(1, STEPS + 1)
    batches = [fed if isinstance(fed, int) and n >= since else n for n in numbers]
    return TrainingTrace(tuple(steps), EPS, START, tuple(batches), shaken=1)


WRITTEN, SHAKEN = trace(), trace(EPS, seed=1)


def agreement(own: TrainingTrace) -> Agreement:
    return compare(WRITTEN, [SHAKEN], own)


def test_what_rounding_alone_explains_is_the_same() -> None:
    for times in (0.1, 1.0, 0.5 * FACTOR):
        found = agreement(trace(times * EPS, seed=3))
        assert found.sameness is Sameness.ROUNDING
    assert str(found) == "same within rounding over 36 steps"


def test_a_difference_that_rounding_does_not_explain_is_found_where_it_begins() -> None:
    found = agreement(trace(EPS, factor=1.01, since=13))
    assert (found.sameness, found.part, found.at) == (Sameness.DIFFERS, "losses", 13)
    assert str(found) == "losses differ by 0.01 from step 13 on, when epoch 2 begins"
    found = agreement(trace(EPS, factor=1.01, since=15))
    assert str(found) == "losses differ by 0.01 from step 15 on"


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"rates": (0.1001,)}, "learning rates"),
        ({"weights": (0.11, -0.22, 0.33, 0.011)}, "weights"),
        ({"buffers": (1.2, 2.2, -math.inf)}, "buffers"),
        ({"loss": math.nan}, "losses"),
    ],
)
def test_each_part_is_compared(changes: dict[str, object], part: str) -> None:
    found = agreement(trace(EPS, since=4, changes=changes))
    assert (found.sameness, found.part, found.at) == (Sameness.DIFFERS, part, 4)


def test_other_samples_are_told() -> None:
    other = trace(factor=1.3, since=5, changes={"fed": 0})
    assert str(agreement(other)) == "it is fed other samples from step 5 on"
    by_chance = trace(EPS, since=20, changes={"fed": 7})
    found = compare(WRITTEN, [by_chance], trace(since=5, changes={"fed": 0}))
    assert found.sameness is Sameness.DIFFERS, "chance changes none of the first"
    assert (
        compare(WRITTEN, [by_chance], trace(since=25, changes={"fed": 0})).sameness
        is Sameness.ROUNDING
    )
    early = compare(WRITTEN, [trace(EPS, factor=1.01, since=7, changes={"fed": 7})], WRITTEN)
    assert early.sameness is Sameness.UNKNOWN, "nothing is known of the second epoch"
    rounded = compare(WRITTEN, [trace(EPS, since=3, changes={"fed": 7})], WRITTEN)
    assert rounded.sameness is Sameness.ROUNDING, "the losses tell where samples only round"
    parts = compare(WRITTEN, [SHAKEN], trace(since=5, changes={"fed": 0}), same_batches=False)
    assert parts.sameness is Sameness.ROUNDING, "parts of batches hold other samples"
    wild = compare(WRITTEN, [trace(2 * MOST_NOISE)], other)
    assert wild.part == "samples", "what rounding leads to does not hide it"


def test_a_late_difference_does_not_hide_in_what_rounding_has_grown_to() -> None:
    """Rounding errors grow to almost 1e-3 here, 20 times which is more than the difference."""
    grown = trace(EPS, growth=1.28, seed=1)
    assert 5e-4 < EPS * 1.28**STEPS < 1e-3
    found = compare(WRITTEN, [grown], trace(EPS, growth=1.28, factor=1.015, since=13, seed=2))
    assert (found.sameness, found.part, found.at) == (Sameness.DIFFERS, "losses", 13)
    sound = compare(WRITTEN, [grown], trace(EPS, growth=1.28, seed=3))
    assert sound.sameness is Sameness.ROUNDING
    assert 25 < sound.steps < STEPS


def test_one_group_of_several_with_another_learning_rate_is_noticed() -> None:
    written, shaken, other = (
        trace(noise, changes={"rates": (0.1, 0.01, last)})
        for noise, last in ((0.0, 1e-4), (EPS, 1e-4), (EPS, 2e-4))
    )
    late = replace(shaken, steps=(*shaken.steps[:3], *other.steps[3:]))
    found = compare(written, [shaken], late)
    assert (found.sameness, found.part, found.at) == (Sameness.DIFFERS, "learning rates", 4)
    assert compare(written, [shaken], shaken).sameness is Sameness.ROUNDING


def test_a_few_layers_that_normalise_otherwise_are_noticed() -> None:
    """Four of sixteen, as half of the layers do where some of the blocks are computed again."""

    def normalising(off: float = 0.0, noise: float = 0.0, seed: int = 0) -> TrainingTrace:
        dice, made = random.Random(seed), trace(noise, seed=seed)
        steps = []
        for number, step in enumerate(made.steps, start=1):
            means = [(1 + noise * dice.choice((-1, 1))) * 0.9**number for _ in range(16)]
            means[:4] = [mean * (1 + off) for mean in means[:4]]
            steps.append(replace(step, buffers=tuple(means)))
        return replace(made, steps=tuple(steps))

    written, shaken = normalising(), normalising(noise=EPS, seed=1)
    found = compare(written, [shaken], normalising(off=0.1, noise=EPS, seed=2))
    assert (found.sameness, found.part, found.at) == (Sameness.DIFFERS, "buffers", 1)
    sound = compare(written, [shaken], normalising(noise=4 * EPS, seed=3))
    assert sound.sameness is Sameness.ROUNDING


def test_checkpoints_are_compared_by_their_form() -> None:
    written, shaken = (replace(made, saved=(1, 1, 1)) for made in (WRITTEN, SHAKEN))

    def told(*saved: int) -> str:
        return str(compare(written, [shaken], replace(trace(EPS), saved=saved)))

    assert told(1, 1, 1) == "same within rounding over 36 steps"
    assert told(1) == "same within rounding over 36 steps", "a thread may write the rest"
    assert "it saves checkpoints of another form" in told(1, 2)
    assert told() == "it saves no checkpoint where the program as written saves some"


def test_nothing_is_told_beyond_the_step_from_which_rounding_leads_anywhere() -> None:
    wild = trace(EPS, growth=1.8, seed=1)
    found = compare(WRITTEN, [wild], trace(EPS, factor=1.5, since=30))
    assert found.sameness is Sameness.ROUNDING
    assert found.steps < 20
    assert compare(WRITTEN, [wild], trace(factor=1.01)).sameness is Sameness.DIFFERS


def test_a_config_with_fewer_steps_is_judged_in_these_alone() -> None:
    """Rounding may grow in steps that only the program as written makes."""
    half = replace(WRITTEN, steps=WRITTEN.steps[: STEPS // 2])
    for growth in (1.1, 1.22, 1.24, 1.26, 1.28, 1.3, 1.34):
        found = compare(WRITTEN, [trace(EPS, growth, seed=1)], half, same_batches=False)
        assert found.sameness is Sameness.ROUNDING
        assert found.steps <= STEPS // 2


def test_a_program_that_differs_from_itself_is_not_compared() -> None:
    found = compare(WRITTEN, [trace(2 * MOST_NOISE)], trace(factor=1.01))
    assert found.sameness is Sameness.UNKNOWN
    assert "rounded otherwise, it differs by 0.002 at step 1" in str(found)
    few = TrainingTrace(WRITTEN.steps[:3], EPS)
    assert "too few to tell" in str(compare(few, [few], few))
    assert "it made 9 steps of 36" in str(compare(WRITTEN, [SHAKEN], shortened(9)))
    assert same(WRITTEN, shortened(9)) is None
    empty = TrainingTrace(tuple(TracedStep(None, (), 0) for _ in range(9)), EPS)
    assert "losses and weights cannot be seen" in str(compare(empty, [empty], empty))
    assert same(empty, empty) is None, "nothing was compared"
    broken = replace(WRITTEN, broken="RuntimeError: it is sparse")
    assert "cannot be recorded (RuntimeError" in str(compare(WRITTEN, [SHAKEN], broken))
    unshaken = replace(WRITTEN, shaken=0)
    assert "weights cannot be found" in str(compare(WRITTEN, [unshaken], trace(EPS)))


def shortened(steps: int) -> TrainingTrace:
    return replace(WRITTEN, steps=WRITTEN.steps[:steps])


def test_a_shaken_run_starts_elsewhere_and_moves_alike() -> None:
    """As far as weights of few digits are shaken: that says nothing about rounding."""
    moved = tuple(1.004 * w for w in START)
    steps = tuple(replace(step, weights=moved) for step in SHAKEN.steps)
    shaken = replace(SHAKEN, steps=steps, start=moved)
    assert compare(WRITTEN, [shaken], trace(EPS)).sameness is Sameness.ROUNDING
    worse = trace(EPS, since=4, changes={"weights": tuple(1.004 * w for w in START)})
    found = compare(WRITTEN, [shaken], worse)
    assert (found.sameness, found.part, found.at) == (Sameness.DIFFERS, "weights", 4)


def test_differences_repeat_where_they_have_a_cause() -> None:
    found, again = (agreement(trace(EPS, factor=1.01, since=at)) for at in (13, 14))
    assert found.is_like(again)
    assert not found.is_like(agreement(trace(EPS, factor=1.01, since=20)))
    assert not found.is_like(agreement(trace(EPS)))


def test_the_loss_of_another_precision_is_compared_at_equal_samples() -> None:
    dice = random.Random(5)

    def noisy(gap: float) -> TrainingTrace:
        steps = [
            replace(step, loss=(step.loss or 0.0) * (1 + gap + dice.gauss(0, 0.002)))
            for step in WRITTEN.steps
        ]
        return TrainingTrace(tuple(steps), EPS)

    for gap in (0.0, 0.003, 0.05):
        found = loss_gap(WRITTEN, noisy(gap))
        assert found is not None
        assert found.low <= gap <= found.high
        assert found.high - found.low < 0.01
    assert loss_gap(WRITTEN, TrainingTrace(WRITTEN.steps[:4], EPS)) is None


def test_a_loss_that_is_no_number_is_the_worst() -> None:
    lost = trace(since=20, changes={"loss": math.nan})
    found = loss_gap(WRITTEN, lost)
    assert found is not None
    assert found.low > 1.0
    both = loss_gap(lost, lost)
    assert both is not None
    assert both.high == 0.0, "as written, too"


def losses(values: list[float]) -> TrainingTrace:
    return replace(WRITTEN, steps=tuple(TracedStep(value, (0.1,), 1) for value in values))


def test_a_larger_batch_is_compared_where_both_have_trained_on_the_same_samples() -> None:
    written = losses([1 / math.sqrt(number) for number in range(1, 121)])
    # Before its n-th update a config has trained on as much as the program before its 4(n-1)+1st
    same = losses([1 / math.sqrt(number) for number in range(1, 121, 4)])
    found = relative_loss(written, same, per_update=4.0)
    assert found is not None
    assert abs(found) < 0.002
    late = losses([1 / math.sqrt(number) for number in range(1, 31)])
    assert relative_loss(written, late, 4.0) == pytest.approx(1.0, abs=0.05), "each update as one"
    lost = losses([math.nan] * 30)
    assert relative_loss(written, lost, 4.0) == 10.0
    assert relative_loss(lost, same, 4.0) is None
    assert relative_loss(written, replace(same, steps=()), 4.0) is None
