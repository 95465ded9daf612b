"""Two ranks are one: the same global batch in the same order gives the same parameters.

All is computed in float64, so that what differs is not the order of a sum.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from autotune.program.program import LaunchPlan
from autotune.rig.torchrun_plan import with_ranks
from tests.knobs.strategies.together import Case, alone

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TOLERANCE = 1e-9
STRATEGIES = ("ddp", "fsdp", "zero1")
OPTIMIZERS = ("sgd", "adamw")
TWO_PHASES = ("two phases", "two phases of a list")
WRAPPED = "data parallel"
OVERFLOWS = [Case(s, "adamw", "overflows", steps) for s in STRATEGIES for steps in (1, 2)]
CASES = [
    *OVERFLOWS,
    *(Case(s, o) for s in STRATEGIES for o in OPTIMIZERS),
    *(Case(s, "adamw", accumulation_steps=2) for s in STRATEGIES),
    *(Case(s, "adamw", "clipping") for s in STRATEGIES),
    *(Case(s, "sgd", "clipping", accumulation_steps=4) for s in STRATEGIES),
    *(Case(s, "sgd", style) for s in STRATEGIES for style in ("frozen", "closure", "outside")),
    *(Case(s, "adamw", style) for s in STRATEGIES for style in ("frozen in optimizer", WRAPPED)),
    *(Case(s, "adamw", "thawed") for s in STRATEGIES),
    Case("ddp", "adamw", "thawed", accumulation_steps=2),
    Case("ddp", "sgd", "plateau"),
    *(Case(s, "sgd", style) for s in STRATEGIES for style in TWO_PHASES),
    *(Case(s, "sgd", "outside clipping") for s in ("ddp", "fsdp")),
    *(Case(s, "adamw", style) for s in STRATEGIES for style in ("unused", "late clearing")),
]
TWIN, DRIFTS = Case("ddp", "sgd", "twin"), Case("ddp", "sgd", "drifts")
WITH_BATCHNORM = [Case(strategy, "sgd", "batchnorm") for strategy in STRATEGIES]
Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What two ranks came to, by the names of the cases: they are started once for all."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # of all its workers
    out = shared / "two-ranks.pt"
    with FileLock(out.with_suffix(".lock")):
        if not out.exists():
            _start_ranks(out)
    results: Results = torch.load(out, weights_only=False)
    return results


def _start_ranks(out: Path) -> None:
    names = [str(case) for case in (*CASES, *WITH_BATCHNORM, TWIN, DRIFTS)]
    argv = (sys.executable, "-m", "tests.knobs.strategies.together", str(out), *names)
    plan = with_ranks(LaunchPlan(argv, str(ROOT), ranks=2))
    subprocess.run(plan.argv, cwd=plan.cwd, env={**os.environ, **plan.env}, check=True, timeout=300)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_ranks_end_with_the_parameters_of_one(case: Case, together: Results) -> None:
    ours, theirs = together[str(case)], alone(case)
    assert ours["weights"].keys() == theirs["weights"].keys()
    assert all(name.startswith("module.") is (case.style == WRAPPED) for name in ours["weights"])
    for name, weight in theirs["weights"].items():
        assert type(ours["weights"][name]) is torch.Tensor, "a whole, plain tensor"
        assert torch.allclose(ours["weights"][name], weight, atol=TOLERANCE), name
    assert torch.allclose(ours["outside"], theirs["outside"], atol=TOLERANCE)
    first, second = ours["every rank's"]
    assert first == second


@pytest.mark.parametrize("case", [c for c in CASES if c.style == "clipping"], ids=str)
def test_gradients_are_clipped_by_the_norm_over_all_ranks(case: Case, together: Results) -> None:
    norms = together[str(case)]["norms"][case.accumulation_steps - 1 :: case.accumulation_steps]
    expected = alone(case)["norms"]
    assert max(expected) > 0.1, "something was clipped"
    assert norms[: len(expected)] == pytest.approx(expected, rel=1e-6)


def test_a_rate_that_follows_the_loss_follows_that_of_all_ranks(together: Results) -> None:
    case = Case("ddp", "sgd", "plateau")
    assert together[str(case)]["lr"] == alone(case)["lr"] < alone(Case("ddp", "sgd"))["lr"]


@pytest.mark.parametrize("case", OVERFLOWS, ids=str)
def test_an_overflow_on_one_rank_lowers_the_scale_of_all(case: Case, together: Results) -> None:
    assert together[str(case)]["scale"] == alone(case)["scale"] < 2.0**14


def test_what_ranks_evaluate_is_what_one_process_evaluates(together: Results) -> None:
    assert together[str(TWIN)]["metrics"] == pytest.approx(alone(TWIN)["metrics"], rel=1e-9)


def test_ranks_that_drift_apart_after_the_first_steps_are_told(together: Results) -> None:
    error = together[str(DRIFTS)]["error"]
    assert "drifted apart" in error
    assert "Leave devices out of the search" in error


@pytest.mark.parametrize("case", [c for c in CASES if c.style in {"plain", *TWO_PHASES}], ids=str)
def test_an_optimizers_state_is_saved_whole_and_plain(case: Case, together: Results) -> None:
    ours, theirs = together[str(case)]["optimizer"], alone(case)["optimizer"]
    assert ours["state"].keys() == theirs["state"].keys()
    for number, state in theirs["state"].items():
        for key, value in state.items():
            found = ours["state"][number][key]
            if isinstance(value, torch.Tensor):
                assert type(found) is torch.Tensor
                assert torch.allclose(found, value, atol=TOLERANCE), key


@pytest.mark.parametrize("case", WITH_BATCHNORM, ids=str)
def test_batchnorm_sees_the_samples_of_a_rank_alone(case: Case, together: Results) -> None:
    ours, whole = together[str(case)]["weights"], alone(case)["weights"]
    halves = alone(replace(case, style="halves"))["weights"]
    assert not torch.allclose(ours["last.weight"], whole["last.weight"], atol=1e-6)
    for name in ("first.weight", "norm.weight", "last.weight"):
        assert torch.allclose(ours[name], halves[name], atol=TOLERANCE), name
