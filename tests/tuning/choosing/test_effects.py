"""How alike configs are assumed to be: by the knob values that they share."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from autotune.measurement.rounds import TAU, Array
from autotune.program.config import Config, KnobValue
from autotune.tuning.choosing.effects import PAIR, USUAL, KnobEffects
from tests.made import make_speeds

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


def test_what_two_configs_share_makes_them_alike() -> None:
    one = 1 + OWN
    assert alike({"precision": "bf16"}, {"precision": "bf16"}) == pytest.approx(one)
    assert alike({"precision": "bf16"}, {"precision": "fp16"}) == 0.0
    assert alike({"precision": "bf16"}, {"workers": 1}) == 0.0
    both: dict[str, KnobValue] = {"precision": "bf16", "workers": 1}
    assert alike(both, {"workers": 1}) == pytest.approx(1.0)
    assert alike(both, both) == pytest.approx(2 + PAIR**2 + OWN)


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


def test_what_a_knob_that_does_little_seems_to_give_is_taken_for_noise() -> None:
    half, many = BASELINE.replace(precision="bf16"), BASELINE.replace(precision="bf16", batch=256)
    seen = {BASELINE: 1.0, half: 1.5, many: 1.51, BASELINE.replace(batch=256): 0.99}
    seen |= {c.replace(workers=1): s * 1.03 for c, s in seen.items()}
    seen |= {many.replace(workers=2): 1.48, half.replace(workers=2): 1.49}
    speeds = make_speeds(seen, 0.03)
    two = half.replace(workers=2)
    found = EFFECTS.foresee(speeds, [half, two])
    assert abs(found.of(two, over=half).value) < 0.02
    assert found.of(half).value == pytest.approx(math.log(1.5), abs=0.03)
