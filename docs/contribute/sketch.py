"""The whole idea of autotune in 150 lines: one setting, turns, one claim, on a ten-line loop.

    python docs/contribute/sketch.py

It searches the number of threads for ``train()``, which knows nothing of it. Each part names the
place where autotune does the same for any program and all settings.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

# --- The program: what a user would have written --------------------------------------------------


def train() -> None:
    data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(50):
        for x, y in DataLoader(data, batch_size=64, shuffle=True):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


# --- A setting: which values are worth trying here, and how to apply one (knobs/) -----------------


VALUES = sorted({1, 2, torch.get_num_threads()})
apply = torch.set_num_threads


# --- Inside the program: act between two steps (inside/hubs) --------------------------------------


class Enough(BaseException):
    """Ends the program; none of its ``except Exception`` catches it."""


def run_program(after_step: Callable[[Optimizer], None]) -> None:
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: after_step(optimizer))
    try:
        train()
    except Enough:
        pass
    finally:
        hook.remove()


# --- Turns: configs alternate in one running program (inside/turns, measurement/turn.py) ----------

Rates = dict[int, float]  # steps per second of each config in one round
ROUNDS, STEPS, SETTLING = 8, 30, 3  # of a turn's steps, the first few do not count


def rounds_of_turns(configs: list[int]) -> list[Rates]:
    """Measure configs by turns. What the machine does to a round, it does to all configs in it."""
    rounds: list[Rates] = []

    def turns() -> Iterator[None]:  # a `yield` is one step of the program
        for _ in range(ROUNDS):
            rates = {}
            for config in random.sample(configs, len(configs)):
                apply(config)
                for _ in range(SETTLING):
                    yield
                start = time.perf_counter()
                for _ in range(STEPS - SETTLING):
                    yield
                rates[config] = (STEPS - SETTLING) / (time.perf_counter() - start)
            rounds.append(rates)
        raise Enough

    schedule = turns()
    run_program(lambda _: next(schedule))
    return rounds


def log_speedup(rounds: list[Rates], written: int, config: int) -> float:
    """Compare within rounds, never by absolute times."""
    return statistics.median(math.log(rates[config] / rates[written]) for rates in rounds)


# --- The same training? From one random state, with and without the setting (tuning/checking) -----


def trained(config: int) -> torch.Tensor:
    """Return the size of the weights after each of the first steps."""
    apply(config)
    torch.manual_seed(0)
    sizes: list[torch.Tensor] = []

    def record(optimizer: Optimizer) -> None:
        weights = optimizer.param_groups[0]["params"]
        sizes.append(torch.stack([w.detach().norm() for w in weights]))
        if len(sizes) == 20:
            raise Enough

    run_program(record)
    return torch.stack(sizes)


# --- The claim: fresh processes, as the best was chosen by luck as well (tuning/claiming/claim.py)


def claim(written: int, best: int) -> tuple[float, float, float]:
    """Return the speedup and its 95 % interval; each process is one observation."""
    line = [sys.executable, __file__, str(written), str(best)]
    runs = [subprocess.run(line, check=True, capture_output=True, text=True) for _ in range(3)]
    logs = [json.loads(run.stdout) for run in runs]
    mean = statistics.mean(logs)
    half = 4.30 * statistics.stdev(logs) / math.sqrt(3)  # Student's t, 2 degrees of freedom
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


# --- The search: as written, race, check, claim (tuning/workflow.py) ------------------------------


def search() -> None:
    written = torch.get_num_threads()
    rounds = rounds_of_turns(VALUES)
    best = max(VALUES, key=lambda config: log_speedup(rounds, written, config))
    if best == written or not torch.allclose(trained(written), trained(best), rtol=1e-3):
        print(f"threads {written}: found nothing faster that trains the same")
        return
    speedup, low, high = claim(written, best)
    verdict = "faster" if low > 1 else "not shown to be faster"
    print(f"threads {written} -> {best}: {verdict}, {speedup:.2f}x [{low:.2f}, {high:.2f}]")


if __name__ == "__main__":
    if len(sys.argv) > 1:  # a process of the claim
        pair = [int(argument) for argument in sys.argv[1:]]
        print(log_speedup(rounds_of_turns(pair), *pair))
    else:
        search()
