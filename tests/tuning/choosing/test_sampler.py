"""The sampler alone, in studies that are no search."""

import random

import optuna
import pytest
from optuna.distributions import CategoricalChoiceType
from optuna.study import StudyDirection

from autotune.errors import UsageError
from autotune.tuning.choosing.sampler import EffectsSampler, make_sampler
from autotune.tuning.search_request import Sampler, SearchRequest

FACTORS: dict[str, dict[CategoricalChoiceType, float]] = {
    "workers": {0: 1.0, 2: 1.3, 4: 1.2},
    "precision": {"fp32": 1.0, "bf16": 1.4},
    "threads": {1: 0.7, 2: 1.0},
    "layout": {"NCHW": 1.0, "NHWC": 1.05},
}


def speed(trial: optuna.Trial, noise: random.Random) -> float:
    product = 1000.0 * noise.gauss(1.0, 0.02)
    for name, factors in FACTORS.items():
        product *= factors[trial.suggest_categorical(name, list(factors))]
    return product


@pytest.mark.parametrize("direction", [StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE])
def test_it_finds_the_best_of_any_study_in_a_dozen_trials(direction: StudyDirection) -> None:
    """Of 24 configs; a time is minimized as a speed is maximized."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction=direction, sampler=EffectsSampler(seed=0))
    study.enqueue_trial({name: next(iter(factors)) for name, factors in FACTORS.items()})
    noise = random.Random(0)

    def objective(trial: optuna.Trial) -> float:
        found = speed(trial, noise)
        return found if direction is StudyDirection.MAXIMIZE else 1 / found

    study.optimize(objective, n_trials=14)
    assert {"workers": 2, "precision": "bf16", "threads": 2}.items() <= study.best_params.items()


def test_an_objective_that_is_no_speed_is_refused() -> None:
    study = optuna.create_study(direction="maximize", sampler=EffectsSampler())
    first = study.ask()
    speed(first, random.Random(0))
    study.tell(first, -1.0)
    second = study.ask()
    with pytest.raises(ValueError, match="positive objective"):
        speed(second, random.Random(0))


def test_a_sampler_has_a_name_or_the_nearest_one_is_told() -> None:
    for name in Sampler:
        if name is not Sampler.GP:  # it imports torch
            assert make_sampler(name, 0)
    with pytest.raises(UsageError, match="Did you mean 'random'"):
        SearchRequest(sampler="rnadom").options()
