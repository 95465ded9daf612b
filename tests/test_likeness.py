"""The judgement of benchmarks/training.py, on recordings that are made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.program.lr import LrRule
from benchmarks.likeness import Alone, Judgement, Recording, Step, Verdict, judge

STEPS = 8
LONG = 8 * STEPS


def recording(
    steps: int = STEPS,
    samples: int = 32,
    rate: float = 0.1,
    push: float = 1.0,
    loss: float = 2.0,
    off: float = 0.0,
) -> Recording:
    """Return a training that moves its parameters by the rate times a push in each step."""
    made = tuple(
        Step(
            losses=(loss * 0.99**n * (1 + off),),
            samples=samples,
            rates=(rate,),
            ids=f"ids {n}",
            integers=f"integers {n}",
            inputs=f"inputs {n}",
            rows=(f"row {n}",),
            gradient=push,
            moved=rate * push * (n + 1),
        )
        for n in range(steps)
    )
    return Recording(made, "", (0.0, 0.0), (1.0 + off, 1.0))


ALONE = Alone(recording(LONG), recording(), recording())


def changing(tuned: Recording, rule: LrRule = LrRule.LINEAR) -> Judgement:
    """Judge a knob that changes learning by design."""
    return judge(ALONE, tuned, rule, STEPS, by_design=True)


def unchanging(tuned: Recording, alone: Alone = ALONE) -> Judgement:
    """Judge a knob that must change nothing."""
    return judge(alone, tuned, LrRule.LINEAR, STEPS, by_design=False)


def with_step(tuned: Recording, number: int, **changes: object) -> Recording:
    """Return a recording with one step changed."""
    steps = list(tuned.steps)
    steps[number] = replace(steps[number], **changes)  # type: ignore[arg-type]
    return replace(tuned, steps=tuple(steps))


def test_equal_trainings_are_the_same() -> None:
    assert unchanging(recording()).verdict is Verdict.SAME


def test_rounding_is_told_apart_from_a_difference() -> None:
    assert unchanging(recording(off=1e-5)).verdict is Verdict.ROUNDED
    assert unchanging(recording(off=0.02)).verdict is Verdict.DIFFERS


def test_equal_losses_with_other_parameters_differ() -> None:
    moved_elsewhere = replace(recording(), parameters=(1.14, 1.0))
    judgement = unchanging(moved_elsewhere)
    assert judgement.verdict is Verdict.DIFFERS
    assert "of the way apart" in judgement.evidence


def test_a_program_that_is_not_reproducible_may_differ_by_its_own_noise() -> None:
    noisy = replace(ALONE, again=recording(off=0.02))
    assert unchanging(recording(off=0.03), noisy).verdict is Verdict.ROUNDED
    assert unchanging(recording(off=0.3), noisy).verdict is Verdict.DIFFERS


def test_other_draws_over_the_same_samples_have_a_verdict_of_their_own() -> None:
    tuned = with_step(recording(), 3, inputs="others", losses=(7.0,))
    assert unchanging(tuned).verdict is Verdict.DRAWS
    assert unchanging(with_step(tuned, 3, ids="others")).verdict is Verdict.DIFFERS


def test_a_dataset_that_repeats_its_draws_differs() -> None:
    steps = tuple(replace(step, rows=("row",), inputs="others") for step in recording().steps)
    judgement = unchanging(replace(recording(), steps=steps))
    assert judgement == Judgement(Verdict.DIFFERS, "1 different inputs of 8, 8 alone")


@pytest.mark.parametrize("change", [{"rates": (0.2,)}, {"samples": 64}, {"losses": (2.0, 1.0)}])
def test_a_knob_without_effect_on_learning_keeps_rates_samples_and_losses(
    change: dict[str, object],
) -> None:
    assert unchanging(with_step(recording(), 5, **change)).verdict is Verdict.DIFFERS


def test_a_larger_batch_with_the_rate_of_the_rule_is_by_design() -> None:
    assert changing(recording(samples=128, rate=0.4)).verdict is Verdict.DESIGN
    assert changing(recording(samples=128, rate=0.2), LrRule.SQRT).verdict is Verdict.DESIGN


@pytest.mark.parametrize("rate", [0.1, 0.8, 6.4])
def test_a_larger_batch_with_another_rate_differs(rate: float) -> None:
    judgement = changing(recording(samples=128, rate=rate))
    assert judgement.verdict is Verdict.DIFFERS
    assert "the rule says 4 x 0.1" in judgement.evidence


def test_a_scaled_rate_with_the_programs_own_batch_differs() -> None:
    assert changing(recording(rate=0.8)).verdict is Verdict.DIFFERS


def test_a_later_stage_with_the_programs_own_batch_at_the_scaled_rate_differs() -> None:
    tuned = recording(samples=128, rate=0.4)
    for number in range(3, STEPS):
        tuned = with_step(tuned, number, samples=32)
    judgement = changing(tuned)
    assert judgement.verdict is Verdict.DIFFERS
    assert "steps from 4 have the program's own 32 samples at rate 0.4" in judgement.evidence


def test_a_later_stage_with_the_programs_own_batch_at_its_own_rate_is_by_design() -> None:
    tuned = recording(samples=128, rate=0.4)
    for number in range(4, STEPS):
        tuned = with_step(tuned, number, samples=32, rates=(0.1,))
    assert changing(tuned).verdict is Verdict.DESIGN


def test_each_of_two_ranks_has_half_of_the_samples() -> None:
    share = recording(samples=32, rate=0.2)
    assert changing(share).verdict is Verdict.DIFFERS
    assert changing(share.of_ranks(2)).verdict is Verdict.DESIGN


def test_a_program_without_batches_keeps_its_rate_in_another_precision() -> None:
    run = recording(LONG, samples=0)
    alone = Alone(run, recording(samples=0), recording(samples=0))
    judgement = judge(alone, recording(samples=0), LrRule.LINEAR, STEPS, by_design=True)
    assert judgement.verdict is Verdict.DESIGN


def test_an_epochs_last_batch_may_be_shorter() -> None:
    assert changing(with_step(recording(samples=128, rate=0.4), 5, samples=32)).verdict is (
        Verdict.DESIGN
    )


def test_a_summed_loss_under_a_scaled_rate_differs() -> None:
    judgement = changing(recording(samples=128, rate=0.4, push=4.0, loss=8.0))
    assert judgement.verdict is Verdict.DIFFERS
    assert "16 x as far, the rule says 4 (gradient x 4)" in judgement.evidence


def test_a_program_that_stands_still_in_another_precision_differs() -> None:
    assert changing(recording(push=1e-5)).verdict is Verdict.DIFFERS
    assert changing(recording(off=1e-3)).verdict is Verdict.DESIGN


def test_a_schedule_may_move_by_steps_or_by_samples() -> None:
    falling = ALONE.run
    for number in range(LONG):
        falling = with_step(falling, number, rates=(0.1 * 0.9**number,))
    alone = replace(ALONE, run=falling)
    by_step, by_sample = recording(samples=64, rate=0.2), recording(samples=64, rate=0.2)
    for number in range(STEPS):
        by_step = with_step(by_step, number, rates=(0.2 * 0.9**number,))
        by_sample = with_step(by_sample, number, rates=(0.2 * 0.9 ** (2 * number),))
    for tuned in (by_step, by_sample):
        judgement = judge(alone, tuned, LrRule.LINEAR, STEPS, by_design=True)
        assert judgement.verdict is Verdict.DESIGN, judgement


def test_a_schedule_that_warms_up_by_steps_goes_a_shorter_way_over_the_same_samples() -> None:
    warming, short = ALONE.run, recording(samples=128)
    for number in range(LONG):
        rate = 0.01 * number
        warming = with_step(warming, number, rates=(rate,), moved=0.005 * number**2)
        if number < STEPS:
            short = with_step(short, number, rates=(rate,), moved=0.005 * number**2)
    judgement = judge(replace(ALONE, run=warming), short, LrRule.NONE, STEPS, by_design=True)
    assert judgement.verdict is Verdict.DESIGN, judgement


def test_a_loss_that_is_not_finite_differs() -> None:
    assert changing(with_step(recording(), 2, losses=(float("nan"),))).verdict is Verdict.DIFFERS


def test_an_early_end_is_a_failure_unless_a_larger_batch_has_used_up_the_data() -> None:
    short = replace(recording(3, samples=128, rate=0.4), ended="the program ended")
    assert changing(short).verdict is Verdict.DESIGN
    assert unchanging(short).verdict is Verdict.FAILED
    assert changing(replace(short, ended="ValueError: no")).verdict is Verdict.FAILED
