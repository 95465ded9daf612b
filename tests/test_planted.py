"""Habits of programs with which a setting changes the training: the comparison finds them all.

Each fault is a program of its own (``tests/programs/planted.py``), with a sound twin that no
setting changes. What is found here needs no code that recognises it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from autotune.measurement.learning.training_trace import Sameness
from autotune.program.config import KnobValue
from tests.rigging import open_rig
from tests.test_self_check import Runs, agreement

pytestmark = [pytest.mark.usefixtures("warm_starts"), pytest.mark.slow]

WORKERS: dict[str, KnobValue] = {"num_workers": 2, "persistent_workers": True}
AGAIN: dict[str, KnobValue] = {"activation_checkpointing": "all"}
LAYOUT: dict[str, KnobValue] = {"channels_last": True}
PARTS: dict[str, KnobValue] = {"accumulation_steps": 2, "batch_size": 8}
FAULTS: dict[str, Mapping[str, KnobValue]] = {
    **dict.fromkeys(["generator", "unseeded", "global", "transform", "collate"], WORKERS),
    **dict.fromkeys(["items", "curriculum", "process"], WORKERS),
    **dict.fromkeys(["block draws", "block python", "block state", "block list"], AGAIN),
    **dict.fromkeys(["block global", "block numpy", "block counter", "block memory"], AGAIN),
    **dict.fromkeys(["block weight", "module generator", "argument", "pair"], AGAIN),
    **dict.fromkeys(["hook", "functional", "block late"], AGAIN),
    **dict.fromkeys(["shared weight", "views"], LAYOUT),
    **dict.fromkeys(["clipping", "rate", "contrastive", "average", "teacher"], PARTS),
}


# Faults with which the program fails
FAILS = {
    "process": "reads in one process only",
    "argument": "RuntimeError: one of the variables",
    "functional": "RuntimeError: torch.func.{grad, vjp, jacrev, hessian} don't yet s",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    with open_rig(folder, "planted.py", "none") as opened:
        return Runs(folder, opened, "planted.py")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_its_sound_twin_is_not(runs: Runs, fault: str) -> None:
    changes = FAULTS[fault]
    is_whole = "batch_size" not in changes
    if fault in FAILS:
        with pytest.raises(AssertionError, match=re.escape(FAILS[fault])):
            runs.trace(fault, changes=changes)
    else:
        pair = runs.trace(fault), runs.trace(fault, shakes=1)
        found = agreement(pair, runs.trace(fault, changes=changes), same_batches=is_whole)
        assert found.sameness is Sameness.DIFFERS, found
    twin = runs.trace(fault, "--sound"), runs.trace(fault, "--sound", shakes=1)
    own = runs.trace(fault, "--sound", changes=changes)
    found = agreement(twin, own, same_batches=is_whole)
    assert found.sameness in {Sameness.BITS, Sameness.ROUNDING}, found
