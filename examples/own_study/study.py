"""Use autotune's sampler in a study of your own: Optuna runs the trials, and you measure.

Run it with ``python examples/own_study/study.py``. The sampler knows that the effects of such knobs
mostly add up, so it needs fewer trials than a sampler for any objective. The first trial should be
the program as it is; the objective is a speed.
"""

from __future__ import annotations

import time

import optuna
import torch
from torch import nn

import autotune

STEPS, SAMPLES = 30, 2048


def samples_per_s(trial: optuna.Trial) -> float:
    """Train for some steps under the trial's config and return the speed."""
    torch.set_num_threads(trial.suggest_categorical("threads", [1, 2]))
    batch_size = trial.suggest_categorical("batch_size", [16, 64, 256])
    fused = trial.suggest_categorical("fused", [False, True])
    dtype = trial.suggest_categorical("dtype", ["float32", "bfloat16"])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    data, labels = torch.randn(SAMPLES, 256), torch.randint(10, (SAMPLES,))
    began_s = time.perf_counter()
    for step in range(STEPS):
        first = step * batch_size % (SAMPLES - batch_size)
        x, y = data[first : first + batch_size], labels[first : first + batch_size]
        with torch.autocast("cpu", getattr(torch, dtype), enabled=dtype != "float32"):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return STEPS * batch_size / (time.perf_counter() - began_s)


def main() -> None:
    """Run 20 trials and print the best."""
    study = optuna.create_study(direction="maximize", sampler=autotune.EffectsSampler(seed=0))
    study.enqueue_trial({"threads": 2, "batch_size": 16, "fused": False, "dtype": "float32"})
    study.optimize(samples_per_s, n_trials=20)
    first = study.trials[0].value or 1.0
    print(f"{study.best_value / first:.1f}x the first trial: {study.best_params}")


if __name__ == "__main__":
    main()
