"""An epoch is put together from its parts, cut passes included."""

from __future__ import annotations

import pytest

from autotune.measurement.epoch import EpochSeen, OtherPass, RunLength, breakdown
from autotune.measurement.interval import Interval

LOOP = Interval(10.0, 9.0, 11.0)


def test_a_cut_pass_counts_as_a_whole_one_and_a_start_only_once() -> None:
    cut = OtherPass("Pictures", start_s=0.5, seconds=1.0, batches=5, is_cut=True, length=20)
    assert cut.whole_s == pytest.approx(4.5)
    epoch = EpochSeen(steps=3, batches=3, start_s=1.0, steps_s=0.3, passes=(cut,), saving_s=0.2)
    found = breakdown([epoch, epoch], LOOP)
    assert found.is_estimated
    assert found.cut_after is None
    assert found.evaluation_s.estimate == pytest.approx(4.5)
    assert found.edges_s.estimate == pytest.approx(1.0)
    assert found.steps_s.estimate == pytest.approx(9.0)
    assert found.seconds.estimate == pytest.approx(14.7)
    assert found.ceiling == pytest.approx(14.7 / 4.7)


def test_an_evaluation_in_the_middle_of_a_cut_epoch_comes_again() -> None:
    within = OtherPass("Pictures", 0.0, 2.0, batches=4, is_within=True)
    epoch = EpochSeen(10, 10, 0.0, 1.0, passes=(within,), is_cut=True, length=40)
    assert epoch.evaluation_s == pytest.approx(8.0)


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
    epoch = EpochSeen(10, 10, 0.0, 1.0, saving_s=1.0, saving_within_s=0.5, is_cut=True, length=40)
    assert epoch.whole_saving_s == pytest.approx(3.0)
    rarely = epoch.as_often(RunLength(saves_every=4.0))
    assert rarely.whole_saving_s == pytest.approx(0.75)
