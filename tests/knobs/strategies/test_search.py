"""A whole search over strategies, with real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

import autotune
from tests.rigging import PROGRAMS
from tests.watching_search import StopsAfter

pytestmark = [pytest.mark.usefixtures("warm_starts"), pytest.mark.slow, pytest.mark.timeout(400)]


def test_strategies_and_ranks_move_together_and_are_told_about(workplace: Path) -> None:
    result = autotune.search(
        PROGRAMS / "slow_items.py",
        budget=600,
        tune=["devices"],
        values={"devices": ["single", "ddp-2"]},
        events=StopsAfter(trials=2),
    )
    measured = {
        r.config["devices"]: r.measurement for r in result.records if r.measurement is not None
    }
    assert {"single", "ddp-2"} <= measured.keys()
    ranks = measured["ddp-2"].ranks
    assert [load.rank for load in ranks] == [0, 1]
    assert any("2 ranks by ddp" in note for note in result.parallel_notes)
    assert result.best == result.baseline, "nothing was confirmed"
