"""An epoch is put together from its parts, cut passes included."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.measurement.epochs.breakdown import (
    around_batch_s,
    breakdown,
    ending_s,
    mean_breakdown,
    tells_within,
    usual_epochs,
    with_timed_loop,
)
from autotune.measurement.epochs.epoch import EpochSeen, OtherPass, RunLength
from autotune.measurement.interval import Interval

LOOP = Interval(10.0, 9.0, 11.0)


def test_a_cut_pass_counts_as_a_whole_one_and_a_start_only_once() -> None:
    short = OtherPass("Pictures", start_s=0.5, seconds=1.0, batches=5, is_cut=True, length=20)
    assert short.whole_s == pytest.approx(4.5)
    epoch = EpochSeen(steps=3, batches=3, start_s=1.0, steps_s=0.3, passes=(short,), saving_s=0.2)
    found = breakdown([epoch, epoch], LOOP)
    assert found.is_estimated
    assert found.cut_after is None
    assert found.evaluation_s.estimate == pytest.approx(4.5)
    assert found.edges_s.estimate == pytest.approx(1.0)
    assert found.steps_s.estimate == pytest.approx(9.0)
    assert found.seconds.estimate == pytest.approx(14.7)
    assert found.ceiling == pytest.approx(14.7 / 4.7)


def cut(*after: int, seen: int = 20) -> EpochSeen:
    """Return 20 of 1,000 batches with evaluations of 2 s after some of them."""
    passes = tuple(OtherPass("Pictures", 0.5, 1.5, batches=4, after=place) for place in after)
    return EpochSeen(seen, seen, 0.0, 1.0, passes=passes, is_cut=True, length=1000)


@pytest.mark.parametrize(
    ("epochs", "times"),
    [
        ([cut(1)] * 3, Interval(1.0, 1.0, 1000 / 19)),  # `if step % 50 == 0`: or 100, or 1000
        ([cut(20)] * 3, Interval(50.0, 50.0, 50.0)),
        ([cut(15)] * 3, Interval(1000 / 15, 1000 / 15, 1000 / 15)),
        ([cut(5)] * 3, Interval(1.0, 1.0, 1000 / 15)),  # and not again at 10
        ([cut(8, 16)] * 3, Interval(125.0, 125.0, 125.0)),
        ([cut(), cut(10), cut(), cut(20)], Interval(20.0, 20.0, 20.0)),  # every 50 of all steps
        ([cut(), cut(10), cut()], Interval(1000 / 60, 0.0, 1000 / 30)),
        ([cut()] * 3, Interval(0.0, 0.0, 0.0)),
    ],
)
def test_how_often_it_evaluates_in_an_epoch_is_told_by_the_distance(
    epochs: list[EpochSeen], times: Interval
) -> None:
    found = breakdown([cut(), *epochs], LOOP)
    assert found.evaluation_s.estimate == pytest.approx(2 * times.estimate)
    assert found.evaluation_s.low <= 2 * times.low
    assert found.evaluation_s.high >= 2 * times.high
    if times.low == times.high:
        assert found.evaluations is None
    else:
        assert found.evaluations is not None
        assert vars(found.evaluations) == pytest.approx(vars(times))


def test_only_what_cut_epochs_do_not_tell_is_taken_from_the_search() -> None:
    regular, none = [cut(5, 10, 15)] * 3, [cut()] * 3  # 0.5 s after every 5 of 20 batches
    own_s = breakdown(regular, LOOP).evaluation_s
    for seen, times, expected in (
        (regular, 1.0, True),
        (regular, 0.2, True),
        (regular, 10.0, False),  # the search saw more than these: something that comes less often
        (none, 1.0, False),
        ([cut(5)], 1.0, False),  # once in all: how often is not known
        ([replace(one, is_cut=False, length=None) for one in none], 1.0, True),
    ):
        assert tells_within(seen, own_s.times(times)) is expected, (seen, times)
    more_s = own_s.times(10.0)
    counted = breakdown(regular, LOOP, more_s)
    assert counted.evaluation_s == more_s
    assert counted.evaluations is None


def test_what_comes_in_the_middle_of_a_whole_pass_counts_as_it_came() -> None:
    passes = tuple(OtherPass("Pictures", 0.0, 2.0, batches=4, after=place) for place in (1, 51))
    epoch = EpochSeen(100, 100, 0.0, 1.0, passes=passes, saving_within_s=0.5, saved_after=(50,))
    found = breakdown([epoch, epoch], LOOP)
    assert found.evaluation_s.estimate == pytest.approx(4.0)
    assert found.saving_s.estimate == pytest.approx(0.5)
    assert found.steps == 100


def test_the_first_epoch_and_the_last_count_only_without_others() -> None:
    first, usual = EpochSeen(3, 3, 0.0, 1.0, rest_s=9.0), EpochSeen(3, 3, 0.0, 1.0, rest_s=1.0)
    last = EpochSeen(3, 3, 0.0, 1.0, rest_s=5.0, is_last=True)
    assert breakdown([first, usual, usual, last], LOOP).rest_s.estimate == pytest.approx(1.0)
    assert breakdown([first, last], LOOP).rest_s.estimate == pytest.approx(5.0)
    alone = breakdown([first], LOOP).rest_s
    assert alone.estimate == pytest.approx(9.0)
    assert alone.high - alone.low > 0.5 * alone.estimate  # seen once: it may have been anything
    with pytest.raises(ValueError, match="at least one epoch"):
        breakdown([], LOOP)


def test_an_evaluation_every_few_epochs_counts_by_its_distance() -> None:
    found = OtherPass("Pictures", 0.0, 30.0, batches=4)
    rare = [EpochSeen(3, 3, 0.0, 1.0, passes=(found,) if n % 3 == 2 else ()) for n in range(9)]
    for first in range(3):
        for last in range(first + 5, 10):
            seen = breakdown(rare[first:last], LOOP).evaluation_s
            assert seen.low <= 10.0 <= seen.high, (first, last)
    once = breakdown(rare[:4], LOOP).evaluation_s
    assert once.low == 0.0
    assert once.high >= 30.0


def test_checkpoints_in_the_middle_of_a_cut_epoch_come_again() -> None:
    epoch = replace(cut(seen=10), saving_s=1.0, saving_within_s=0.5, saved_after=(10,), length=40)
    assert breakdown([epoch, epoch], LOOP).saving_s.estimate == pytest.approx(3.0)
    rarely = epoch.within(RunLength(saves_every=4.0))
    assert breakdown([rarely, rarely], LOOP).saving_s.estimate == pytest.approx(0.75)


def test_a_training_of_few_steps_ends_in_its_first_pass() -> None:
    epoch = cut(seen=20).within(RunLength(steps=50))
    assert breakdown([epoch, epoch], LOOP).steps == 50
    assert cut(seen=20).within(RunLength(steps=5000)).length == 1000


def test_a_program_that_leaves_each_pass_early_has_shorter_epochs() -> None:
    length = RunLength(9.0, batches=100)
    assert cut(seen=20).within(length).length == 100
    assert replace(cut(seen=20), length=None).within(length).length == 100  # of unknown length
    whole = EpochSeen(99, 99, 0.0, 1.0)
    assert whole.within(length).length is None, "it was seen as it is"


def test_what_lies_around_the_loop_of_an_endless_loader_counts_within_the_training() -> None:
    """A sampler of 10**9 batches never ends; the training makes 50 steps."""
    passes = (OtherPass("Pictures", 0.0, 5.0, batches=4),)
    endless = EpochSeen(20, 20, 0.0, 1.0, passes=passes, is_cut=True, length=10**9)
    within = endless.within(RunLength(steps=50))
    assert around_batch_s([within, within]).estimate == pytest.approx(5.0 / 50)


def test_the_last_epoch_does_not_tell_how_long_the_others_are() -> None:
    usual, last = EpochSeen(100, 100, 0.0, 1.0), EpochSeen(7, 7, 0.0, 0.1, is_last=True)
    assert usual_epochs([usual, usual, last])[-1].batches == 100


def test_what_comes_only_at_the_end_counts_once() -> None:
    usual = EpochSeen(3, 3, 0.0, 1.0, rest_s=0.1)
    test = OtherPass("Pictures", 0.0, 7.0, batches=4)
    last = EpochSeen(3, 3, 0.0, 1.0, (test,), saving_s=0.5, rest_s=0.1, is_last=True)
    assert ending_s([usual, usual, last]) == pytest.approx(7.5)
    assert ending_s([usual, usual]) == 0.0
    evaluates = replace(usual, passes=(test,))
    assert ending_s([evaluates, evaluates, last]) == pytest.approx(0.5)
    waits = replace(usual, rest_s=2.1, is_last=True)  # for a thread
    assert ending_s([evaluates, evaluates, waits]) == pytest.approx(2.0)
    waits = replace(evaluates, computing_s=2.0, is_last=True)  # after its evaluation
    assert ending_s([evaluates, evaluates, waits]) == pytest.approx(2.0)
    assert ending_s([last]) == 0.0, "it is the usual epoch of a program with one"


def test_the_interval_of_an_epoch_holds_that_of_another_process() -> None:
    """However often it was seen in one: equal processes of a virtual machine differ by 10 %."""
    epoch = EpochSeen(3, 3, 0.0, 1.0, rest_s=1.0)
    found = breakdown([epoch] * 40, LOOP).rest_s
    assert found.low < 0.9
    assert found.high > 1.1


def test_processes_count_alike_and_the_interval_holds_what_each_of_them_showed() -> None:
    fast = EpochSeen(3, 3, 0.0, 1.0, rest_s=1.0)
    slow = replace(fast, rest_s=2.0)
    one, other = breakdown([fast] * 2, LOOP), breakdown([slow] * 40, LOOP)
    found = mean_breakdown([one, other])
    assert found.rest_s.estimate == pytest.approx(1.5)
    assert found.rest_s.low <= 1.0
    assert found.rest_s.high >= 2.0
    assert found.epochs == one.epochs + other.epochs
    assert mean_breakdown([one]) is one
    alike = mean_breakdown([other, other])
    assert alike.rest_s.estimate == pytest.approx(2.0)
    assert other.rest_s.low < alike.rest_s.low < 2.0 < alike.rest_s.high < other.rest_s.high


def test_whole_epochs_that_were_timed_count_for_the_steps_like_the_windows() -> None:
    epoch = EpochSeen(3, 3, start_s=0.5, steps_s=5.5)
    found = with_timed_loop([epoch] * 4, Interval(10.0, 9.9, 10.1))
    assert found.estimate == pytest.approx((6.0 * 10.0) ** 0.5)
    assert found.low <= 6.01
    assert found.high >= 9.99
    assert with_timed_loop([replace(epoch, is_cut=True, length=9)] * 4, LOOP) == LOOP
