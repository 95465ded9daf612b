"""The program as written counts with the page faults that it has alone."""

from __future__ import annotations

import pytest

from autotune.measurement.page_faults import MOST, PageFaults
from autotune.measurement.turn import Played, Turn

ALONE_S = 1e-6  # of a page fault


def turn(*faults: int, disturbed: tuple[int, ...] = ()) -> Turn:
    return Turn(0, (0.04,) * len(faults), (64,) * len(faults), 0.0, disturbed, faults=faults)


def shared(faults: int, seconds: float = 0.4) -> Played:
    return Played(seconds, 640, seconds, 640, 10, faults=faults)


def seen(own: int = 6000) -> PageFaults:
    found = PageFaults()
    found.see_alone("own", [turn(own, own)])
    return found


def test_what_a_turn_has_more_or_fewer_than_alone_is_taken_off_or_added() -> None:
    found = seen()
    for faults, seconds in ((60_000, 0.4), (0, 0.46), (120_000, 0.34)):
        one = found.as_alone("own", shared(faults), ALONE_S)
        assert one.seconds == one.cost == pytest.approx(seconds)
        assert one.work == 640
    least = found.as_alone("own", shared(10**7), ALONE_S).seconds
    assert least == pytest.approx(0.4 * (1 - MOST)), "more than the turn has"
    most = seen(10**6).as_alone("own", shared(0), ALONE_S).seconds
    assert most == pytest.approx(0.4 * (1 + MOST))


def test_one_costs_what_a_config_that_keeps_its_memory_saves_but_no_more_than_alone() -> None:
    cheap, dear, few = seen(), seen(), seen()
    cheap.compare("own", shared(50_000), shared(0, 0.375))  # two threads at once
    assert cheap.as_alone("own", shared(0), ALONE_S).seconds == pytest.approx(0.4 + 60_000 * 0.5e-6)
    dear.compare("own", shared(50_000), shared(0, 0.2))
    assert dear.as_alone("own", shared(0), ALONE_S).seconds == pytest.approx(0.46)
    few.compare("own", shared(500), shared(0, 0.399))  # 2 us each, but it is the noise of the steps
    assert few.each_s is None
