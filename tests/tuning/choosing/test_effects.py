"""How alike configs are assumed to be: by the knob values that they share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from autotune.measurement.rounds import TAU, Array
from autotune.program.config import Config, KnobValue
from autotune.tuning.choosing.effects import PAIR, USUAL, Foreseen, KnobEffects
from tests.made import make_hardware, make_profile, make_space, make_speeds

OWN = (TAU / USUAL) ** 2  # what a config has for itself
BASELINE = Config({"workers": 0, "precision": "fp32", "batch": 64})
VALUES: dict[str, tuple[KnobValue, ...]] = {
    "workers": (0, 1, 2, 4, 8),
    "precision": ("fp32", "bf16", "fp16"),
    "batch": (32, 64, 128, 256),
}
EFFECTS = KnobEffects(BASELINE, VALUES)


def alike(one: dict[str, KnobValue], other: dict[str, KnobValue]) -> float:
    configs = [BASELINE.replace(**changes) for changes in (one, other)]
    return float(prior(configs)[0, 1])


def prior(configs: Sequence[Config]) -> Array:
    """Return the covariance before anything was seen, in units of one knob's effect."""
    return EFFECTS.foresee(None, configs).covariance / USUAL**2


def test_the_baseline_has_no_effect_and_is_like_nothing() -> None:
    assert alike({}, {}) == 0.0
    assert alike({}, {"workers": 4}) == 0.0


def test_what_two_configs_share_makes_them_alike() -> None:
    one = 1 + OWN
    assert alike({"precision": "bf16"}, {"precision": "bf16"}) == pytest.approx(one)
    assert alike({"precision": "bf16"}, {"precision": "fp16"}) == 0.0
    assert alike({"precision": "bf16"}, {"workers": 1}) == 0.0
    both: dict[str, KnobValue] = {"precision": "bf16", "workers": 1}
    assert alike(both, {"workers": 1}) == pytest.approx(1.0)
    assert alike(both, both) == pytest.approx(2 + PAIR**2 + OWN)


def test_numbers_are_more_alike_the_nearer_they_are_and_none_across_the_baselines_own() -> None:
    eight = [alike({"workers": 8}, {"workers": n}) for n in (1, 2, 4)]
    assert eight == pytest.approx([1.0, 2.0, 3.0])
    assert alike({"batch": 256}, {"batch": 128}) == pytest.approx(1.0)
    assert alike({"batch": 256}, {"batch": 32}) == 0.0


def test_a_covariance_of_all_configs_has_no_negative_eigenvalue() -> None:
    configs = [
        Config({"workers": workers, "precision": precision, "batch": batch})
        for workers in VALUES["workers"]
        for precision in VALUES["precision"]
        for batch in VALUES["batch"]
    ]
    assert np.linalg.eigvalsh(prior(configs)).min() > -1e-9


def test_a_config_that_never_played_is_known_by_its_parts() -> None:
    """1.3x by workers and 1.5x by precision: together about 1.95x, less sure than either alone."""
    one = BASELINE.replace(workers=1)
    speeds = make_speeds(
        {
            BASELINE: 1.0,
            one: 1.3,
            BASELINE.replace(precision="bf16"): 1.5,
            BASELINE.replace(batch=128): 0.9,
        }
    )
    both = BASELINE.replace(workers=1, precision="bf16")
    slow = both.replace(batch=128)
    found = EFFECTS.foresee(speeds, [both, slow, one])
    assert found.means == pytest.approx(np.log([1.3 * 1.5, 1.3 * 1.5 * 0.9, 1.3]), abs=0.15)
    spreads = np.sqrt(np.diag(found.covariance))
    assert spreads[0] > 1.5 * spreads[2]


def test_before_the_first_round_nothing_is_expected_of_any_config() -> None:
    one, both = BASELINE.replace(workers=1), BASELINE.replace(workers=1, precision="bf16")
    for speeds in (None, make_speeds({BASELINE: 1.0})):
        found = EFFECTS.foresee(speeds, [BASELINE, one, both])
        assert not found.means.any()
        spreads = np.diag(found.covariance)
        assert spreads[0] < spreads[1] < spreads[2]


def test_a_value_at_which_the_user_holds_a_knob_has_an_effect_as_well() -> None:
    """All configs but the baseline have it, so it must not be taken for noise."""
    space = (
        make_space(["workers", "precision", "threads"])
        .fix({"precision": "bf16"})
        .resolve(make_hardware(), make_profile())
    )
    more = space.start.replace(workers=1)
    for truth in (1.3, 2.0, 3.0):
        speeds = make_speeds({space.baseline: 1.0, space.start: truth, more: truth})
        found = KnobEffects.of(space).foresee(speeds, [space.start])
        assert math.exp(found.means[0]) == pytest.approx(truth, rel=0.05)


def test_a_share_of_the_programs_own_batch_is_known_by_the_next_value() -> None:
    """Ranks that keep the global batch have batches that are not offered."""
    assert alike({"batch": 16}, {"batch": 256}) == 0.0
    assert alike({"batch": 120}, {"batch": 256}) == alike({"batch": 128}, {"batch": 256})


def test_what_a_knob_that_does_little_seems_to_give_is_taken_for_noise() -> None:
    """A value that was not seen may do as much as those of any other knob, all the same."""
    half, many = BASELINE.replace(precision="bf16"), BASELINE.replace(precision="bf16", batch=256)
    seen = {BASELINE: 1.0, half: 1.5, many: 1.51, BASELINE.replace(batch=256): 0.99}
    seen |= {c.replace(workers=1): s * 1.03 for c, s in seen.items()}
    seen |= {many.replace(workers=2): 1.48, half.replace(workers=2): 1.49}
    speeds = make_speeds(seen, 0.03)
    two = half.replace(workers=2)
    found = EFFECTS.foresee(speeds, [half, two])
    assert abs(found.of(two, over=half).value) < 0.02
    assert found.of(half).value == pytest.approx(math.log(1.5), abs=0.03)
    eight = BASELINE.replace(workers=8)
    bold = EFFECTS.foresee(speeds, [eight], boldly=True)
    assert bold.of(eight).error > 2 * EFFECTS.foresee(speeds, [eight]).of(eight).error


def test_the_best_of_what_may_be_true_is_as_often_one_as_another_that_is_as_fast() -> None:
    means = np.log([1.0, 2.0, 2.0, 0.5])
    drawn = Foreseen([BASELINE] * 4, means, np.diag([0.0, 0.01, 0.01, 0.01])).draws()
    best = [float((drawn.argmax(axis=1) == n).mean()) for n in range(4)]
    assert best[1] == pytest.approx(0.5, abs=0.15)
    assert best[0] == best[3] == 0
